package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestStarter(t *testing.T) {
	got := string(Starter())
	testenv.Golden(t, "starter.golden", []byte(got))
	// As it is, it grants what no file grants.
	p := merge(t, Defaults(Context{Cwd: "/w"}), mustParseFile(t, "/w/p.yaml", got))
	if p.Workspace.Path != "/w" || p.Workspace.Mode != "cow" || len(p.Gaps()) != 0 {
		t.Errorf("%+v, gaps %v", p.Workspace, p.Gaps())
	}
	// With every sign taken away it is a policy of all keys and their defaults.
	lines := strings.SplitAfter(got, "\n")
	for i, l := range lines[strings.Count(starterHead, "\n"):] {
		lines[i+strings.Count(starterHead, "\n")] = strings.TrimPrefix(l, "#")
	}
	all := mustParseFile(t, "/w/p.yaml", strings.Join(lines, ""))
	for _, k := range schema() {
		if !all.has(k.name) && k.name != "secrets" {
			t.Errorf("%s is not in it", k.name)
		}
	}
	if err := validates(t, resolved(t), strings.Join(lines, "")); err != nil {
		t.Error(err)
	}
	base := merge(t, Defaults(Context{Cwd: "/w", MemTotal: 8 << 30}))
	same := merge(t, Defaults(Context{Cwd: "/w", MemTotal: 8 << 30}), all)
	values := func(p *Policy) (out []string) {
		for _, c := range p.Clauses() {
			if c.Key != "process.user" {
				out = append(out, c.Key+"="+c.Value)
			}
		}
		return out
	}
	if d := cmp.Diff(values(base), values(same)); d != "" {
		t.Errorf("it is not the defaults, -defaults +starter:\n%s", d)
	}
}

func mustParseFile(t *testing.T, name, src string) *File {
	t.Helper()
	f, err := Parse(name, []byte(src))
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return f
}
