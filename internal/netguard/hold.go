package netguard

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A connection inside is answered only when the one outside is there, so that
// connect(2) fails as it would without a relay. The listener's filter drops the
// first packet (SYN) of each connection, and a raw socket hears it:
//
//	command: SYN --> dropped; heard --> dial --> connected: the same SYN, marked --> listener --> accept
//	                                         --> failed:    RST or ICMP error     --> command: ECONNREFUSED, ...
//
// The mark is what the listener's filter lets through; to set it takes a
// privilege in the namespace that the command has not. A SYN that comes again
// while the destination is dialled is one that the command's kernel repeats.

const (
	acceptLimit = 20 * time.Second  // for the handshake inside, once outside is connected
	silentFor   = 140 * time.Second // a connection that timed out is not dialled again: longer than tcp(7)'s own limit with its defaults
	maxHeld     = 1 << 15
	maxSYN      = 2048 // bytes; with data (RFC 7413) it has at most the path's MSS, the rest comes again
)

// holder is the connections that wait for their destination.
type holder struct {
	s    *server
	mu   sync.Mutex
	held map[pair]*waiting
}

// waiting is one of them: being dialled while out is nil.
type waiting struct {
	started time.Time
	e       Event
	out     *net.TCPConn
	timer   *time.Timer // ends it
}

func newHolder(s *server) *holder { return &holder{s: s, held: map[pair]*waiting{}} }

// serve reads the first packets of connections with read.
func (h *holder) serve(read func(buf []byte) (int, error)) {
	buf := make([]byte, maxSYN)
	for {
		n, err := read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		if p, ok := parseSYN(buf[:n]); ok {
			h.begin(p)
		}
	}
}

// readSegment reads from a raw socket of IPv6, which gives what follows the IP
// header and tells the addresses beside it, and puts a header before it.
func readSegment(f *os.File) func(buf []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(unix.SizeofInet6Pktinfo))
	return func(buf []byte) (n int, err error) {
		rc, err := f.SyscallConn()
		if err != nil {
			return 0, err
		}
		var oobn int
		var from unix.Sockaddr
		rerr := rc.Read(func(fd uintptr) bool {
			n, oobn, _, from, err = unix.Recvmsg(int(fd), buf[ip6Header:], oob, 0)
			return err != unix.EAGAIN
		})
		if rerr != nil { // as in next
			return 0, os.ErrClosed
		}
		if err != nil {
			return 0, err
		}
		src, ok := from.(*unix.SockaddrInet6)
		dst, told := sentTo6(oob[:oobn])
		if !ok || !told {
			return 0, nil
		}
		packet := buf[:ip6Header+n]
		clear(packet[:ip6Header])
		header6(packet, unix.IPPROTO_TCP, netip.AddrFrom16(src.Addr), dst)
		return len(packet), nil
	}
}

// sentTo6 finds the address that a packet was sent to (ipv6(7), IPV6_PKTINFO: a
// struct in6_pktinfo).
func sentTo6(oob []byte) (netip.Addr, bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			return netip.AddrFrom16([16]byte(m.Data)), true
		}
	}
	return netip.Addr{}, false
}

// begin judges a connection, and dials for one that is new.
func (h *holder) begin(p syn) {
	s := h.s
	dest, ok := s.dir.find("tcp", p.to)
	if !ok && p.to.Addr().IsLoopback() { // a server of the command's own
		return
	}
	if ok && dest.broker { // there is nothing to wait for
		s.inject(p.again(), p.to.Addr())
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.held[p.pair]; w != nil {
		if w.out != nil { // the one that was sent on was lost
			s.inject(p.again(), p.to.Addr())
		}
		return
	}
	e := Event{Kind: KindConnect, Name: []byte(dest.name), Proto: "tcp", Asked: p.to}
	if ok && len(h.held) < maxHeld {
		e.Limit = s.admit()
	} else if ok {
		e.Limit = LimitConnections
	}
	if !ok || e.Limit != "" {
		e.Kind, e.Denied = KindDeny, true
		s.events.emit(e)
		s.inject(p.reset(), p.from.Addr())
		return
	}
	w := &waiting{started: time.Now(), e: e}
	h.held[p.pair] = w
	if !s.work(func() { h.dial(p, w, dest) }) {
		s.open.Add(-1)
		delete(h.held, p.pair)
	}
}

// dial connects outside and lets the handshake inside go on, or fail.
func (h *holder) dial(p syn, w *waiting, dest destination) {
	s := h.s
	out, to, err := s.dialer.connect(s.ctx, "tcp", dest)
	w.e.Addr, w.e.Via = to.addr, to.via
	if err != nil {
		s.open.Add(-1)
		w.e.Duration = time.Since(w.started)
		s.failed(&w.e, err)
		h.refuse(p, w, err)
		return
	}
	h.mu.Lock()
	w.out = out.(*net.TCPConn)
	w.timer = time.AfterFunc(acceptLimit, func() { h.giveUp(p.pair, w) })
	h.mu.Unlock()
	s.inject(p.again(), p.to.Addr())
}

// refuse tells the command why, in its own terms. Of a time-out there is no
// packet: its kernel finds out by itself.
func (h *holder) refuse(p syn, w *waiting, err error) {
	errno := connectErrno(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if errno == unix.ETIMEDOUT {
		w.timer = time.AfterFunc(silentFor, func() { h.forget(p.pair, w) })
		return
	}
	delete(h.held, p.pair)
	if errno == unix.ECONNREFUSED {
		h.s.inject(p.reset(), p.from.Addr())
	} else {
		h.s.inject(p.unreachable(errno), p.from.Addr())
	}
}

// connectErrno is what connect(2) of the command fails with. What was refused
// here is refused there, and a name that leads nowhere is a host that cannot be reached.
func connectErrno(err error) unix.Errno {
	var sys unix.Errno
	var no refusal
	switch {
	case errors.Is(err, errPrivate), errors.Is(err, errWide), errors.Is(err, errInside):
		return unix.ECONNREFUSED
	case errors.As(err, &no):
		if no >= 500 {
			return unix.EHOSTUNREACH
		}
		return unix.ECONNREFUSED
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return unix.ETIMEDOUT
	case !errors.As(err, &sys):
		return unix.EHOSTUNREACH
	}
	switch sys {
	case unix.ENETUNREACH, unix.ETIMEDOUT:
		return sys
	case unix.ECONNREFUSED, unix.EACCES, unix.EPERM, unix.ECONNRESET:
		return unix.ECONNREFUSED
	}
	return unix.EHOSTUNREACH
}

// take returns what an accepted connection waited for.
func (h *holder) take(key pair) *waiting {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.held[key]
	if w == nil || w.out == nil || !w.timer.Stop() {
		return nil
	}
	delete(h.held, key)
	return w
}

// giveUp ends a connection whose command went away while it was dialled.
func (h *holder) giveUp(key pair, w *waiting) {
	h.forget(key, w)
	reset(w.out)
	h.s.open.Add(-1)
	w.e.End, w.e.Duration = cmp.Or(w.e.End, EndReset), time.Since(w.started)
	h.s.events.emit(w.e)
}

func (h *holder) forget(key pair, w *waiting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[key] == w {
		delete(h.held, key)
	}
}

// end gives up what waits, when no more can come.
func (h *holder) end() {
	h.mu.Lock()
	list := h.held
	h.held = map[pair]*waiting{}
	h.mu.Unlock()
	for key, w := range list {
		if w.timer != nil && w.timer.Stop() && w.out != nil {
			w.e.End = EndRun
			h.giveUp(key, w)
		}
	}
}

// useRaw keeps the socket that sends whole packets of a family.
func (s *server) useRaw(role Role, file *os.File) error {
	f, err := duplicate(file)
	if err != nil {
		return err
	}
	if role == Raw4 {
		s.raw[0].Store(f)
	} else {
		s.raw[1].Store(f)
	}
	return nil
}

func (s *server) useSYN(role Role, file *os.File) error {
	f, err := duplicate(file)
	if err != nil {
		return err
	}
	read := f.Read
	if role == SYN6 {
		read = readSegment(f)
	}
	go s.holder.serve(read)
	return nil
}

// duplicate keeps a socket whose own file is closed by its owner.
func duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // Fd has undone it
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// inject sends a packet into the namespace.
func (s *server) inject(packet []byte, to netip.Addr) {
	raw := s.raw[familyIndex(to)].Load()
	if raw == nil {
		return
	}
	var sa unix.Sockaddr
	if to.Is4() {
		sa = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		sa = &unix.SockaddrInet6{Addr: to.As16()}
	}
	rc, err := raw.SyscallConn()
	if err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Sendto(int(fd), packet, 0, sa) }) // lost, as on a network
	}
}
