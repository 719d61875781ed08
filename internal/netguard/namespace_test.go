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
	done := make(chan error)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		unpaced()
		var err error
		inside, err = os.ReadFile(name)
		done <- err
	}()
	err = <-done
	if err != nil || strings.TrimSpace(string(inside)) != "reno" {
		t.Errorf("%q, %v", inside, err)
	}
	if after, err := os.ReadFile(name); err != nil || string(after) != string(host) {
		t.Errorf("the host's is %q, %v", after, err)
	}
}
