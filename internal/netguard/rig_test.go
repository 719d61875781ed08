package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newTestServer makes a server whose events are kept.
func newTestServer(t testing.TB, cfg *Config) (*server, func() []Event) {
	t.Helper()
	var mu sync.Mutex
	var list []Event
	s := newServer(cfg, newReporter(func(b []byte) error {
		e, err := parseEvent(b)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		list = append(list, e)
		mu.Unlock()
		return nil
	}))
	return s, func() []Event {
		mu.Lock()
		defer mu.Unlock()
		return append([]Event(nil), list...)
	}
}

// rig is a relay on loopback: what connects to it is led to back.
type rig struct {
	t      testing.TB
	s      *server
	events func() []Event
	front  *net.TCPListener
	back   *net.TCPListener
}

func newRig(t testing.TB, change func(*Config), serve ...func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t}
	for _, l := range []**net.TCPListener{&r.front, &r.back} {
		var err error
		if *l, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*l).Close() })
	}
	cfg := &Config{MaxConnections: 1 << 20, MaxBytes: -1}
	port := uint16(r.front.Addr().(*net.TCPAddr).Port)
	table, err := Compile([]Entry{{Proto: "tcp", Prefix: netip.MustParsePrefix("127.0.0.1/32"), Ports: Ports{port, port}}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Table = *table
	if change != nil {
		change(cfg)
	}
	r.s, r.events = newTestServer(t, cfg)
	r.s.dialer.dial = func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, r.back.Addr().String())
	}
	if len(serve) > 0 {
		serve[0](r)
	} else {
		r.accepts()
	}
	t.Cleanup(r.s.end)
	return r
}

// accepts begins to serve.
func (r *rig) accepts() {
	r.t.Helper()
	r.t.Cleanup(serves(r.t, r.s, r.front))
}

// serves begins to serve a listener, and returns what ends that.
func serves(t testing.TB, s *server, l *net.TCPListener) (end func()) {
	t.Helper()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	s.serve(f)
	return func() { f.Close() }
}

// pair connects through the relay.
func (r *rig) pair() (client, server *net.TCPConn) {
	r.t.Helper()
	c, err := net.DialTCP("tcp4", nil, r.front.Addr().(*net.TCPAddr))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.back.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	s, err := r.back.AcceptTCP()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, k := range []*net.TCPConn{c, s} {
		if err := k.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { k.Close() })
	}
	return c, s
}

// isReset connects and is reset, at once or at the first read.
func (r *rig) isReset() {
	r.t.Helper()
	c, err := net.DialTCP("tcp4", nil, r.front.Addr().(*net.TCPAddr))
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, unix.ECONNRESET) {
		r.t.Errorf("not reset: %v", err)
	}
}

// ended waits for the event of a connection.
func (r *rig) ended(n int) []Event {
	r.t.Helper()
	for range 1000 {
		if list := r.events(); len(list) >= n {
			return list
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Fatalf("%d events of %d: %+v", len(r.events()), n, r.events())
	return nil
}

func mustWrite(t testing.TB, w io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
}
