package netguard

import (
	"errors"
	"net"
	"net/netip"
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

// What the relay sends by a raw socket does not come back to it as a datagram of the command's.
func TestOwnDatagrams(t *testing.T) {
	testenv.Root(t)
	if err := apart(func() error {
		if err := loUp(); err != nil {
			return err
		}
		n := &Namespace{Sockets: map[Role]*os.File{}}
		defer n.Close()
		if err := errors.Join(n.raw(Raw4, "4"), n.packet(UDP4, "udp4", "127.0.0.1:0", wantDestination("4"))); err != nil {
			return err
		}
		fd := int(n.Sockets[UDP4].Fd())
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		from, to := netip.MustParseAddrPort("127.0.0.1:9"), sockAddr(sa)
		if err := unix.Sendto(int(n.Sockets[Raw4].Fd()), packet(from, to, []byte("ours")), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
			return err
		}
		c, err := net.Dial("udp4", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		mustWrite(t, c, "the command's")
		buf := make([]byte, 100)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
			return err
		}
		if k, _, err := unix.Recvfrom(fd, buf, 0); err != nil || string(buf[:k]) != "the command's" {
			t.Errorf("%q, %v", buf[:max(k, 0)], err)
		}
		if k, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Errorf("%q, %v", buf[:max(k, 0)], err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// loUp brings lo up in the thread's namespace.
func loUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
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
