package policy

import "testing"

func TestSeedSmoke(t *testing.T) {
	f, err := Parse("/tmp/p.yaml", []byte(`# Example sandbox policy for a code-execution tool
sandbox:
  runtime: microvm
  filesystem:
    read_only_mounts: ["/workspace/input"]
    writable_mounts: ["/workspace/output"]
    max_output_bytes: 50000000
  network:
    egress: deny
    allowlist: []          # no exceptions for this tool
  process:
    max_cpu_seconds: 30
    max_memory_mb: 512
    max_wall_seconds: 45
    max_subprocesses: 4
  env:
    allowlist: ["LANG", "PYTHONUNBUFFERED"]
  secrets: none
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Merge(Defaults(Context{MemTotal: 8 << 30, Cwd: "/w"}), f)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Clauses() {
		t.Log(c.Key, c.Value, c.Source)
	}
	for _, g := range p.Gaps() {
		t.Log(g)
	}
}
