package netguard

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// UDP. The look-up program hands every allowed datagram to one socket a family,
// which learns where it was sent to. Each pair of addresses is a flow with a
// socket of its own outside; the answers go back as whole packets by a raw
// socket, since they must come from the address that was asked.

const (
	maxFlows    = 512
	flowIdle    = 2 * time.Minute // as of DNS and QUIC; RFC 4787 asks for as much
	maxDatagram = 65507           // IPv4's; with 20 and 8 bytes of headers it is 65535
)

type flows struct {
	s    *server
	mu   sync.Mutex
	live map[flowKey]*flow
}

type flowKey struct{ from, to netip.AddrPort }

type flow struct {
	key     flowKey
	ready   chan struct{} // closed when out is there, or the flow has failed
	out     net.Conn
	sent    atomic.Uint64
	got     atomic.Uint64
	touched atomic.Int64
	limited atomic.Bool // a datagram was dropped since the run has sent all that it may
}

func newFlows(s *server) *flows { return &flows{s: s, live: map[flowKey]*flow{}} }

// serve reads the datagrams of the namespace.
func (f *flows) serve(c *net.UDPConn) {
	buf, oob := make([]byte, maxDatagram+1), make([]byte, 256)
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		to, ok := sentTo(oob[:oobn])
		if !ok || n > maxDatagram {
			continue
		}
		key := flowKey{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), to}
		if fl := f.find(key); fl != nil {
			f.forward(fl, buf[:n])
		}
	}
}

// sentTo finds the address that a datagram was sent to (ip(7),
// IP_RECVORIGDSTADDR: a struct sockaddr).
func sentTo(oob []byte) (netip.AddrPort, bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for _, m := range msgs {
		d := m.Data
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_ORIGDSTADDR && len(d) >= 8:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(d[4:8])), binary.BigEndian.Uint16(d[2:])), true
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_ORIGDSTADDR && len(d) >= 24:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(d[8:24])), binary.BigEndian.Uint16(d[2:])), true
		}
	}
	return netip.AddrPort{}, false
}

// find returns the flow of a pair of addresses, and begins one for a new pair;
// nil where the datagram is dropped.
func (f *flows) find(key flowKey) *flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.live[key]; fl != nil {
		return fl
	}
	s := f.s
	dest, ok := s.dir.find("udp", key.to)
	e := Event{Kind: KindDeny, Name: []byte(dest.name), Proto: "udp", Asked: key.to, Denied: true}
	if ok {
		e.Limit = s.admit()
	}
	if !ok || e.Limit != "" || len(f.live) >= maxFlows {
		if e.Limit == "" && ok {
			s.open.Add(-1)
			e.Limit = LimitConnections
		}
		s.events.emit(e)
		return nil
	}
	fl := &flow{key: key, ready: make(chan struct{})}
	fl.touched.Store(time.Now().UnixNano())
	if !s.work(func() { f.run(fl, dest) }) {
		s.open.Add(-1)
		return nil
	}
	f.live[key] = fl
	return fl
}

// forward sends one datagram out. Those that come before the destination is
// known are lost, as on a network.
func (f *flows) forward(fl *flow, b []byte) {
	select {
	case <-fl.ready:
	case <-time.After(firstWait):
		return
	}
	if fl.out == nil {
		return
	}
	if got := f.s.budget.take(len(b)); got < len(b) {
		f.s.budget.give(got)
		fl.limited.Store(true)
		return
	}
	fl.touched.Store(time.Now().UnixNano())
	if n, err := fl.out.Write(b); err == nil {
		fl.sent.Add(uint64(n))
	}
}

// firstWait is how long the first datagram of a flow waits for the name to be
// resolved; others behind it wait too.
const firstWait = 200 * time.Millisecond

// run is the outside half of a flow: it dials, and passes answers back.
func (f *flows) run(fl *flow, dest destination) {
	s := f.s
	started := time.Now()
	e := Event{Kind: KindConnect, Name: []byte(dest.name), Proto: "udp", Asked: fl.key.to}
	defer s.open.Add(-1)
	out, to, err := s.dialer.connect(s.ctx, "udp", dest)
	e.Addr, fl.out = to.addr, out
	close(fl.ready)
	if err != nil {
		e.Duration = time.Since(started)
		s.failed(&e, err)
		f.forget(fl)
		return
	}
	e.End = f.answers(fl)
	f.forget(fl)
	if fl.limited.Load() {
		e.End = EndLimit
	}
	out.Close()
	e.Sent, e.Received, e.Duration = fl.sent.Load(), fl.got.Load(), time.Since(started)
	s.events.emit(e)
}

func (f *flows) forget(fl *flow) {
	f.mu.Lock()
	delete(f.live, fl.key)
	f.mu.Unlock()
}

// answers passes datagrams back until the flow is idle or the run ends.
func (f *flows) answers(fl *flow) string {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-f.s.ctx.Done():
			_ = fl.out.SetReadDeadline(time.Unix(1, 0))
		case <-stop:
		}
	}()
	buf := make([]byte, maxDatagram)
	for {
		idle := time.Unix(0, fl.touched.Load()).Add(flowIdle)
		if time.Now().After(idle) {
			return EndIdle
		}
		_ = fl.out.SetReadDeadline(idle) // the error shows at the read
		if f.s.ctx.Err() != nil {
			return EndRun
		}
		n, err := fl.out.Read(buf)
		switch {
		case err == nil:
			fl.touched.Store(time.Now().UnixNano())
			fl.got.Add(uint64(n))
			f.reply(fl, buf[:n])
		case f.s.ctx.Err() != nil:
			return EndRun
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ECONNREFUSED): // refused once; the next may be answered
		default:
			return EndReset
		}
	}
}

// reply sends an answer into the namespace as a packet of its own.
func (f *flows) reply(fl *flow, payload []byte) {
	from, to := fl.key.to, fl.key.from
	if from.Addr().Is4() == to.Addr().Is4() {
		f.s.inject(packet(from, to, payload), to.Addr())
	}
}
