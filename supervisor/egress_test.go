package supervisor

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

func TestPlanEgress(t *testing.T) {
	in := fakeInput(policyOf(t, "allow=db.example.com:5432", "allow=*.example.org:443", "allow=udp://192.0.2.1:9", "allow=10.0.0.0/8:1-5",
		"resolve=db.example.com=10.1.2.3", "publish=8080"))
	in.host.Info.BPF, in.host.Info.BPFError = true, ""
	p, err := newPlan(in)
	must(t, err)
	e := p.Egress
	if e == nil || len(e.Table.Names) != 2 || len(e.Table.Nets) != 2 || e.Resolve["db.example.com"] != netip.MustParseAddr("10.1.2.3") || e.Publish[0] != 8080 {
		t.Fatalf("%+v", e)
	}
	if got := len(e.rules); got != 2*2+2 {
		t.Errorf("%d rules", got)
	}
	for _, c := range []struct {
		proto uint8
		to    string
		want  bool
	}{
		{unix.IPPROTO_UDP, "192.0.2.1:9", true},
		{unix.IPPROTO_UDP, "192.0.2.1:10", false},
		{unix.IPPROTO_TCP, "192.0.2.1:9", false},
		{unix.IPPROTO_TCP, "10.9.9.9:5", true},
		{unix.IPPROTO_TCP, "198.18.0.16:5432", true},
		{unix.IPPROTO_TCP, "198.18.0.16:443", false},
	} {
		if got := e.allows(c.proto, netip.MustParseAddrPort(c.to)); got != c.want {
			t.Errorf("%d %s: %v", c.proto, c.to, got)
		}
	}
	// The canary takes an address that is not allowed, and one that is nobody's.
	for _, want := range []string{"connect udp 198.51.100.1:9", "connect tcp 198.18.0.1:9"} {
		if !probes(p, want) {
			t.Errorf("the canary does not %s", want)
		}
	}
	var b bytes.Buffer
	must(t, p.WriteText(&b))
	for _, want := range []string{"egress     db.example.com tcp 5432 (inside: 198.18.0.16/32)\n", "egress     10.0.0.0/8 tcp 1-5", "publish    127.0.0.1:8080 "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	plain, err := newPlan(fakeInput(policyOf(t)))
	must(t, err)
	if plain.Egress != nil || probes(plain, "connect tcp 198.18.0.1:9") {
		t.Error("a run without an allowlist has something of it")
	}
}

// probes reports whether the canary makes a call.
func probes(p *Plan, call string) bool {
	return slices.ContainsFunc(p.Canary, func(c Probe) bool { return c.Call == call })
}

// Without BPF every address and port has a socket, and one layer is missing.
func TestEgressWithoutBPF(t *testing.T) {
	plan := func(allow ...string) (*Plan, error) {
		in := fakeInput(policyOf(t, append(allow, "allow-gap=record")...))
		in.host.Info.BPF, in.host.Info.BPFError = false, "no BTF"
		return newPlan(in)
	}
	for _, ok := range []string{"allow=a.example:1", "publish=8080", "allow=10.0.0.0/26:1-5", "allow=*.a.example:443"} {
		p, err := plan(ok)
		must(t, err)
		if !p.Egress.PerAddress || !slices.Contains(p.Thin, "network: network namespace only (no cgroup BPF)") {
			t.Errorf("%s: %+v, thin %q", ok, p.Egress, p.Thin)
		}
	}
	for _, wide := range []string{"allow=a.example:1-65535", "allow=10.0.0.0/16:1", "allow=2001:db8::/64:1"} {
		if _, err := plan(wide); refusal(t, err).Clause != "network.allowlist" {
			t.Errorf("%s: %v", wide, err)
		}
	}
}

// A published port that leads in to where the allowlist leads out again is refused.
func TestPublishedPortIsNotAllowed(t *testing.T) {
	for allow, ok := range map[string]bool{
		"127.0.0.1:8080": false, "localhost:8000-9000": false, "127.0.0.0/8:8080": false,
		"127.0.0.1:8081": true, "127.0.0.2:8080": true, "udp://127.0.0.1:8080": true, "[::1]:8080": true, "a.example:8080": true,
	} {
		_, err := newPlan(fakeInput(policyOf(t, "allow="+allow, "publish=8080")))
		if ok {
			must(t, err)
		} else if refusal(t, err).Clause != "network.publish" {
			t.Errorf("%s: %v", allow, err)
		}
	}
}

// Nobody dials as root.
func TestDialIdentity(t *testing.T) {
	if got := dialIdentity(Caller{UID: 0, Groups: []int{0, 4}}); got.UID != dialUID || got.GID != dialUID || len(got.Groups) != 0 {
		t.Errorf("%+v", got)
	}
	if got := dialIdentity(Caller{UID: 1000, GID: 1001, Groups: []int{27}}); got.UID != 1000 || got.GID != 1001 || len(got.Groups) != 1 {
		t.Errorf("%+v", got)
	}
}

// What the dialling process says is counted and recorded within bounds,
// whatever it says.
func TestNetworkEvents(t *testing.T) {
	var out bytes.Buffer
	r := &recorder{w: trace.NewWriter(&out, trace.Options{Wall: time.Now()})}
	plan := &Egress{ClauseSource: "flag --allow"}
	var d destinations
	at := netip.MustParseAddrPort("198.18.0.16:443")
	for _, e := range []netguard.Event{
		{Kind: netguard.KindDNS, Name: []byte("a.example"), Asked: netip.AddrPortFrom(at.Addr(), 0)},
		{Kind: netguard.KindDNS, Name: []byte("a.example")}, // of a type that it has not
		{Kind: netguard.KindDNS, Name: []byte("b.example\x1b["), Denied: true, Count: 3},
		{Kind: netguard.KindConnect, Name: []byte("a.example"), Proto: "tcp", Asked: at, Sent: 5, Received: 7, End: netguard.EndClosed},
		{Kind: netguard.KindConnect, Name: []byte("a.example"), Proto: "tcp", Asked: at, End: netguard.EndFailed, Errno: int(unix.ECONNREFUSED), Text: "connection refused"},
		{Kind: netguard.KindDeny, Proto: "tcp", Asked: at, Denied: true, Limit: netguard.LimitConnections},
		{Kind: netguard.KindDeny, Proto: "tcp", Asked: at, Denied: true, Limit: "of its own making"},
		{Kind: "nonsense"},
	} {
		d.add(&e)
		r.network(&e, plan)
	}
	for i := range 1000 {
		d.add(&netguard.Event{Kind: netguard.KindConnect, Proto: "tcp", Name: []byte{byte(i), byte(i >> 8)}, Asked: at})
	}
	if list := d.list(); len(list) != maxDestinations+1 || list[0] != (runs.Destination{Host: "a.example", Port: 443, Proto: "tcp", Connections: 2, Failed: 1, Error: "connection refused", Sent: 5, Received: 7}) {
		t.Errorf("%d destinations, first %+v", len(list), list[0])
	}
	if len(d.limits) != 1 || r.denied.total != 5 || string(r.names[at.Addr()]) != "a.example" {
		t.Errorf("limits %v, %d denials, names %q", d.limits, r.denied.total, r.names)
	}
	if len(r.names) != 1 { // else each socket without an address would have the name
		t.Errorf("names %q", r.names)
	}
	if strings.ContainsRune(out.String(), 0x1b) {
		t.Error("an escape sequence is written raw")
	}
}
