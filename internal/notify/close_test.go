package notify_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
)

// Serve may fail, and is followed by Close then; who stops it later writes into no descriptor
// that has the number of one that was closed.
func TestStopAfterClose(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	l, err := notify.New(f, notify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var others []int
	for range 8 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		others = append(others, fd)
	}
	if err := l.Stop(); err != nil {
		t.Error(err)
	}
	for _, fd := range others {
		if n, err := unix.Read(fd, make([]byte, 8)); err != unix.EAGAIN {
			t.Errorf("descriptor %d was written: %d, %v", fd, n, err)
		}
	}
}
