package supervisor

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// inherit gives a command that was born in reserve what it would have had from this
// process, which has become its caller's since (internal/helper.Peer.Assume): nice value,
// processors, the size of stacks, and one pipe for both outputs where that is so. The OOM
// score follows when there is a /proc. Other limits are in the plan.
func (b *builder) inherit() {
	if !b.m.late {
		return
	}
	if b.m.oneOutput {
		b.Call("inherit", "dup3(1, 2)", unix.SYS_DUP3, initproc.Value(1), initproc.Value(2), zero())
	}
	if b.plan.Nice > 0 { // below 0 see session
		b.Call("inherit", fmt.Sprintf("setpriority(PRIO_PROCESS, 0, %d)", b.plan.Nice), unix.SYS_SETPRIORITY, initproc.Value(unix.PRIO_PROCESS), zero(), initproc.Value(b.plan.Nice))
	}
	var cpus unix.CPUSet
	if unix.SchedGetaffinity(0, &cpus) == nil {
		var mask []byte
		for _, word := range cpus {
			mask = binary.NativeEndian.AppendUint64(mask, uint64(word))
		}
		b.Call("inherit", "sched_setaffinity(0)", unix.SYS_SCHED_SETAFFINITY, zero(), initproc.Value(len(mask)), b.Bytes(mask))
	}
	var stack unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_STACK, &stack) == nil {
		size := binary.NativeEndian.AppendUint64(nil, stack.Cur)
		b.Call("inherit", "prlimit(RLIMIT_STACK)", unix.SYS_PRLIMIT64, zero(), initproc.Value(unix.RLIMIT_STACK), b.Bytes(binary.NativeEndian.AppendUint64(size, stack.Max)), zero())
	}
}
