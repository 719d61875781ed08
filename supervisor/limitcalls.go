package supervisor

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

func (b *builder) limits() {
	for _, l := range b.plan.Rlimits {
		switch {
		case l.resource == unix.RLIMIT_NPROC && b.plan.tasksByUser(): // it comes with the namespace that it counts in
		case l.resource == unix.RLIMIT_NOFILE: // in files
		default:
			b.limit("limits", l)
		}
	}
}

// files limits descriptors when nothing but execve is left to do: whatever opened one after
// it would meet the command's limit, since that many are in use until then.
func (b *builder) files() {
	for _, l := range b.plan.Rlimits {
		if l.resource == unix.RLIMIT_NOFILE {
			b.limit("limits", l)
		}
	}
}

func (b *builder) limit(stage string, l Rlimit) {
	v := make([]byte, 16)
	binary.LittleEndian.PutUint64(v, l.Value)
	binary.LittleEndian.PutUint64(v[8:], l.Value)
	b.Call(stage, fmt.Sprintf("prlimit(%s, %d)", l.Name, l.Value), unix.SYS_PRLIMIT64, zero(), initproc.Value(l.resource), b.Bytes(v), zero())
}

const tasksStage = "tasks"

// countTasks moves the command into a user namespace of its own, in which RLIMIT_NPROC
// counts its tasks and none of the supervisor's (since Linux 5.14; the sums of the namespaces
// around it have the limit that was in force when it was made). It keeps its ids, and
// has no rights over the mounts and the network that the run was given.
func (b *builder) countTasks() {
	if !b.plan.tasksByUser() {
		return
	}
	b.Call(tasksStage, "unshare(CLONE_NEWUSER)", unix.SYS_UNSHARE, initproc.Value(unix.CLONE_NEWUSER))
	mapOneself(b.Program, tasksStage, b.plan.Identity.UID, b.plan.Identity.GID)
	for _, l := range b.plan.Rlimits {
		if l.resource == unix.RLIMIT_NPROC {
			b.limit(tasksStage, l)
		}
	}
}
