package netguard

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// socket is an accepted connection. It is no net.TCPConn, which would set four
// options for each to find a dead peer: this one's is in the same kernel.
type socket struct{ *os.File }

// CloseWrite ends what is sent: shutdown(2).
func (s socket) CloseWrite() error {
	rc, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Control(func(fd uintptr) { serr = os.NewSyscallError("shutdown", unix.Shutdown(int(fd), unix.SHUT_WR)) })
	return errors.Join(err, serr)
}

// serve begins to accept what the namespace's look-up program hands over: connections
// whose local address is where the command wanted to go.
func (s *server) serve(l *os.File) {
	s.mu.Lock()
	s.fronts = append(s.fronts, l)
	s.mu.Unlock()
	go s.acceptAll(l)
}

func (s *server) acceptAll(l *os.File) {
	for {
		c, ends, err := s.next(l)
		switch {
		case err == nil:
			s.arrived(c, ends)
		case errors.Is(err, os.ErrClosed):
			return
		case !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EINTR):
			time.Sleep(acceptPause)
		}
	}
}

// next accepts one connection, whose ends are the command's and where it wanted to go. It
// counts among those that are coming before it has left the queue: see passing.
func (s *server) next(l *os.File) (c socket, ends pair, err error) {
	rc, err := l.SyscallConn()
	if err != nil {
		return c, ends, err
	}
	var from unix.Sockaddr
	fd, aerr := -1, error(nil)
	err = rc.Read(func(lfd uintptr) bool {
		s.coming.Add(1)
		if fd, from, aerr = unix.Accept4(int(lfd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); aerr != nil {
			s.coming.Add(-1)
		}
		return aerr != unix.EAGAIN
	})
	if err != nil { // os has a word of its own for a file that was closed meanwhile, which it keeps
		return c, ends, os.ErrClosed
	}
	if aerr != nil {
		return c, ends, aerr
	}
	c = socket{os.NewFile(uintptr(fd), "inside")}
	to, err := unix.Getsockname(fd)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		s.coming.Add(-1)
		return c, ends, errors.Join(err, c.Close())
	}
	return c, pair{sockAddr(from), sockAddr(to)}, nil
}

// arrived judges a connection. One that waited for its destination is relayed at once, and another beside others.
func (s *server) arrived(c socket, ends pair) {
	if w := s.holder.take(ends); w != nil {
		defer s.coming.Add(-1)
		s.relay(newConnection(c, w.out, &w.e, w.started))
		return
	}
	if !s.work(func() {
		defer s.coming.Add(-1)
		s.accept(c, ends.to)
	}) {
		reset(c)
		s.coming.Add(-1)
	}
}

// accept judges one connection to asked and relays it.
func (s *server) accept(c socket, asked netip.AddrPort) {
	started := time.Now()
	dest, ok := s.dir.find("tcp", asked)
	e := Event{Kind: KindConnect, Name: []byte(dest.name), Proto: "tcp", Asked: asked}
	if !ok {
		s.deny(c, e)
		return
	}
	if dest.broker {
		s.handOver(c, dest, e)
		return
	}
	if e.Limit = s.admit(); e.Limit != "" {
		s.deny(c, e)
		return
	}
	out, to, err := s.dialer.connect(s.ctx, "tcp", dest)
	e.Addr, e.Via = to.addr, to.via
	if err != nil {
		reset(c)
		s.open.Add(-1)
		e.Duration = time.Since(started)
		s.failed(&e, err)
		return
	}
	s.relay(newConnection(c, out.(*net.TCPConn), &e, started))
}

// passing reports whether something of the command's may not have been passed on. A
// connection goes from a queue to those that are coming and from there to those
// that live, each before it leaves the other: looked at in this order, none is missed.
func (s *server) passing() bool {
	s.mu.Lock()
	fronts := s.fronts
	s.mu.Unlock()
	if slices.ContainsFunc(fronts, queued) || s.coming.Load() > 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.live {
		if c.ended.Load()&upEnded == 0 {
			return true
		}
	}
	return false
}

// queued reports whether a connection waits to be accepted.
func queued(l *os.File) (waits bool) {
	rc, err := l.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Control(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		waits = n > 0
	})
	return waits
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// sockAddr is the address of a socket; not valid for one that is neither IPv4 nor IPv6.
func sockAddr(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
