package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeNet is a network in which only the addresses of up answer.
type fakeNet struct {
	mu    sync.Mutex
	tried []string
	up    map[string]time.Duration
}

func (f *fakeNet) dial(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
	f.mu.Lock()
	f.tried = append(f.tried, to.Addr().String())
	delay, ok := f.up[to.Addr().String()]
	f.mu.Unlock()
	if !ok {
		return nil, unix.ECONNREFUSED
	}
	select {
	case <-time.After(delay):
		a, b := net.Pipe()
		b.Close()
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func testDialer(t *testing.T, cfg *Config, f *fakeNet, answers func() []string) *dialer {
	t.Helper()
	d := newDialer(cfg, newDirectory(&cfg.Table))
	d.dial = f.dial
	d.lookup = func(context.Context, string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, s := range answers() {
			out = append(out, netip.MustParseAddr(s))
		}
		return out, nil
	}
	return d
}

func TestPrivateAddresses(t *testing.T) {
	table := compile(t, "tcp a.example 443", "tcp *.w.example 443", "tcp 10.1.0.0/16 443")
	for _, c := range []struct {
		name   string
		cfg    Config
		to     string
		addr   string
		wanted bool
	}{
		{"public", Config{}, "a.example", "203.0.114.1", true},
		{"metadata", Config{}, "a.example", "169.254.169.254", false},
		{"metadata, mapped", Config{}, "a.example", "::ffff:169.254.169.254", false},
		{"loopback", Config{}, "a.example", "127.0.0.1", false},
		{"private", Config{}, "a.example", "10.2.0.1", false},
		{"private, the address is allowed itself", Config{}, "a.example", "10.1.2.3", true},
		{"private, the name may", Config{PrivateNames: []string{"a.example"}}, "a.example", "10.2.0.1", true},
		{"private, another name may", Config{PrivateNames: []string{"b.example"}}, "a.example", "10.2.0.1", false},
		{"private, the wildcard may", Config{PrivateNames: []string{"*.w.example"}}, "x.y.w.example", "10.2.0.1", true},
		{"private, the range may", Config{PrivateNets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}}, "a.example", "10.2.0.1", true},
		{"pinned", Config{Resolve: map[string]netip.Addr{"a.example": netip.MustParseAddr("10.2.0.1")}}, "a.example", "203.0.114.1", false},
	} {
		c.cfg.Table = *table
		f := &fakeNet{up: map[string]time.Duration{netip.MustParseAddr(c.addr).Unmap().String(): 0}}
		d := testDialer(t, &c.cfg, f, func() []string { return []string{c.addr} })
		conn, _, err := d.connect(t.Context(), "tcp", destination{name: c.to, port: 443})
		if (err == nil) != c.wanted || err != nil && (!errors.Is(err, errPrivate) || len(f.tried) > 0) {
			t.Errorf("%s: %v, tried %q", c.name, err, f.tried)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// A name that no host can have goes to no resolver and to no proxy, wherever it comes from.
func TestDialOnlyHostNames(t *testing.T) {
	addr, asked := proxyServer(t, "HTTP/1.1 200 ok\r\n\r\n")
	for _, proxy := range []*Proxy{nil, {URL: "http://" + addr}} {
		for _, name := range []string{"::ffff:203.0.113.1%x.w.example", "2001:db8::1%x.w.example", "b.example:22/x.w.example", "b.example:22 http/1.1\r\n\r\n.w.example"} {
			cfg := &Config{Table: *compile(t, "tcp *.w.example 443"), Proxy: proxy}
			f := &fakeNet{}
			d := testDialer(t, cfg, f, func() []string { return []string{"203.0.113.1"} })
			if _, _, err := d.connect(t.Context(), "tcp", destination{name: name, port: 443}); !errors.Is(err, errName) {
				t.Errorf("%q, proxy %v: %v", name, proxy != nil, err)
			}
			if len(f.tried) > 0 || len(asked()) > 0 {
				t.Errorf("%q, proxy %v: dialled %q, asked %q", name, proxy != nil, f.tried, asked())
			}
		}
	}
}

// A name that leads to a public address of this host is refused as one that leads to loopback is.
func TestOwnAddresses(t *testing.T) {
	broken := errors.New("no netlink")
	answer, err := []net.Addr{&net.IPNet{IP: net.ParseIP("203.0.113.1"), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}}, error(nil)
	asked := 0
	own := &ownAddresses{list: func() ([]net.Addr, error) { asked++; return answer, err }}
	for _, c := range []struct {
		cfg    Config
		allow  string
		to     string
		wanted bool
	}{
		{Config{}, "tcp a.example 443", "203.0.113.1", false},
		{Config{}, "tcp a.example 443", "::ffff:203.0.113.1", false},
		{Config{}, "tcp a.example 443", "2001:db8::1", false},
		{Config{}, "tcp a.example 443", "203.0.113.2", true},
		{Config{PrivateNames: []string{"a.example"}}, "tcp a.example 443", "203.0.113.1", true},
		{Config{PrivateNets: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}}, "tcp a.example 443", "203.0.113.1", true},
		{Config{}, "tcp 203.0.113.1/32 443", "203.0.113.1", true},
		{Config{}, "tcp 203.0.113.0/24 443", "203.0.113.1", false},
	} {
		c.cfg.Table = *compile(t, c.allow)
		f := &fakeNet{up: map[string]time.Duration{netip.MustParseAddr(c.to).Unmap().String(): 0}}
		d := testDialer(t, &c.cfg, f, func() []string { return []string{c.to} })
		d.own = own.has
		conn, _, derr := d.connect(t.Context(), "tcp", destination{name: "a.example", port: 443})
		if (derr == nil) != c.wanted || derr != nil && (!errors.Is(derr, errPrivate) || len(f.tried) > 0) {
			t.Errorf("%s, to %s: %v, tried %q", c.allow, c.to, derr, f.tried)
		}
		if conn != nil {
			conn.Close()
		}
	}
	if asked != 1 {
		t.Errorf("listed %d times", asked)
	}
	own.until, answer, err = time.Time{}, nil, broken
	if !own.has(netip.MustParseAddr("203.0.113.1")) {
		t.Error("what was known is forgotten")
	}
	own.until, err = time.Time{}, nil
	if own.has(netip.MustParseAddr("203.0.113.1")) {
		t.Error("an address that the host has no more is its own")
	}
	if !newOwnAddresses().has(netip.MustParseAddr("127.0.0.1")) {
		t.Error("this host has no loopback")
	}
}

// A range that is wider than a special one does not mean its addresses.
func TestWideRanges(t *testing.T) {
	for _, c := range []struct {
		entry, to string
		wanted    bool
	}{
		{"tcp 169.0.0.0/8 80", "169.254.169.254", false},
		{"tcp 169.0.0.0/8 80", "169.1.1.1", true},
		{"tcp 169.254.0.0/16 80", "169.254.169.254", true},
		{"tcp 169.254.169.254/32 80", "169.254.169.254", true},
		{"tcp 168.0.0.0/8 80", "168.63.129.16", false},
		{"tcp 10.0.0.0/8 80", "10.1.1.1", true},
		{"tcp 172.0.0.0/8 80", "172.16.0.1", false},
		{"tcp 127.0.0.0/8 80", "127.0.0.1", true},
		{"tcp fc00::/16 80", "fc00::1", true},
		{"tcp 64:ff9b::/96 80", "64:ff9b::a9fe:a9fe", false},
		{"tcp 64:ff9b::a9fe:a9fe/128 80", "64:ff9b::a9fe:a9fe", true},
	} {
		to := netip.MustParseAddr(c.to)
		f := &fakeNet{up: map[string]time.Duration{c.to: 0}}
		d := testDialer(t, &Config{Table: *compile(t, c.entry)}, f, func() []string { return []string{c.to} })
		conn, _, err := d.connect(t.Context(), "tcp", destination{addr: to, port: 80})
		if (err == nil) != c.wanted || err != nil && (!errors.Is(err, errWide) || len(f.tried) > 0) {
			t.Errorf("%s, to %s: %v, tried %q", c.entry, c.to, err, f.tried)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// A name that turns to a private address between two connections gains nothing.
func TestRebinding(t *testing.T) {
	answers := [][]string{{"203.0.114.1"}, {"169.254.169.254"}, {"10.0.0.1", "203.0.114.1"}}
	f := &fakeNet{up: map[string]time.Duration{"203.0.114.1": 0, "169.254.169.254": 0, "10.0.0.1": 0}}
	cfg := &Config{Table: *compile(t, "tcp a.example 80")}
	i := 0
	d := testDialer(t, cfg, f, func() []string { i++; return answers[i-1] })
	for k, want := range []string{"203.0.114.1", "", "203.0.114.1"} {
		clear(d.fresh) // as if the answer were old
		c, to, err := d.connect(t.Context(), "tcp", destination{name: "a.example", port: 80})
		if want == "" {
			if !errors.Is(err, errPrivate) {
				t.Errorf("%d: %v", k, err)
			}
			continue
		}
		if err != nil || to.addr.Addr().String() != want {
			t.Fatalf("%d: %v %v", k, to, err)
		}
		c.Close()
	}
	if slices.ContainsFunc(f.tried, func(s string) bool { return s != "203.0.114.1" }) {
		t.Errorf("tried %q", f.tried)
	}
}

// In a bubble, whose clock stands still while anything can run: what is tried next
// depends on nobody's being slow.
func TestRace(t *testing.T) { synctest.Test(t, testRace) }

func testRace(t *testing.T) {
	cfg := &Config{Table: *compile(t, "tcp a.example 80")}
	dest := destination{name: "a.example", port: 80}
	var many []string
	for i := range 4000 {
		many = append(many, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}).String())
	}
	for _, c := range []struct {
		name    string
		answers []string
		up      map[string]time.Duration
		want    string
		tried   string
	}{
		{"the first", []string{"203.1.0.1", "203.1.0.2"}, map[string]time.Duration{"203.1.0.1": 0}, "203.1.0.1", "203.1.0.1"},
		{"families alternate", []string{"2606::1", "2606::2", "203.1.0.1"}, map[string]time.Duration{"2606::2": 0}, "2606::2", "2606::1 203.1.0.1 2606::2"},
		{"a slow one", []string{"2606::1", "203.1.0.1"}, map[string]time.Duration{"2606::1": time.Hour, "203.1.0.1": 0}, "203.1.0.1", "2606::1 203.1.0.1"},
		{"none", []string{"203.1.0.1", "203.1.0.2"}, nil, "", "203.1.0.1 203.1.0.2"},
		{"too many", many, nil, "", strings.Join(many[:maxTargets], " ")},
		{"one, often", []string{"203.1.0.1", "203.1.0.1", "203.1.0.1"}, nil, "", "203.1.0.1"},
	} {
		f := &fakeNet{up: c.up}
		d := testDialer(t, cfg, f, func() []string { return c.answers })
		conn, to, err := d.connect(t.Context(), "tcp", dest)
		if (err == nil) != (c.want != "") || err == nil && to.addr.Addr().String() != c.want {
			t.Errorf("%s: %v %v", c.name, to, err)
		}
		if conn != nil {
			conn.Close()
		}
		f.mu.Lock()
		if got := strings.Join(f.tried, " "); got != c.tried {
			t.Errorf("%s: tried %q, want %q", c.name, got, c.tried)
		}
		f.mu.Unlock()
	}
}

// Many connections at once ask the host once.
func TestLookOnce(t *testing.T) { synctest.Test(t, testLookOnce) }

func testLookOnce(t *testing.T) {
	f := &fakeNet{up: map[string]time.Duration{"203.1.0.1": 0}}
	cfg := &Config{Table: *compile(t, "tcp a.example 80")}
	var mu sync.Mutex
	asked := 0
	d := testDialer(t, cfg, f, func() []string {
		mu.Lock()
		asked++
		mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		return []string{"203.1.0.1"}
	})
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			c, _, err := d.connect(t.Context(), "tcp", destination{name: "a.example", port: 80})
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		})
	}
	wait.Wait()
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestReason(t *testing.T) {
	for _, c := range []struct {
		err   error
		errno int
		text  string
	}{
		{&net.OpError{Op: "dial", Err: unix.EHOSTUNREACH}, int(unix.EHOSTUNREACH), "no route to host"},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, 0, "the host does not find the name"},
		{&net.DNSError{Err: "server misbehaving"}, 0, "the host could not resolve the name: server misbehaving"},
		{context.DeadlineExceeded, int(unix.ETIMEDOUT), "connection timed out"},
	} {
		if errno, text := reason(c.err); errno != c.errno || text != c.text {
			t.Errorf("%v: %d %q", c.err, errno, text)
		}
	}
}

// A destination that does not answer holds up nothing but itself, and however
// many addresses a name has, a few are tried.
func TestSlowDestination(t *testing.T) {
	f := &fakeNet{up: map[string]time.Duration{"203.0.113.1": time.Hour, "203.0.113.2": 0}}
	d := testDialer(t, &Config{Table: *compile(t, "tcp a.example 80")}, f, nil)
	d.lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		if name == "slow.example" {
			return []netip.Addr{netip.MustParseAddr("203.0.113.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("203.0.113.2")}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for range 2 * maxDials {
		wait.Go(func() {
			if _, _, err := d.connect(ctx, "tcp", destination{name: "slow.example", port: 80}); err == nil {
				t.Error("connected")
			}
		})
	}
	for len(d.slots) < maxDialsTo {
		time.Sleep(time.Millisecond)
	}
	c, _, err := d.connect(t.Context(), "tcp", destination{name: "fast.example", port: 80})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if n := len(d.slots); n != maxDialsTo {
		t.Errorf("%d dials to one destination", n)
	}
	cancel()
	wait.Wait()
	if len(d.gates) != 0 {
		t.Errorf("%d gates are left", len(d.gates))
	}
}

func TestManyAddresses(t *testing.T) {
	f := &fakeNet{}
	d := testDialer(t, &Config{Table: *compile(t, "tcp a.example 80")}, f, func() []string {
		var out []string
		for i := range 4000 {
			out = append(out, fmt.Sprintf("10.0.%d.%d", i/256, i%256), fmt.Sprintf("203.0.%d.%d", i/256, i%256))
		}
		return out
	})
	if _, _, err := d.connect(t.Context(), "tcp", destination{name: "a.example", port: 80}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
	if len(f.tried) != maxTargets || slices.ContainsFunc(f.tried, func(s string) bool { return strings.HasPrefix(s, "10.") }) {
		t.Errorf("tried %q", f.tried)
	}
}
