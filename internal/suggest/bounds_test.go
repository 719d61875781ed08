package suggest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/trace"
)

// A record with more paths than are kept gets no path in without being judged,
// and what was refused at a cloud's metadata address is not suggested.
func TestHostileRecord(t *testing.T) {
	n := New(func(string) string { return "a file" }, false)
	for i := range maxPaths {
		n.missed(fmt.Sprintf("/data/%d", i), "r")
	}
	for _, p := range []string{"/home/u/.ssh/id_rsa", "/", "/data/one-more"} {
		n.missed(p, "r")
		if _, in := n.paths[p]; in {
			t.Errorf("%s is suggested", p)
		}
	}
	n.missed("/data/7", "w")
	if !n.paths["/data/7"] || len(n.paths) != maxPaths {
		t.Errorf("%d paths, of which one is written: %v", len(n.paths), n.paths["/data/7"])
	}
	e := refused(&trace.Event{Kind: trace.KindConnect, Addr: netip.MustParseAddr("169.254.169.254"), Port: 80}, 13)
	e.Phase = trace.PhaseCommand
	n.connect(&Plan{}, e)
	if left := strings.Join(n.Left(), "\n"); len(n.hosts) > 0 || !strings.Contains(left, "169.254.169.254:80") || !strings.Contains(left, "beyond the first") {
		t.Errorf("%v\n%s", n.hosts, left)
	}
}
