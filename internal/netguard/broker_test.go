package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/reexec"
)

// brokerRig is a server with the process of the brokers played by the test.
type brokerRig struct {
	s      *server
	events func() []Event
	conn   *net.UnixConn
	come   chan message
}

type message struct {
	text string
	conn net.Conn
}

// newBrokerRig serves a broker; prepare sees the server before it does.
func newBrokerRig(t *testing.T, b Broker, change func(*Config), prepare ...func(*server)) *brokerRig {
	t.Helper()
	table, err := Compile([]Entry{
		{Proto: "tcp", Host: b.Name, Ports: Ports{BrokerPort, BrokerPort}, Broker: true},
		{Proto: "tcp", Host: "*.internal", Ports: Ports{443, 443}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &Config{MaxConnections: 100, MaxBytes: -1, Table: *table, Brokers: []Broker{b}}
	if change != nil {
		change(cfg)
	}
	r := &brokerRig{come: make(chan message, 10)}
	r.s, r.events = newTestServer(t, cfg)
	for _, p := range prepare {
		p(r.s)
	}
	ours, theirs, err := reexec.Pair()
	if err != nil {
		t.Fatal(err)
	}
	r.conn = ours
	if err := r.s.useBrokers(theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	go func() {
		_ = reexec.Receive(ours, func(text string, fds []int) error {
			m := message{text: text}
			for _, fd := range fds {
				f := os.NewFile(uintptr(fd), "conn")
				m.conn, _ = net.FileConn(f)
				f.Close()
			}
			r.come <- m
			return nil
		})
		close(r.come)
	}()
	t.Cleanup(func() { ours.Close(); r.s.end() })
	return r
}

func (r *brokerRig) next(t *testing.T) message {
	t.Helper()
	select {
	case m := <-r.come:
		return m
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		return message{}
	}
}

// A broker's name is an address of its own, which no wildcard widens; others of
// its domain do not exist.
func TestBrokerNames(t *testing.T) {
	r := newBrokerRig(t, Broker{Name: "model.broker.internal", Host: "api.example", Port: 443}, nil)
	i, ok, err := r.s.dir.index("model.broker.internal")
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for port, want := range map[uint16]bool{80: true, 443: false, 8080: false} {
		if d, ok := r.s.dir.find("tcp", netip.AddrPortFrom(synthetic4(i), port)); ok != want || !d.broker {
			t.Errorf("port %d: %v %+v", port, ok, d)
		}
	}
	for _, name := range []string{"other.broker.internal", "x.model.broker.internal"} {
		if _, ok, _ := r.s.dir.index(name); ok {
			t.Errorf("%s exists", name)
		}
	}
	if _, ok, _ := r.s.dir.index("db.internal"); !ok {
		t.Error("the wildcard has lost its other names")
	}
}

// A connection is handed over as it is, and one to the upstream is relayed, with the run's limits.
func TestBrokerConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := addrPort(l.Addr())
	r := newBrokerRig(t, Broker{Name: "model.broker.internal", Host: "api.example", Port: at.Port(), Resolve: at.Addr()}, func(c *Config) { c.MaxBytes = 10 })
	inside, theirs := tcpPair(t)
	r.s.handOver(theirs, destination{name: "model.broker.internal", port: 80, broker: true}, Event{Kind: KindConnect, Proto: "tcp"})
	m := r.next(t)
	if m.text != "conn model.broker.internal" || m.conn == nil {
		t.Fatalf("%+v", m)
	}
	_, _ = io.WriteString(m.conn, "hello")
	m.conn.Close()
	if b, err := io.ReadAll(inside); err != nil || string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}

	_, _ = io.WriteString(r.conn, "dial 7 model.broker.internal")
	out, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if m = r.next(t); m.text != "dialled 7" || m.conn == nil {
		t.Fatalf("%+v", m)
	}
	_, _ = io.WriteString(m.conn, "0123456789")
	buf := make([]byte, 10)
	if _, err := io.ReadFull(out, buf); err != nil || string(buf) != "0123456789" {
		t.Errorf("%q %v", buf, err)
	}
	_, _ = io.WriteString(m.conn, "x") // over max_egress_bytes
	if _, err := m.conn.Read(buf); err == nil {
		t.Error("the connection goes on")
	}
	e := waitFor(t, r.events, func(e Event) bool { return e.End == EndLimit })
	if string(e.Name) != "api.example" || e.Broker != "model.broker.internal" || e.Sent != 10 || e.Addr != at {
		t.Errorf("%+v", e)
	}
	_, _ = io.WriteString(r.conn, "dial 8 model.broker.internal")
	if m = r.next(t); m.text != "failed 8 max_egress_bytes is reached" {
		t.Errorf("%+v", m)
	}
}

// An upstream whose name leads to the host or its networks is not reached, the
// second time either, and what the run's policy says of names is not for it.
func TestBrokerRebinding(t *testing.T) {
	for name, c := range map[string]struct {
		b       Broker
		answers []string
	}{
		"loopback":         {Broker{}, []string{"127.0.0.1"}},
		"metadata":         {Broker{}, []string{"169.254.169.254", "::ffff:10.0.0.1"}},
		"another private":  {Broker{Private: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}, []string{"10.2.0.1"}},
		"the policy's own": {Broker{}, []string{"192.168.0.1"}},
	} {
		c.b.Name, c.b.Host, c.b.Port = "model.broker.internal", "api.example", 443
		var dials atomic.Int64
		r := newBrokerRig(t, c.b, func(cfg *Config) {
			cfg.PrivateNames = []string{"api.example"}
			cfg.Resolve = map[string]netip.Addr{"api.example": netip.MustParseAddr("203.0.113.66")}
		}, func(s *server) {
			d := s.brokers.by[c.b.Name].dialer
			d.lookup = func(context.Context, string) ([]netip.Addr, error) {
				var out []netip.Addr
				for _, a := range c.answers {
					out = append(out, netip.MustParseAddr(a))
				}
				return out, nil
			}
			d.dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) {
				dials.Add(1)
				return nil, errors.New("dialled")
			}
		})
		_, _ = io.WriteString(r.conn, "dial 1 model.broker.internal")
		if m := r.next(t); !strings.HasPrefix(m.text, "failed 1 it resolves to private") || dials.Load() != 0 {
			t.Errorf("%s: %+v, %d dials", name, m, dials.Load())
		}
		waitFor(t, r.events, func(e Event) bool { return e.Denied && e.End == EndRefused })
	}
}

// A process that asks for what is no broker is not served any more.
func TestBrokerProcessGoneWrong(t *testing.T) {
	r := newBrokerRig(t, Broker{Name: "model.broker.internal", Host: "api.example", Port: 443}, nil)
	_, _ = io.WriteString(r.conn, "dial 1 evil.example")
	if m, ok := <-r.come; ok {
		t.Errorf("%+v", m)
	}
}

func tcpPair(t *testing.T) (inside, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

func waitFor(t *testing.T, events func() []Event, fits func(Event) bool) Event {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, e := range events() {
			if fits(e) {
				return e
			}
		}
	}
	t.Fatalf("no such event in %+v", events())
	return Event{}
}
