package netguard

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// The calls that the scheduler is not told of return at once also on a socket that
// blocks, and a peer that is gone is an error and no signal.
func TestNowNeverWaits(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	b := make([]byte, bufferSize)
	if n, err := receiveNow(fds[0], b); n != 0 || err != unix.EAGAIN {
		t.Errorf("nothing there: %d %v", n, err)
	}
	if n, err := receiveNow(fds[0], nil); n != 0 || err != unix.EAGAIN && err != nil {
		t.Errorf("nothing wanted: %d %v", n, err)
	}
	sent := 0
	for {
		n, err := sendNow(fds[0], bytes.Repeat([]byte("x"), bufferSize))
		if sent += n; err == unix.EAGAIN {
			break
		} else if err != nil || n == 0 {
			t.Fatalf("%d %v", n, err)
		}
	}
	got := 0
	for got < sent {
		n, err := receiveNow(fds[1], b)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes of %d, then %d %v", got, sent, n, err)
		}
		got += n
	}
	unix.Close(fds[1])
	if n, err := sendNow(fds[0], b); n != 0 || err != unix.EPIPE {
		t.Errorf("the peer is gone: %d %v", n, err)
	}
	if n, err := receiveNow(fds[0], b); n != 0 || err != nil {
		t.Errorf("the end: %d %v", n, err)
	}
	if _, err := receiveNow(-1, b); err != unix.EBADF {
		t.Error(err)
	}
}
