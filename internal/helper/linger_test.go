package helper

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering is a TCP socket whose last close takes a minute: it has sent what nobody reads.
func lingering(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetNonblock(fd, true), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	return fd
}

// A caller that is refused may have sent descriptors whose last close takes as long as the caller
// likes. The listener closes them unread, and waits for none.
func TestRefuseLingers(t *testing.T) {
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	l := NewListener(socket, nil, nil)
	for range 3 {
		c, err := net.DialUnix("unix", nil, socket.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fd := lingering(t)
		if _, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err == nil {
			err = unix.Close(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := socket.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		l.refuse(theirs, &Peer{}, errors.New("no"), false)
		if took := time.Since(begun); took > 30*time.Second { // of 60
			t.Fatalf("the listener waited %v", took)
		}
		if err := c.SetReadDeadline(begun.Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if f, err := Read(c); err != nil || f.Kind != Failed {
			t.Errorf("%v, %v", f, err)
		}
		if _, err := Read(c); err != io.EOF && !errors.Is(err, unix.ECONNRESET) { // and it is closed
			t.Error(err)
		}
	}
}
