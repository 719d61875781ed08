package supervisor

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/trace"
)

// A connect whose name is told after it has it in the record all the same, and
// one whose name never comes is there without.
func TestConnectBeforeItsNameIsTold(t *testing.T) {
	var b bytes.Buffer
	plan := recordPlan()
	plan.Egress = &Egress{ClauseSource: "p.yaml:3:1"}
	r := &recorder{plan: plan, w: trace.NewWriter(&b, trace.Options{})}
	at := func(addr string, time uint64) *bpf.Event {
		e := socketEvent(bpf.HookConnect, false)
		e.Socket.Addr, e.Time = netip.MustParseAddr(addr), time
		return &e
	}
	const named, nobodys = "198.18.7.7", "198.18.9.9"
	must(t, r.event(at(nobodys, 5)), r.event(at(named, 6)), r.event(at("192.0.2.1", 7)))
	r.network(&netguard.Event{Kind: netguard.KindDNS, Name: []byte("a.example.org"), Asked: netip.AddrPortFrom(netip.MustParseAddr(named), 0)}, plan.Egress)
	must(t, r.event(at("192.0.2.1", 2*nameTimeout)))
	r.flushAll()
	must(t, r.w.Flush())
	want := []struct{ addr, name, remedy string }{
		{"192.0.2.1", "", "--allow 192.0.2.1:443"},
		{named, "a.example.org", ""}, // the dns record
		{named, "a.example.org", "--allow a.example.org:443"},
		{nobodys, "", ""},
		{"192.0.2.1", "", "--allow 192.0.2.1:443"},
	}
	list := readBack(t, &b)
	if len(list) != len(want) {
		t.Fatalf("%d records: %+v", len(list), list)
	}
	for i, w := range want {
		if e := &list[i]; e.Addr.String() != w.addr || string(e.Name) != w.name || e.Remedy != w.remedy {
			t.Errorf("%d: %s %q %q, want %+v", i, e.Addr, e.Name, e.Remedy, w)
		}
	}
	if r.denied.total != 4 {
		t.Errorf("%d denials", r.denied.total)
	}
}
