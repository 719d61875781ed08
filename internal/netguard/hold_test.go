package netguard

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// heard tells the holder of a connection to the rig, as a raw socket would.
func (r *rig) heard(from *net.TCPAddr) pair {
	r.t.Helper()
	p, ok := parseSYN(synPacket(from.String(), r.front.Addr().String(), 0))
	if !ok {
		r.t.Fatal("no SYN")
	}
	r.s.holder.begin(p)
	return p.pair
}

// ready waits until the connection outside is there.
func (r *rig) ready(key pair) {
	r.t.Helper()
	for range 1000 {
		r.s.holder.mu.Lock()
		w := r.s.holder.held[key]
		done := w != nil && w.out != nil
		r.s.holder.mu.Unlock()
		if done {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Fatal("not connected outside")
}

func freeAddr(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr)
}

// What is accepted goes on with the connection that was made for it, once,
// however often its SYN was repeated.
func TestHeldConnection(t *testing.T) {
	r := newRig(t, nil)
	from := freeAddr(t)
	key := r.heard(from)
	r.ready(key)
	r.heard(from)
	c, err := net.DialTCP("tcp4", from, r.front.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := r.back.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustWrite(t, c, "x")
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := r.back.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if extra, err := r.back.AcceptTCP(); err == nil {
		extra.Close()
		t.Error("dialled twice")
	}
	r.s.holder.mu.Lock()
	defer r.s.holder.mu.Unlock()
	if n := len(r.s.holder.held); n != 0 {
		t.Errorf("%d are held", n)
	}
}

// A command that goes away, and a run that ends, leave no connection behind.
func TestHeldForNobody(t *testing.T) {
	r := newRig(t, nil)
	key := r.heard(freeAddr(t))
	r.ready(key)
	r.s.holder.mu.Lock()
	w := r.s.holder.held[key]
	r.s.holder.mu.Unlock()
	if !w.timer.Stop() {
		t.Fatal("the timer ran")
	}
	r.s.holder.giveUp(key, w) // as it would
	r.ready(r.heard(freeAddr(t)))
	r.s.end()
	list := r.ended(2)
	if list[0].End != EndReset || list[1].End != EndRun || r.s.open.Load() != 0 {
		t.Errorf("%+v, %d open", list, r.s.open.Load())
	}
	for range 2 {
		s, err := r.back.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Error("still open")
		}
		s.Close()
	}
}

// One that timed out is not dialled again while its SYN comes again; one that failed is.
func TestHeldAfterFailure(t *testing.T) {
	for _, c := range []struct {
		err   error
		dials int
	}{{unix.ETIMEDOUT, 1}, {unix.ECONNREFUSED, 3}} {
		r := newRig(t, nil)
		dials := make(chan bool, 10)
		r.s.dialer.dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) {
			dials <- true
			return nil, c.err
		}
		from := freeAddr(t)
		for range 3 {
			r.heard(from)
			r.s.wait.Wait()
		}
		if len(dials) != c.dials {
			t.Errorf("%v: dialled %d times", c.err, len(dials))
		}
	}
}

// What is not allowed is told of and counts for nothing, but for loopback: there
// the command's own servers are.
func TestHeldNotAllowed(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxConnections = 1 })
	for _, at := range []string{"198.18.0.99:443", "192.0.2.1:443", "127.0.0.2:9"} {
		p, ok := parseSYN(synPacket("127.0.0.1:40000", at, 0))
		if !ok {
			t.Fatal(at)
		}
		r.s.holder.begin(p)
	}
	r.ready(r.heard(freeAddr(t)))
	r.heard(freeAddr(t)) // one too many
	list := r.ended(3)
	if len(list) != 3 || list[0].Asked.String() != "198.18.0.99:443" || list[1].Limit != "" || list[2].Limit != LimitConnections {
		t.Errorf("%+v", list)
	}
	for _, e := range list {
		if e.Kind != KindDeny || !e.Denied {
			t.Errorf("%+v", e)
		}
	}
}
