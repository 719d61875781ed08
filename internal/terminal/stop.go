//go:build linux

package terminal

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropped is how long the kernel may take to stop us before it is taken to have
// refused.
const dropped = 200 * time.Millisecond

// Stop stops this process and all of its process group, as Ctrl-Z does, and returns
// when it goes on. Where nobody could wake it, in an orphaned process group, the
// kernel does not stop it (setpgid(2)) and Stop returns soon.
//
// The signal reaches the whole group at once, so that a shell that continues the
// group continues us, stopped yet or not. This thread takes it as soon as it no
// longer blocks it, unless another one has already begun to; SIGCONT says that
// it is over. What SIGTSTP was set to, by Go's runtime too, it is again afterwards.
func Stop() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, unix.SIGCONT)
	defer signal.Stop(goesOn)
	var dfl, old sigaction
	if err := rtSigaction(&dfl, &old); err != nil {
		return err
	}
	var mask, before unix.Sigset_t
	mask.Val[0] = 1 << (unix.SIGTSTP - 1)
	err := errors.Join(
		unix.PthreadSigmask(unix.SIG_BLOCK, &mask, &before),
		os.NewSyscallError("kill", unix.Kill(0, unix.SIGTSTP)),
		unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
	select {
	case <-goesOn:
	case <-time.After(dropped):
	}
	return errors.Join(err, rtSigaction(&old, nil))
}

// sigaction is the kernel's struct sigaction: handler, flags, restorer and mask, on
// amd64 and arm64 alike. All zeros is SIG_DFL.
type sigaction [4]uint64

func rtSigaction(set, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("rt_sigaction", errno)
	}
	return nil
}
