package policy

import (
	"reflect"
	"testing"
)

// A policy that goes to another process as statements means there what it meant here.
func TestStatements(t *testing.T) {
	file, err := Parse("/srv/p/policy.yaml", []byte(`sandbox:
  filesystem:
    read_only_mounts: [data, "/opt/x:/y"]
    cow_mounts: []
    workspace: {path: src, mode: rw}
    max_output_bytes: 5M
    toolchains: none
  network: {allowlist: ["a.example.com:443", "10.0.0.0/8:1-9"], resolve: {a.example.com: 192.0.2.1}}
  process: {max_memory_mb: 100, max_wall_seconds: none}
  env: {allowlist: [LANG], set: {A: "b=c", EMPTY: ""}}
  trace: {syscalls: false}
`))
	if err != nil {
		t.Fatal(err)
	}
	flags, err := FromFlags([]Flag{{"memory", "7000000"}, {"ro", "rel"}, {"env", "X=y"}, {"rw", "/srv/out"}, {"rw", "!/srv/out"}})
	if err != nil {
		t.Fatal(err)
	}
	base := Defaults(Context{Cwd: "/home/u"})
	want, err := Merge(base, file, flags)
	if err != nil {
		t.Fatal(err)
	}
	sent := []*File{base}
	for _, f := range []*File{file, flags} {
		again, err := FromStatements(f.Statements())
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, again)
	}
	got, err := Merge(sent...)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\n%+v", err, got, want)
	}
}

// An empty section names the current directory to the other process as to this one.
func TestStatementsOfAnEmptyWorkspace(t *testing.T) {
	file := mustParse(t, "/p/a", "  filesystem: {workspace: {}}\n")
	again, err := FromStatements(file.Statements())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*File{file, again} {
		if p, err := Merge(Defaults(Context{Cwd: "/home/u"}), f); err != nil || p.Workspace.Path != "/home/u" {
			t.Errorf("%v, %+v", err, p)
		}
	}
}

// What no parser of ours would say is refused, whatever a peer sends.
func TestStatementsHostile(t *testing.T) {
	flag := Source{Flag: "--x"}
	for _, s := range []Statement{
		{Key: "", Text: "x"},
		{Key: "no.such.key", Text: "x"},
		{Key: "filesystem", Text: "x"},
		{Key: "filesystem.read_only_mounts", Text: "/a\x00b"},
		{Key: "filesystem.read_only_mounts", Text: "rel"},
		{Key: "filesystem.read_only_mounts", Text: "x", Base: "rel"},
		{Key: "filesystem.read_only_mounts", Text: "/usr:/"},
		{Key: "filesystem.read_only_mounts", Text: "/usr", Name: "n"},
		{Key: "filesystem.workspace.mode", Text: "root"},
		{Key: "process.max_memory_mb", Text: "-1"},
		{Key: "process.max_memory_mb", Text: "99999999999999999999"},
		{Key: "process.user", Text: "root"},
		{Key: "env.set", Text: "v"},
		{Key: "env.set", Name: "A=B", Text: "v"},
		{Key: "env.set", Name: "A\nB", Text: "v"},
		{Key: "trace.syscalls", Text: "maybe"},
		{Key: "network.allowlist", Text: "a.example.com"},
		{Key: "unsafe", Text: "everything"},
		{Key: "runtime", Text: "none"},
		{Key: "network.resolve", Name: "x", Text: "no address"},
	} {
		s.Source = flag
		f, err := FromStatements(Statements{List: []Statement{s}})
		if err == nil {
			_, err = Merge(Defaults(Context{Cwd: "/home/u"}), f)
		}
		if err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
	for _, src := range []Source{{}, {File: CeilingFile, Line: 1, Col: 1}, {File: CeilingDir + "/user-1.yaml", Line: 1, Col: 1}} {
		for _, one := range []Statement{{Key: "process.max_memory_mb", Text: "1G", Source: src}, {Key: workspaceKey, Empty: true, Source: src}} {
			if _, err := FromStatements(Statements{List: []Statement{one}}); err == nil {
				t.Errorf("%s: a statement that claims to be a default, or a ceiling's, is taken: %+v", one.Key, src)
			}
		}
	}
}

// Of several ceilings each holds, in any order, and a default is lowered by all of them.
func TestCeilings(t *testing.T) {
	read := func(name, text string) *Ceiling {
		c, err := parseCeiling(name, []byte("ceiling:\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	host := read(CeilingFile, "  process: {max_memory_mb: 1000, max_subprocesses: 8}\n  filesystem: {read_only_mounts: [/usr, /opt], workspace: {mode: cow}}\n")
	user := read(CeilingDir+"/user-1.yaml", "  process: {max_memory_mb: 200, max_subprocesses: 100}\n  filesystem: {read_only_mounts: [/opt/a, /srv, /home]}\n  env: {allowlist: [TERM]}\n")
	for _, order := range [][]*Ceiling{{host, user}, {user, host}} {
		p, err := Merge(Defaults(Context{Cwd: "/opt/a/b", MemTotal: 8 << 30}))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range order {
			if err := p.Bound(c); err != nil {
				t.Fatal(err)
			}
		}
		if p.MaxMemory.N > 200<<20 || p.MaxTasks.N != 8 || !reflect.DeepEqual(p.ToolchainRoots, []string{"/opt/a"}) || len(p.EnvAllow) != 1 {
			t.Errorf("%+v %+v %v %v", p.MaxMemory, p.MaxTasks, p.ToolchainRoots, p.EnvAllow)
		}
	}
}
