package netguard

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A namespace's connections are not paced, whatever the host's are.
func TestUnpaced(t *testing.T) {
	const name = "/proc/sys/net/ipv4/tcp_congestion_control"
	testenv.Root(t)
	host, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var inside []byte
	if err = apart(func() (err error) {
		unpaced()
		inside, err = os.ReadFile(name)
		return err
	}); err != nil || strings.TrimSpace(string(inside)) != "reno" {
		t.Errorf("%q, %v", inside, err)
	}
	if after, err := os.ReadFile(name); err != nil || string(after) != string(host) {
		t.Errorf("the host's is %q, %v", after, err)
	}
}

// apart calls fn in a network namespace of its own, on a thread that ends with it:
// not the main thread, which would stay there, and be what /proc/self tells of.
func apart(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- apart(fn)
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}
