package lockdown

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities (capabilities(7)), a bit each: 1 << unix.CAP_KILL is one.
type Set uint64

// Of makes a set of capability numbers.
func Of(list ...int) (s Set) {
	for _, n := range list {
		s |= 1 << n
	}
	return s
}

// Held is the permitted set of the calling thread.
func Held() (Set, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return 0, os.NewSyscallError("capget", err)
	}
	return Set(caps[0].Permitted) | Set(caps[1].Permitted)<<32, nil
}

// Use makes effective what is in the set and nothing else, and permits and inherits
// nothing beyond keep, on all threads of the process. Both are cut to what is permitted
// now: nothing is gained.
func Use(effective, keep Set) error {
	held, err := Held()
	if err != nil {
		return err
	}
	keep &= held
	effective &= keep
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(keep)},
		{Effective: uint32(effective >> 32), Permitted: uint32(keep >> 32)},
	}
	if err := OnAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&caps)), 0); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return nil
}

// Bound takes out of the bounding set of all threads what is not in keep, and forbids
// execve to give what the process has not (no_new_privs): no program that it starts has
// more than the set. It takes CAP_SETPCAP where there is something to take out.
func Bound(keep Set) error {
	if err := OnAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	for n := range 64 {
		if keep&(1<<n) != 0 {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0)
		if err == unix.EINVAL { // beyond the last that this kernel knows
			return nil
		}
		if err == nil && has == 1 {
			err = OnAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(n), 0)
		}
		if err != nil {
			return fmt.Errorf("the bounding set: %w", err)
		}
	}
	return nil
}

// OnAllThreads makes a system call on every thread of the process. It must do the same
// on each: the runtime ends the process where it does not.
//
//go:uintptrescapes
func OnAllThreads(nr, a, b, c uintptr) error {
	restore, err := roomForSignals()
	if err != nil {
		return err
	}
	_, _, errno := syscall.AllThreadsSyscall(nr, a, b, c)
	restore()
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return fmt.Errorf("this agentguard was built with cgo, whose threads Go does not know: build it with CGO_ENABLED=0: %w", errors.ErrUnsupported)
	}
	return errno
}

// fewSignals is a limit that the pending signals of a user may well have reached.
const fewSignals = 1024

var signalRoom sync.Mutex

// roomForSignals raises RLIMIT_SIGPENDING where it is small, until restore. The runtime sends
// each thread a real-time signal and waits until all have had it: one that finds no room is
// lost (tgkill(2), EAGAIN), and the wait has no end.
func roomForSignals() (restore func(), err error) {
	signalRoom.Lock()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &old); err != nil {
		signalRoom.Unlock()
		return nil, os.NewSyscallError("getrlimit RLIMIT_SIGPENDING", err)
	}
	if old.Cur >= fewSignals {
		signalRoom.Unlock()
		return func() {}, nil
	}
	for _, more := range []unix.Rlimit{{Cur: fewSignals, Max: max(old.Max, fewSignals)}, {Cur: old.Max, Max: old.Max}} { // the first takes CAP_SYS_RESOURCE where Max is small
		if more.Cur > old.Cur && unix.Setrlimit(unix.RLIMIT_SIGPENDING, &more) == nil {
			return func() {
				_ = unix.Setrlimit(unix.RLIMIT_SIGPENDING, &old) // back to what it was: nothing refuses that
				signalRoom.Unlock()
			}, nil
		}
	}
	signalRoom.Unlock()
	if old.Cur == 0 {
		return nil, errors.New("no signal can be queued for this process's threads (RLIMIT_SIGPENDING): raise it: ulimit -i 1024")
	}
	return func() {}, nil
}
