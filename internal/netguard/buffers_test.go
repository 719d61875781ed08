package netguard

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/reexec"
)

// stuckHalf is a direction whose destination takes nothing any more.
func stuckHalf(t *testing.T, p *pipePool) *half {
	t.Helper()
	h, in, _ := testHalf(t, p)
	rc, err := h.dst.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ferr error
	if err := rc.Control(func(fd uintptr) {
		ferr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
		for ferr == nil {
			_, ferr = sendNow(int(fd), make([]byte, 1024))
		}
	}); err != nil || ferr != unix.EAGAIN {
		t.Fatal(err, ferr)
	}
	if _, err := in.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	return h
}

// testHalf is a direction from in to out, over unix sockets.
func testHalf(t *testing.T, p *pipePool) (h *half, in, out duplex) {
	t.Helper()
	var ends [4]duplex
	for i := 0; i < 4; i += 2 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		for j, fd := range fds {
			c, err := reexec.Conn(os.NewFile(uintptr(fd), "end"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			ends[i+j] = c
		}
	}
	from, err1 := ends[1].SyscallConn()
	to, err2 := ends[2].SyscallConn()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	h = &half{}
	h.start(from, to, ends[2], p, nil, new(atomic.Int64))
	return h, ends[0], ends[3]
}

type duplex interface {
	stream
	io.ReadWriter
}

// What is held for peers that do not read has a bound, however many they are, and
// a direction that has only a small buffer moves every byte like others.
func TestBuffersAreBounded(t *testing.T) {
	p := &pipePool{}
	for range maxBuffers + 20 {
		h := stuckHalf(t, p)
		go func() { _ = h.run() }()
	}
	for begun := time.Now(); p.lent.Load() < maxBuffers; time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d buffers are held", p.lent.Load())
		}
	}
	if n := p.lent.Load(); n > maxBuffers {
		t.Errorf("%d buffers are held", n)
	}
	h, in, out := testHalf(t, p)
	go func() { _ = h.run() }()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	go func() { _, _ = in.Write(data); _ = in.CloseWrite() }()
	got, err := io.ReadAll(out)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes came, %v", len(got), len(data), err)
	}
}

// A listener that is closed ends what accepts from it.
func TestClosedListener(t *testing.T) {
	r := newRig(t, nil)
	f, err := r.front.File()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { r.s.acceptAll(f); close(done) }()
	f.Close()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it goes on")
	}
}
