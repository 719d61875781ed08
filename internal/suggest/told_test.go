package suggest

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/trace"
)

// What led a name to an address, and the host's loopback into a run, is needed again: without it the
// same command fails under the policy that is suggested for it.
func TestRelayed(t *testing.T) {
	p := &Plan{Egress: Egress{
		Resolve:      map[string]netip.Addr{"db.test": netip.MustParseAddr("10.1.2.3"), "idle.test": netip.MustParseAddr("10.1.2.4")},
		PrivateNames: []string{"*.corp.test", "idle.test"},
		PrivateNets:  []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.8.0.0/16")},
	}}
	to := func(name, addr string, port uint16) *trace.Event {
		return &trace.Event{Kind: trace.KindConnect, Proto: "tcp", Name: []byte(name), Addr: netip.MustParseAddr(addr), Port: port, End: "closed", Verdict: trace.VerdictAllow}
	}
	in, failed := to("", "127.0.0.1", 8080), to("idle.test", "10.1.2.4", 1)
	in.Text, failed.Errno, failed.End = "network.publish: from outside, to the published port", 111, "failed"
	asked := to("db.test", "198.18.0.16", 5432) // by the command, as getaddrinfo(3) does
	asked.Proto, asked.End = "udp", ""
	n := New(host, false)
	if _, err := n.Add(p, record(t, asked, to("db.test", "10.1.2.3", 5432), to("a.corp.test.", "10.9.1.1", 443), to("", "127.0.0.1", 8181), in, failed)); err != nil {
		t.Fatal(err)
	}
	want := `# it
sandbox:
  filesystem:
    read_only_mounts: []
  network:
    egress: allowlist
    allowlist:
      - "127.0.0.1:8181"
      - "a.corp.test:443"
      - "db.test:5432"
    allow_private:
      - "*.corp.test"
      - "10.1.2.3"
      - "10.9.0.0/16"
    resolve:
      "db.test": "10.1.2.3"
    publish: [8080]
`
	if d := cmp.Diff(want, string(n.YAML("it"))); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if q := mustMerge(t, n.YAML("it")); len(q.Allow) != 3 || len(q.Resolve) != 1 || len(q.Publish) != 1 {
		t.Errorf("%+v", q)
	}
}

// A record that tells of no files does not make what a run had of them smaller.
func TestUntold(t *testing.T) {
	p := &Plan{View: []Entry{
		{Op: "bind", At: "/usr", From: "/usr", Access: "ro", Clause: "default"},
		{Op: "cow", At: "/w", From: "/w", Access: "rw", Clause: "filesystem.workspace (default)"},
		{Op: "path", At: "/data", From: "/data", Access: "ro", Clause: "filesystem.read_only_mounts (flag --ro)"},
		{Op: "bind", At: "/out", From: "/out", Access: "rw", Clause: "filesystem.writable_mounts (flag --rw)"},
		{Op: "cow", At: "/h/.npm", From: "/h/.npm", Access: "rw", Clause: "filesystem.caches (flag --cache)", Cache: "npm"},
		{Op: "bind", At: "/opt/x", From: "/opt/x", Access: "ro", Clause: "filesystem.toolchains (flag --toolchains)"},
		{Op: "bind", At: "/opt/y", From: "/opt/y", Access: "ro", Clause: "filesystem.toolchains (default)"},
	}}
	for tier, want := range map[string]string{"notify": `# it
# the record tells of no files: what the run had of them is all here
sandbox:
  filesystem:
    workspace:
      path: "/w"
      mode: cow # changes are staged; rw writes in place
    read_only_mounts:
      - "/data"
    writable_mounts:
      - "/out"
    toolchains:
      - "/opt/x"
    caches:
      - "npm"
`, "tracepoints": `# it
sandbox:
  filesystem:
    workspace:
      path: "/w"
      mode: ro
`} {
		n := New(host, false)
		if _, err := n.Add(p, record(t, &trace.Event{Kind: trace.KindStart, Phase: trace.PhaseEnvelope, Tier: tier})); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, string(n.YAML("it"))); d != "" {
			t.Errorf("%s: -want +got:\n%s", tier, d)
		}
	}
}
