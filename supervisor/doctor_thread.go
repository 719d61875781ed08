package supervisor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// noNewPrivs is needed by whoever restricts a thread without CAP_SYS_ADMIN.
func noNewPrivs() error {
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// inPrivateMounts runs fn in a mount namespace of its own, where nothing that it
// mounts reaches the host or outlives the call.
func inPrivateMounts(fn func() error) error {
	return lostthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare(CLONE_NEWNS): %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("mount / MS_REC|MS_PRIVATE: %w", err)
		}
		return fn()
	})
}

func seccompCall(op uint, arg *uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, uintptr(op), 0, uintptr(unsafe.Pointer(arg))); errno != 0 {
		return errno
	}
	return nil
}

// setFilter is seccomp(SECCOMP_SET_MODE_FILTER) for the calling thread alone.
func setFilter(filter []byte) error {
	prog := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter)))}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
