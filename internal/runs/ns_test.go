package runs

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

var errNoNamespace = errors.New("no private mount namespace")

// inMountNamespace calls f on a thread with a mount namespace of its own, which
// ends with the thread. /proc/self is of the process's first thread, so what f
// calls must look at /proc/thread-self.
func inMountNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("%w: unshare: %w", errNoNamespace, err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("%w: make private: %w", errNoNamespace, err)
			}
			return f()
		}()
	}()
	return <-done
}
