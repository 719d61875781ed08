//go:build linux

package notify

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// InstallFlags are the flags of seccomp(SECCOMP_SET_MODE_FILTER) that a filter is to be
// installed with. killable is false before Linux 5.19: there, a signal that comes while a
// call waits makes the kernel ask again, and the call is told twice. Up to 6.18 that may
// still happen, seldom: when the answer comes between the signal and the caller's next look.
func InstallFlags() (flags uintptr, killable bool) {
	const both = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	// Flags that are known are looked at before the program, which is missing here.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, both, 0)
	if errno == unix.EINVAL {
		return unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, false
	}
	return both, true
}

// Probe says why no process here can have a filter with a listener; nil: it can.
// There is one at most (EBUSY): a container's or another run's may have its own.
func Probe() error {
	return lostthread.Run(tryInstall) // nothing takes a filter off again
}

func tryInstall() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	prog := unix.SockFprog{Len: 1, Filter: &allow}
	flags, _ := InstallFlags()
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("a seccomp filter with a listener: %w", errno)
	}
	return unix.Close(int(fd))
}
