package supervisor

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// guardian is what differs in PID 1's lockdown.
type guardian struct {
	mode     string // HostInfo.Mode: in a user namespace it keeps its ids
	uid      int
	filter   []byte
	loUp     bool     // bring lo up while it still may
	dies     bool     // the kernel kills it with the thread that cloned it: one that may be frozen cannot watch its lifeline
	terminal *os.File // slave of the run's own terminal; nil: there is none
}

// program gives up everything, last of all the right to do anything else.
func (g guardian) program() *initproc.Program {
	p := &initproc.Program{}
	p.Call("guardian", "prctl(PR_SET_NAME)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NAME), p.String("agentguard"), zero(), zero(), zero())
	if g.terminal != nil {
		g.lead(p)
	}
	if g.loUp {
		ifreq := make([]byte, 40) // struct ifreq: name, flags
		copy(ifreq, "lo")
		binary.LittleEndian.PutUint16(ifreq[16:], unix.IFF_UP|unix.IFF_RUNNING)
		sock := p.NewSlot()
		p.Call("guardian", loSocketLabel, unix.SYS_SOCKET, initproc.Value(unix.AF_INET), initproc.Value(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), zero()).Save(sock)
		p.Call("guardian", "ioctl(SIOCSIFFLAGS, lo up)", unix.SYS_IOCTL, p.Saved(sock), initproc.Value(unix.SIOCSIFFLAGS), p.Bytes(ifreq))
		p.Call("guardian", "close(socket)", unix.SYS_CLOSE, p.Saved(sock))
	}
	identitySteps(p, "guardian", g.mode, Identity{UID: g.uid, GID: g.uid}, false)
	p.Call("guardian", "prctl(PR_SET_DUMPABLE, 0)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_DUMPABLE), zero(), zero(), zero(), zero())
	if g.dies { // a change of ids would clear it
		p.Call("guardian", "prctl(PR_SET_PDEATHSIG, SIGKILL)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_PDEATHSIG), initproc.Value(uint64(unix.SIGKILL)), zero(), zero(), zero())
	}
	p.Call("guardian", "prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NO_NEW_PRIVS), initproc.Value(1), zero(), zero(), zero())
	seccompStep(p, "guardian", g.filter)
	return p
}

// loSocketLabel is the first call for which the programs on the cgroup are asked.
const loSocketLabel = "socket(AF_INET, SOCK_DGRAM)"

// commandPID is the command's number in its PID namespace: PID 1's first child.
const commandPID = 2

// lead makes the command a job in the foreground of PID 1's session, as a shell
// would. Were it the leader itself, it would be an orphaned process group, which
// Ctrl-Z cannot stop (setpgid(2)).
func (g guardian) lead(p *initproc.Program) {
	tty, job := p.File(int(g.terminal.Fd())), make([]byte, 4)
	binary.LittleEndian.PutUint32(job, commandPID)
	p.Call("guardian", "setpgid(command, command)", unix.SYS_SETPGID, initproc.Value(commandPID), initproc.Value(commandPID))
	p.Call("guardian", "ioctl(terminal, TIOCSPGRP, command)", unix.SYS_IOCTL, tty, initproc.Value(unix.TIOCSPGRP), p.Bytes(job))
	p.Call("guardian", "close(terminal)", unix.SYS_CLOSE, tty)
}
