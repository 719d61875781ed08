package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	acts["reach"] = actReach
}

// actReach tries each "KIND ADDR:PORT" and reports its errno: tcp, udp (sendto),
// connected (udp) and send (after connecting). A first argument "nest=DIR" puts
// it into a cgroup two levels below DIR before.
func actReach(args []string) error {
	if dir, ok := strings.CutPrefix(args[0], "nest="); ok {
		deep := filepath.Join(dir, "nest", "deep")
		if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(deep+"/cgroup.procs", []byte("0"), 0)); err != nil {
			return err
		}
		args = args[1:]
	}
	for _, a := range args {
		kind, at, _ := strings.Cut(a, " ")
		fmt.Printf("%s %d\n", strings.ReplaceAll(a, " ", ","), errnoOf(reach(kind, netip.MustParseAddrPort(at))))
	}
	return nil
}

func errnoOf(err error) int {
	var e unix.Errno
	errors.As(err, &e)
	return int(e)
}

func reach(kind string, to netip.AddrPort) error {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	typ := unix.SOCK_DGRAM
	if kind == "tcp" {
		typ = unix.SOCK_STREAM
	}
	s, err := unix.Socket(family, typ, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	switch kind {
	case "udp":
		return unix.Sendto(s, []byte("x"), 0, sa)
	case "send":
		if err := unix.Connect(s, sa); err != nil {
			return err
		}
		return unix.Send(s, []byte("x"), 0)
	}
	return unix.Connect(s, sa)
}

func rule(proto uint8, prefix string, ports ...uint16) Rule {
	r := Rule{Proto: proto, Prefix: netip.MustParsePrefix(prefix)}
	for i := 0; i < len(ports); i += 2 {
		r.Ports = append(r.Ports, PortRange{ports[i], ports[i+1]})
	}
	return r
}

var testRules = []Rule{
	rule(unix.IPPROTO_TCP, "198.18.0.16/32", 443, 443, 8000, 8010),
	rule(unix.IPPROTO_TCP, "fd53:6167:7264::10/128", 443, 443),
	rule(unix.IPPROTO_TCP, "10.0.0.0/8", 1, 1),
	rule(unix.IPPROTO_TCP, "10.1.0.0/16", 1, 2),
	rule(unix.IPPROTO_UDP, "192.0.2.1/32", 123, 123),
	rule(unix.IPPROTO_TCP, "2001:db8::/32", 1, 65535),
}

// What the rules have goes past the programs (the namespace has no route:
// ENETUNREACH), everything else is EPERM; the same in cgroups below the run's.
func TestRules(t *testing.T) {
	pass, refuse := int(unix.ENETUNREACH), int(unix.EPERM)
	want := map[string]int{
		"tcp 198.18.0.16:443": pass, "tcp 198.18.0.16:8005": pass, "tcp 198.18.0.16:8011": refuse, "tcp 198.18.0.16:80": refuse, "tcp 198.18.0.17:443": refuse,
		"tcp [::ffff:198.18.0.16]:443": pass, "tcp [::ffff:198.18.0.16]:80": refuse, "udp [::ffff:198.18.0.16]:443": refuse,
		"udp 198.18.0.16:443": refuse, "send 198.18.0.16:443": pass, // connect sends nothing, and fails here for want of a route
		"tcp [fd53:6167:7264::10]:443": pass, "tcp [fd53:6167:7264::10]:80": refuse, "tcp [fd53:6167:7264::11]:443": refuse, "udp [fd53:6167:7264::10]:443": refuse,
		"tcp 10.2.3.4:1": pass, "tcp 10.2.3.4:2": refuse, "tcp 10.1.3.4:2": pass, "tcp 10.1.3.4:3": refuse, "udp 10.1.3.4:1": refuse, "connected 10.1.3.4:1": refuse,
		"udp 192.0.2.1:123": pass, "connected 192.0.2.1:123": pass, "udp 192.0.2.1:124": refuse, "tcp 192.0.2.1:123": refuse, "udp 192.0.2.2:123": refuse,
		"tcp [2001:db8:ffff::1]:65535": pass, "tcp [2001:db9::1]:1": refuse, "tcp [64:ff9b::c612:10]:443": refuse, "tcp 11.0.0.1:1": refuse,
	}
	h := sharedHost(t)
	p := h.open()
	rec := h.start(p, RunConfig{Egress: true})
	if err := rec.run.Allow(testRules); err != nil {
		t.Fatal(err)
	}
	other := h.start(p, RunConfig{Egress: true}) // a run beside it gets nothing of that
	none := h.start(p, RunConfig{})              // nor one without an allowlist, not even a connect that sends nothing
	var args []string
	for a := range want {
		args = append(args, a)
	}
	slices.Sort(args)
	for _, c := range []struct {
		name string
		rec  *recorder
		args []string
	}{{"run", rec, args}, {"nested", rec, append([]string{"nest=" + rec.leaf.Name()}, args...)}, {"other", other, args}, {"none", none, args}} {
		got := c.rec.lines(t, "reach", c.args...)
		for _, a := range args {
			expect := want[a]
			if c.rec != rec && (c.rec == none || !strings.HasPrefix(a, "send ")) {
				expect = refuse
			}
			errno := got[strings.ReplaceAll(a, " ", ",")]
			if errno == int(unix.EADDRNOTAVAIL) { // what IPv6 says without a route
				errno = pass
			}
			if errno != expect {
				t.Errorf("%s: %s: errno %d, want %d", c.name, a, errno, expect)
			}
		}
	}
	for _, sub := range []string{"nest/deep", "nest"} {
		if err := removeCgroup(filepath.Join(rec.leaf.Name(), sub)); err != nil {
			t.Error(err)
		}
	}
	if n := h.rules(p); n != len(testRules) {
		t.Errorf("%d rules are in the map, want %d", n, len(testRules))
	}
	for _, r := range []*recorder{rec, other, none} {
		r.finish(t)
	}
	if n := h.rules(p); n != 0 {
		t.Errorf("%d rules are left in the map", n)
	}
}

// rules counts what is in the map of rules.
func (h *host) rules(p *Programs) int {
	h.t.Helper()
	m, err := p.openRules()
	if err != nil {
		h.t.Fatal(err)
	}
	defer m.Close()
	var k ruleKey
	var v ruleValue
	n := 0
	for e := m.Iterate(); e.Next(&k, &v); {
		n++
	}
	return n
}

func TestRulesAreChecked(t *testing.T) {
	many := Rule{Proto: unix.IPPROTO_TCP, Prefix: netip.MustParsePrefix("10.0.0.0/8"), Ports: make([]PortRange, MaxRanges+1)}
	for _, r := range []Rule{many, {Prefix: netip.MustParsePrefix("10.0.0.1/8")}, {}} {
		if _, err := r.value(); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// What a rule does not use holds no port, 0 included.
func TestUnusedRanges(t *testing.T) {
	r := Rule{Proto: unix.IPPROTO_TCP, Prefix: netip.MustParsePrefix("10.0.0.0/8"), Ports: []PortRange{{0, 1}, {65535, 65535}}}
	v, err := r.value()
	if err != nil || v.Port[0] != r.Ports[0] || v.Port[1] != r.Ports[1] {
		t.Fatalf("%+v, %v", v, err)
	}
	for _, p := range v.Port[2:] {
		if p.Low <= p.High {
			t.Errorf("%+v", v)
		}
	}
}

// The edge leads what is allowed to its sockets, leaves loopback alone, and
// refuses the rest, also where a server of the run's own listens everywhere.
func TestEdge(t *testing.T) {
	require(t)
	done := make(chan struct{})
	go func() { // its thread is lost with it
		defer close(done)
		runtime.LockOSThread()
		inOwnNetwork(t)
	}()
	<-done
}

func inOwnNetwork(t *testing.T) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Error(err)
		return
	}
	for _, args := range []string{"link set lo up", "addr add 198.18.0.1/15 dev lo", "addr add fd53:6167:7264::1/128 dev lo nodad", "route add local fd53:6167:7264::/64 dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v %s", args, err, out)
			return
		}
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
		return
	}
	defer ns.Close()
	own, err := net.Listen("tcp", "[::]:8000") // both families, every address
	if err != nil {
		t.Error(err)
		return
	}
	defer own.Close()
	var sockets EdgeSockets
	for network, to := range map[string]**os.File{"tcp4": &sockets.TCP4, "tcp6": &sockets.TCP6} {
		l := listenPlain(t, network)
		if l == nil {
			return
		}
		defer l.Close()
		*to, _ = l.File()
		defer (*to).Close()
		go answer(l, "edge")
	}
	go answer(own, "own")
	before := dial("198.18.0.99:8000")
	e, err := NewEdge([]Rule{
		rule(unix.IPPROTO_TCP, "198.18.0.16/32", 443, 443, 8000, 8000), rule(unix.IPPROTO_TCP, "fd53:6167:7264::10/128", 443, 443),
		rule(unix.IPPROTO_TCP, "127.0.0.9/32", 8000, 8000),
	})
	if err == nil {
		err = e.Attach(ns, sockets)
	}
	if err != nil {
		t.Error(err)
		return
	}
	for at, want := range map[string]string{
		"198.18.0.16:443": "edge", "198.18.0.16:8000": "edge", "[fd53:6167:7264::10]:443": "edge", "127.0.0.9:8000": "edge",
		"198.18.0.16:444": "refused", "198.18.0.99:8000": "refused", "[fd53:6167:7264::11]:8000": "refused", "[fd53:6167:7264::10]:8000": "refused",
		"127.0.0.1:8000": "own", "[::1]:8000": "own",
	} {
		if got := dial(at); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if after := dial("198.18.0.99:8000"); before != "own" || after != "own" {
		t.Errorf("without the edge: %s before, %s after", before, after)
	}
}

// listenPlain listens without MPTCP, which a socket map does not take.
func listenPlain(t *testing.T, network string) *net.TCPListener {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	at := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
	l, err := lc.Listen(t.Context(), network, at)
	if err != nil {
		t.Error(err)
		return nil
	}
	return l.(*net.TCPListener)
}

func answer(l net.Listener, who string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(who))
		c.Close()
	}
}

// dial says who answered. Its socket is of the calling thread's namespace.
func dial(at string) string {
	to := netip.MustParseAddrPort(at)
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	s, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(s)
	limit := unix.NsecToTimeval(int64(time.Minute)) // only ends a hang
	_ = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	switch err := unix.Connect(s, sa); err {
	case nil:
	case unix.ECONNREFUSED:
		return "refused"
	default:
		return err.Error()
	}
	b := make([]byte, 16)
	n, err := unix.Read(s, b)
	if err != nil {
		return "read: " + err.Error()
	}
	return string(b[:n])
}

// BenchmarkRules is what an allowlist costs a start, beside the program itself.
func BenchmarkRules(b *testing.B) {
	require(b)
	for _, n := range []int{1, 100, 10000} {
		var rules []Rule
		for i := range n {
			rules = append(rules, rule(unix.IPPROTO_TCP, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()+"/32", 443, 443))
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				e, err := NewEdge(rules)
				if err != nil {
					b.Fatal(err)
				}
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
