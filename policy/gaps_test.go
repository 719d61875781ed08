package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clauses returns the keys of the gaps.
func gapKeys(p *Policy) []string {
	var keys []string
	for _, g := range p.Gaps() {
		keys = append(keys, g.Clause)
	}
	return keys
}

func TestGaps(t *testing.T) {
	for _, c := range []struct {
		body string
		want string
	}{
		{"  runtime: microvm\n", "runtime"},
		{"  runtime: process\n", ""},
		{"  secrets: [act]\n", ""},
		{"  secrets: none\n", ""},
		{"  filesystem: {workspace: {mode: cow}}\n", ""},
		{"  filesystem: {workspace: {mode: rw}}\n", ""},
		{"  filesystem: {cow_mounts: [/a]}\n", ""},
		{"  filesystem: {toolchains: auto}\n", ""},
		{"  filesystem: {toolchains: none}\n", ""},
		{"  filesystem: {persistence: keep}\n", ""},
		{"  filesystem: {commit: ask}\n", ""},
		{"  filesystem: {commit: success}\n", ""},
		{"  filesystem: {commit: never}\n", ""},
		{"  filesystem: {protect: [a]}\n", ""},
		{"  filesystem: {protect: [a], workspace: {mode: rw}}\n", ""},
		{"  filesystem: {protect: [a, \"*.key\"], workspace: {mode: rw}}\n", "filesystem.protect"},
		{"  filesystem: {max_output_bytes: 1G, max_files: 5}\n", ""},
		{"  filesystem: {max_output_bytes: none, max_files: none, workspace: {mode: rw}}\n", ""},
		{"  filesystem: {max_output_bytes: 1G, max_files: 5, workspace: {mode: rw}}\n", "filesystem.max_files"},
		{"  filesystem: {max_output_bytes: 1G, writable_mounts: [/a]}\n", ""},
		{"  filesystem: {max_file_bytes: 1G, writable_mounts: [/a]}\n", ""},
		{"  network: {egress: allowlist}\n", ""},
		{"  network: {egress: allowlist, allowlist: [\"a.b:1\"]}\n", ""},
		{"  network: {allow_private: [10.0.0.0/8]}\n", ""},
		{"  network: {resolve: {a.b: 10.0.0.1}}\n", ""},
		{"  network: {unix: [/a]}\n", ""},
		{"  network: {publish: [80]}\n", ""},
		{"  network: {listen: deny}\n", ""},
		{"  network: {max_connections: 5, max_egress_bytes: 5}\n", ""},
		{"  network: {max_connections: none, max_egress_bytes: none}\n", ""},
		{"  trace: {on_loss: throttle}\n", ""},
		{"  trace: {on_loss: kill, audit: off, syscalls: false, files: changes, max_bytes: 5M}\n", ""},
		{"  output: {terminal: raw}\n", ""},
		{"  unsafe: [host-network]\n", "unsafe.host-network"},
		{"  unsafe: [credential-env, docker-socket, ssh-agent, dbus, broad-mount]\n", ""},
	} {
		p := merge(t, mustParse(t, "/p/a.yaml", c.body))
		if diff := cmp.Diff(c.want, strings.Join(gapKeys(p), " ")); diff != "" {
			t.Errorf("%s(-want +got):\n%s", c.body, diff)
		}
		for _, g := range p.Gaps() {
			if g.Source.File != "/p/a.yaml" || g.Missing == "" || g.Remedy == "" {
				t.Errorf("incomplete gap %+v", g)
			}
			accepting := merge(t, mustParse(t, "/p/a.yaml", c.body))
			accepting.AllowGaps = []Text{{Value: g.Clause}}
			if p.AcceptsGap(g.Clause) || accepting.AcceptsGap(g.Clause) == g.Final {
				t.Errorf("acceptance of %s", g.Clause)
			}
		}
	}
}

// What was written for an isolation envelope elsewhere works here as written,
// but for the microVM and the exact limit on a real directory.
func TestSeedPolicy(t *testing.T) {
	src := inputs(t, "valid")["testdata/valid/seed.yaml"]
	p, err := load("seed.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"runtime"}, gapKeys(p)); diff != "" {
		t.Error(diff)
	}
	if p.MaxCPU.N != 30e9 || p.MaxMemory.N != 512<<20 || p.MaxWall.N != 45e9 || p.MaxTasks.N != 4 || p.MaxOutputBytes.N != 50000000 {
		t.Errorf("limits: %+v", p)
	}
	if p.Workspace.Path != "" || len(p.Secrets) != 0 || p.Egress.Value != "deny" || !p.PassesEnv("PYTHONUNBUFFERED") || p.PassesEnv("HOME") {
		t.Errorf("grants: %+v", p)
	}
}
