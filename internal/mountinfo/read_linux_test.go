package mountinfo

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/testenv"
)

// The whole table is read, however long. It is that of a mount namespace of the test's own.
func TestRead(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	err := lostthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make private: %w", err)
		}
		for i := range 400 {
			if i%100 == 0 {
				want, werr := os.ReadFile("/proc/thread-self/mountinfo")
				got, err := ReadThread()
				if err != nil || werr != nil || string(got) != string(want) {
					t.Errorf("after %d mounts: %d bytes, want %d: %v %v", i, len(got), len(want), err, werr)
				}
			}
			if err := unix.Mount("none", dir, "tmpfs", 0, "size=4k"); err != nil {
				return fmt.Errorf("mount: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if own, err := Read(); err != nil || len(own) == 0 {
		t.Error(len(own), err)
	}
}
