package policy

import (
	"slices"
	"strings"
	"testing"
)

func values(list []Text) string {
	var out []string
	for _, t := range list {
		out = append(out, t.Value)
	}
	return strings.Join(out, " ")
}

// Toolchains add up, beginning with those of PATH; "none" takes away what came
// before it, and is no entry beside others.
func TestToolchains(t *testing.T) {
	for _, c := range []struct{ first, second, want string }{
		{"", "", "auto"},
		{"auto", "", "auto"},
		{"none", "", "none"},
		{"[]", "", "auto"},
		{"[/opt/a]", "", "auto /opt/a"},
		{"[none, /opt/a]", "", "/opt/a"},
		{`["!auto", ./bin]`, "", "/p/bin"},
		{"[/opt/a]", "none", "none"},
		{"none", "[/opt/b]", "/opt/b"},
		{"none", "auto", "auto"},
		{`["!auto"]`, "", ""},
	} {
		files := []*File{}
		for _, text := range []string{c.first, c.second} {
			if text != "" {
				files = append(files, mustParse(t, "/p/a.yaml", "  filesystem: {toolchains: "+text+"}\n"))
			}
		}
		p := merge(t, files...)
		if got := values(p.Toolchains); got != c.want {
			t.Errorf("%s, then %s: %s, want %s", c.first, c.second, got, c.want)
		}
		_, found := p.AutoToolchains()
		if found != strings.Contains(c.want, "auto") || slices.ContainsFunc(p.ToolchainDirs(), func(d Text) bool { return d.Value[0] != '/' }) {
			t.Errorf("%s: auto %v, directories %v", c.want, found, p.ToolchainDirs())
		}
	}
	var shown []string
	for _, c := range merge(t, mustParse(t, "/p/a.yaml", `  filesystem: {toolchains: ["!auto"]}`+"\n")).Clauses() {
		if c.Key == "filesystem.toolchains" {
			shown = append(shown, c.Value)
		}
	}
	if !slices.Equal(shown, []string{"none"}) {
		t.Errorf("shown as %q", shown)
	}
}

// What is found lies where the ceiling lets a policy point, unless the ceiling
// speaks of toolchains and caches itself.
func TestBoundFound(t *testing.T) {
	for _, c := range []struct {
		ceiling, toolchains, roots, caches string
		anywhere                           bool // both
	}{
		{"  process: {max_memory_mb: none}\n", "auto", "", "", true},
		{"  filesystem: {toolchains: none}\n", "none", "", "", true},
		{"  filesystem: {read_only_mounts: [/a], cow_mounts: [/b]}\n", "auto", "/a /b", "/b", false},
		{"  filesystem: {read_only_mounts: [], cow_mounts: []}\n", "auto", "", "", false},
		{"  filesystem: {read_only_mounts: [], toolchains: auto, cow_mounts: [], caches: [auto]}\n", "auto", "", "", true},
	} {
		p := merge(t)
		p.Workspace.Path = ""
		if err := p.Bound(mustCeiling(t, c.ceiling)); err != nil {
			t.Fatal(err)
		}
		if values(p.Toolchains) != c.toolchains || strings.Join(p.ToolchainRoots, " ") != c.roots || strings.Join(p.CacheRoots, " ") != c.caches ||
			(p.ToolchainRoots == nil) != c.anywhere || (p.CacheRoots == nil) != c.anywhere {
			t.Errorf("%s: %s, below %q, caches below %q", c.ceiling, values(p.Toolchains), p.ToolchainRoots, p.CacheRoots)
		}
	}
	p := merge(t)
	if err := p.Bound(mustCeiling(t, "  filesystem: {toolchains: none}\n")); err != nil || p.Toolchains[0].Source.File != CeilingFile {
		t.Errorf("%+v, %v", p.Toolchains, err)
	}
	p = merge(t, mustFlags(t, Flag{"toolchains", "/opt/x"}, Flag{"cache", "npm"}))
	if err := p.Bound(mustCeiling(t, "  filesystem: {toolchains: [/opt/x], caches: [auto]}\n")); err != nil || values(p.Toolchains) != "/opt/x" {
		t.Errorf("%s, %v", values(p.Toolchains), err)
	}
}
