// Package lockdown is how a process of ours that reads what others wrote gives up
// what it does not need, before it reads any of it.
package lockdown

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Enter gives up what the process does not need, on every thread: the terminal,
// capabilities, which the process of a supervisor in a user namespace of its own is
// born with, memory beyond hard bytes (the collector aims at soft), being read by others of
// its user (dumpable 0, no core), new privileges, and every system call that the
// filter, an array of struct sock_filter, refuses. A process of root's is refused.
func Enter(filter []byte, soft, hard int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Geteuid() == 0 {
		return errors.New("the process must not be root")
	}
	if err := errors.Join(leaveTerminal(), Use(0, 0)); err != nil {
		return err
	}
	debug.SetMemoryLimit(soft)
	for what, most := range map[int]uint64{unix.RLIMIT_DATA: uint64(hard), unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if len(filter) == 0 || len(filter)%8 != 0 {
		return errors.New("the process has no system call filter")
	}
	prog := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter)))}
	// TSYNC puts the filter, and with it no_new_privs, on all threads (seccomp(2)).
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// leaveTerminal gives up the terminal of the session (tty_ioctl(4)): the process
// is not its leader, so that nobody else loses it.
func leaveTerminal() error {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // ENXIO: there is none; else it is out of reach, as it shall be
	}
	defer unix.Close(fd)
	return os.NewSyscallError("ioctl TIOCNOTTY", unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0))
}
