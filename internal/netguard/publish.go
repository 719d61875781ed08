package netguard

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// publish makes a port of the host's loopback lead to the same port inside. The
// process has no privilege, so privileged ports are out of its reach.
func (s *server) publish(port uint16) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
	if err != nil {
		return fmt.Errorf("network.publish: %w", err)
	}
	go func() {
		<-s.ctx.Done()
		l.Close()
	}()
	go func() {
		for {
			c, err := l.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(acceptPause)
				continue
			}
			s.coming.Add(1) // a server inside may answer and end before all is set up
			if !s.work(func() { defer s.coming.Add(-1); s.admitCaller(c, port) }) {
				reset(c)
				s.coming.Add(-1)
			}
		}
	}()
	return nil
}

// admitCaller relays a connection from outside: what the peer sends goes in.
func (s *server) admitCaller(c *net.TCPConn, port uint16) {
	started := time.Now()
	peer := addrPort(c.RemoteAddr())
	e := Event{Kind: KindConnect, Published: true, Proto: "tcp", Asked: netip.AddrPortFrom(addrPort(c.LocalAddr()).Addr(), port), Addr: peer}
	uid, err := ownerOf(peer, e.Asked)
	if err != nil || uid != s.cfg.CallerUID && uid != 0 {
		s.deny(c, e)
		return
	}
	if e.Limit = s.admit(); e.Limit != "" {
		s.deny(c, e)
		return
	}
	inside, err := s.connectInside(port)
	if err != nil {
		reset(c)
		s.open.Add(-1)
		s.failed(&e, err)
		return
	}
	s.relay(newConnection(inside, c, &e, started))
}

// maxInside bounds the connects inside that are waited for at once.
const maxInside = 64

// insideLimit bounds a connect inside: a server whose backlog is full does not answer.
var insideLimit = unix.Timeval{Sec: 10}

// connectInside connects a socket of the namespace, which the supervisor made
// since this process is not in it, and asks for another.
func (s *server) connectInside(port uint16) (*net.TCPConn, error) {
	var fd int
	s.inside <- struct{}{} // each blocks a thread, of which the process has so many
	defer func() { <-s.inside }()
	select {
	case fd = <-s.sockets:
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	s.events.emit(Event{Kind: KindSocket})
	f := os.NewFile(uintptr(fd), "inside")
	defer f.Close()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &insideLimit); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// ownerOf returns the uid of the socket that is connected from a to b. Both ends
// count: sockets of several users may share a local address.
func ownerOf(a, b netip.AddrPort) (int, error) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			continue // no IPv6
		}
		uid, err := ownerIn(f, a, b)
		f.Close()
		if err == nil {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("nobody owns %v", a)
}

// ownerIn reads lines of proc_net_tcp: the second column is the local address, the
// third the peer's, the eighth the uid, the tenth the inode. A socket that was
// closed lives on without an inode, and then its uid is shown as 0: nobody's.
func ownerIn(r io.Reader, a, b netip.AddrPort) (int, error) {
	lines := bufio.NewScanner(io.LimitReader(r, 16<<20))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[9] == "0" {
			continue
		}
		from, err := parseProcAddr(f[1])
		to, err2 := parseProcAddr(f[2])
		if err == nil && err2 == nil && from == a && to == b {
			return strconv.Atoi(f[7])
		}
	}
	return 0, io.ErrUnexpectedEOF
}

// parseProcAddr reads ADDRESS:PORT in hexadecimal, the address as 32-bit words
// in host order: little endian on every architecture that we have.
func parseProcAddr(s string) (netip.AddrPort, error) {
	text, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(text)
	if err != nil || !ok || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("no address: %q", s)
	}
	for i := 0; i < len(b); i += 4 {
		b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
	}
	a, _ := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), err
}
