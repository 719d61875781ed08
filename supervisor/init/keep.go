//go:build linux

package initproc

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Keep says how a run without a PID namespace ends. Its guardian is no PID 1, so that
// the kernel does not kill the rest with it: it adopts whoever loses its parent
// (PR_SET_CHILD_SUBREAPER), and leaves when nobody is left.
type Keep byte

// The values are the letters that init.c is started with.
const (
	// KeepNamespace is a run in a PID namespace: PID 1's end is everybody's.
	KeepNamespace Keep = 0

	// KeepDomain needs Landlock's scope for signals (ABI 6, Linux 6.12). Config.Before
	// puts the guardian into a domain that lets no signal out, and one kill(-1) takes all
	// that were born in it, however fast they fork. What the run's own domain is nested
	// in cannot be signalled from it.
	KeepDomain Keep = 's'

	// KeepChildren kills the children, and the orphans that they leave, until none is
	// left. A command of the same user may kill the guardian first. It needs
	// /proc/thread-self/children (CONFIG_PROC_CHILDREN).
	KeepChildren Keep = 'c'
)

func (k Keep) argv() []string {
	if k == KeepNamespace {
		return []string{"agentguard-init"}
	}
	return []string{"agentguard-init", string(k)}
}

// childrenFD is init.c's CHILDREN_FD.
const childrenFD = 199

// Adopt adds to a plan for Config.Before what every guardian without a PID namespace
// needs: it adopts orphans and, for KeepChildren, holds the list of its children.
func (k Keep) Adopt(p *Program) {
	p.Call("guardian", "prctl(PR_SET_CHILD_SUBREAPER)", unix.SYS_PRCTL, Value(unix.PR_SET_CHILD_SUBREAPER), Value(1), Value(0), Value(0), Value(0))
	if k != KeepChildren {
		return
	}
	fd, cwd := p.NewSlot(), Value(unix.AT_FDCWD)
	p.Call("guardian", "open(/proc/thread-self/children)", unix.SYS_OPENAT, cwd, p.String("/proc/thread-self/children"), Value(unix.O_RDONLY|unix.O_CLOEXEC), Value(0)).Save(fd)
	p.Call("guardian", "dup3(children)", unix.SYS_DUP3, p.Saved(fd), Value(childrenFD), Value(unix.O_CLOEXEC))
}

// A guardian that comes to no end within urgeLimit is killed.
const (
	urgeLimit = time.Minute
	urgePause = 10 * time.Millisecond
)

// urge sees to it that a guardian which was told to end does so. Somebody may have stopped it,
// where signals have no scope the command too, and may do so again: it is continued until it
// has ended. After a minute it is killed, and what it had not come to lives on, unless the
// supervisor can end it.
func (p *Process) urge() (err error) {
	if p.keep == KeepNamespace || p.PidFD == nil {
		return nil
	}
	p.urged.Do(func() {
		var fd int
		if fd, err = unix.FcntlInt(p.PidFD.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			err = os.NewSyscallError("fcntl", err)
			return
		}
		go func() {
			defer unix.Close(fd)
			continueUntilEnd(fd, time.Now().Add(urgeLimit))
		}()
	})
	return err
}

func continueUntilEnd(pidfd int, limit time.Time) {
	for time.Now().Before(limit) {
		if err := unix.PidfdSendSignal(pidfd, unix.SIGCONT, nil, 0); err != nil { // ESRCH: it was waited for
			return
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(urgePause.Milliseconds()))
		if n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
}
