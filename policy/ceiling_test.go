package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustCeiling(t *testing.T, body string) *Ceiling {
	t.Helper()
	c, err := parseCeiling(CeilingFile, []byte("ceiling:\n"+body))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unbounded are the keys that grant nothing a ceiling could bound.
var unbounded = []string{"filesystem.protect", "env.set"}

// For every key: what the ceiling has passes, what it has not is an error with
// the clause, the policy's line and the ceiling's line.
func TestBoundEveryKey(t *testing.T) {
	a, b := samples(t)
	for _, k := range schema() {
		if contains(unbounded, k.name) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			c := mustCeiling(t, a[k.name])
			within := merge(t, mustParse(t, "/p/a", a[k.name]))
			if err := within.Bound(c); err != nil {
				t.Errorf("the ceiling itself: %v", err)
			}
			above := merge(t, mustParse(t, "/p/b", b[k.name]))
			err := above.Bound(c)
			var first *Error
			if !errors.As(err, &first) || first.Clause != k.name || first.Source.File != "/p/b" ||
				!strings.Contains(first.Hint, CeilingFile+":") || !strings.HasPrefix(first.Message, k.name+": ") {
				t.Errorf("above the ceiling: %v", err)
			}
			if err := above.Bound(mustCeiling(t, strings.Replace(b[k.name], ":/c", "", 1))); err != nil {
				t.Errorf("its own ceiling: %v", err)
			}
		})
	}
}

// A default is lowered to the ceiling and points at its line.
func TestBoundLowersDefaults(t *testing.T) {
	c := mustCeiling(t, `  runtime: microvm
  filesystem: {max_file_bytes: 1M}
  network: {listen: deny}
  process: {max_memory_mb: 256, max_wall_seconds: 10}
  env: {allowlist: [LANG]}
  stdin: null
`)
	p := merge(t)
	if err := p.Bound(c); err != nil {
		t.Fatal(err)
	}
	if p.MaxMemory.N != 256<<20 || p.MaxMemory.Source.File != CeilingFile || p.MaxMemory.Source.Line != 5 {
		t.Errorf("memory %+v", p.MaxMemory)
	}
	if p.MaxWall.N != 10e9 || p.MaxFileBytes.Unlimited || p.MaxFileBytes.N != 1<<20 || p.Listen.Value != "deny" || p.Stdin.Value != "null" {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff([]Text{{Value: "LANG"}}, p.EnvAllow); diff != "" {
		t.Error(diff)
	}
	if g := p.Gaps(); len(g) != 1 || g[0].Clause != "runtime" || g[0].Source.File != CeilingFile {
		t.Errorf("gaps %+v", g)
	}
}

// Asking for a default by name is asking.
func TestBoundExplicitDefault(t *testing.T) {
	p := merge(t, mustParse(t, "/p/a", "  env: {allowlist: [TERM]}\n  process: {max_wall_seconds: none}\n"))
	err := p.Bound(mustCeiling(t, "  env: {allowlist: [LANG]}\n  process: {max_wall_seconds: 1m}\n"))
	want := strings.Join([]string{
		`/p/a:2:21: env.allowlist: "TERM" is above the ceiling (/etc/agentguard/ceiling.yaml:2:9 allows "LANG")`,
		`/p/a:3:31: process.max_wall_seconds: none is above the ceiling (/etc/agentguard/ceiling.yaml:3:13 allows 1m at most)`,
	}, "\n")
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestBoundMounts(t *testing.T) {
	c := mustCeiling(t, "  filesystem: {read_only_mounts: [/ro], writable_mounts: [/rw], cow_mounts: [/cow]}\n")
	for _, x := range []struct {
		flag, path string
		ok         bool
	}{
		{"ro", "/ro", true},
		{"ro", "/ro/x", true},
		{"ro", "/rox", false},
		{"ro", "/rw/x", true},
		{"ro", "/cow/x", true},
		{"ro", "/ro/../etc", false},
		{"ro", "/etc:/ro", false},
		{"rw", "/rw/x:/elsewhere", true},
		{"rw", "/ro/x", false},
		{"rw", "/cow", false},
		{"cow", "/rw", true},
		{"cow", "/ro", false},
	} {
		p := merge(t, mustFlags(t, Flag{"workspace", "/ro"}, Flag{x.flag, x.path}))
		if err := p.Bound(c); (err == nil) != x.ok {
			t.Errorf("--%s %s: %v", x.flag, x.path, err)
		}
	}
}

func TestBoundWorkspace(t *testing.T) {
	lists := "  filesystem: {read_only_mounts: [/ro], writable_mounts: [/rw], cow_mounts: [/cow]}\n"
	for _, x := range []struct {
		ceiling, path, mode string
		ok                  bool
	}{
		{"  process: {user: 5}\n", "/x", "rw", true},
		{lists, "/ro/x", "ro", true},
		{lists, "/rw", "ro", true},
		{lists, "/cow", "ro", true},
		{lists, "/x", "ro", false},
		{lists, "/ro", "rw", false},
		{lists, "/rw/x", "rw", true},
		{lists, "/cow", "cow", true},
		{lists, "/rw", "cow", true},
		{lists, "/ro", "cow", false},
		{"  filesystem: {writable_mounts: []}\n", "/x", "ro", true},
		{"  filesystem: {writable_mounts: []}\n", "/x", "rw", false},
		{"  filesystem: {workspace: {path: /home}}\n", "/home/u/p", "rw", true},
		{"  filesystem: {workspace: {path: /home}}\n", "/x", "ro", false},
		{"  filesystem: {workspace: {path: /home, mode: ro}}\n", "/home/u/p", "rw", false},
	} {
		p := merge(t, mustFlags(t, Flag{"workspace", x.path}, Flag{"mode", x.mode}))
		if err := p.Bound(mustCeiling(t, x.ceiling)); (err == nil) != x.ok {
			t.Errorf("%s %s under %s: %v", x.mode, x.path, strings.TrimSpace(x.ceiling), err)
		}
	}
	// A mode that nobody asked for is lowered.
	p := merge(t, mustFlags(t, Flag{"workspace", "/ro"}))
	if err := p.Bound(mustCeiling(t, lists)); err != nil || p.Workspace.Mode != "ro" {
		t.Errorf("%+v, %v", p.Workspace, err)
	}
	// Also the current directory, which nobody asked for: nothing is dropped in silence.
	if err := merge(t).Bound(mustCeiling(t, lists)); err == nil {
		t.Error("the current directory is not held to the ceiling")
	}
	none := merge(t, mustParse(t, "/p/a", "  process: {user: 5}\n"))
	if err := none.Bound(mustCeiling(t, lists)); err != nil {
		t.Errorf("no workspace: %v", err)
	}
}

func TestBoundPatterns(t *testing.T) {
	c := mustCeiling(t, "  env: {allowlist: [\"APP_*\"]}\n  secrets: none\n  unsafe: []\n")
	for text, ok := range map[string]bool{"APP_MODE": true, "APP_*": true, "APP_X_*": true, "AP*": false, "APP": false} {
		if err := merge(t, mustFlags(t, Flag{"env", text})).Bound(c); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, body := range []string{"  secrets: [act]\n", "  unsafe: [credential-env]\n"} {
		err := merge(t, mustParse(t, "/p/a", body)).Bound(c)
		if err == nil || !strings.Contains(err.Error(), "allows nothing here") {
			t.Errorf("%s: %v", strings.TrimSpace(body), err)
		}
	}
}

// A ceiling that bounds names bounds what they are pinned to: another address is another destination.
func TestBoundPins(t *testing.T) {
	for _, x := range []struct {
		ceiling, addr string
		ok            bool
	}{
		{"egress: allowlist", "203.0.113.1", true}, // nothing is bounded
		{"allowlist: ['*.w.example:443']", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443'], resolve: {}", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443'], resolve: {a.w.example: 203.0.113.2}", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443'], resolve: {b.w.example: 203.0.113.1}", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443'], resolve: {a.w.example: 203.0.113.1}", "203.0.113.1", true},
		{"resolve: {}", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443', '203.0.113.0/24:443']", "203.0.113.1", true},
		{"allowlist: ['*.w.example:443', '203.0.113.0/24:443']", "203.0.112.1", false},
		{"allowlist: ['*.w.example:443'], allow_private: [10.0.0.0/8]", "10.0.0.1", true},
		{"allowlist: ['*.w.example:443'], allow_private: ['*.w.example']", "10.0.0.1", true},
		{"allowlist: ['*.w.example:443'], allow_private: ['*.w.example']", "203.0.113.1", false},
		{"allowlist: ['*.w.example:443'], allow_private: [b.w.example]", "10.0.0.1", false},
	} {
		p := merge(t, mustFlags(t, Flag{"resolve", "a.w.example=" + x.addr}))
		err := p.Bound(mustCeiling(t, "  network: {"+x.ceiling+"}\n"))
		if (err == nil) != x.ok || err != nil && !strings.Contains(err.Error(), `network.resolve: "a.w.example=`+x.addr+`" is above the ceiling`) {
			t.Errorf("%s: %v", x.ceiling, err)
		}
	}
}

// The strictest word is above no ceiling.
func TestBoundNoToolchains(t *testing.T) {
	for _, body := range []string{"[]", "none", "[/opt/go]", "auto"} {
		p := merge(t, mustFlags(t, Flag{"toolchains", "none"}))
		if err := p.Bound(mustCeiling(t, "  filesystem: {toolchains: "+body+"}\n")); err != nil || p.Toolchains[0].Source.Flag == "" {
			t.Errorf("%s: %v, %+v", body, err, p.Toolchains)
		}
	}
}

// What is asked for beside the policy has the bound of the word that it comes to.
func TestAllows(t *testing.T) {
	p := merge(t)
	for _, body := range []string{"  filesystem: {commit: ask}\n", "  filesystem: {persistence: ephemeral}\n"} {
		if err := p.Bound(mustCeiling(t, body)); err != nil {
			t.Fatal(err)
		}
	}
	src := Source{Flag: "--collect"}
	for _, x := range []struct{ key, word, want string }{
		{"filesystem.commit", "never", ""},
		{"filesystem.commit", "ask", ""},
		{"filesystem.commit", "success", `flag --collect: filesystem.commit: "success" is above the ceiling (/etc/agentguard/ceiling.yaml:2:16 allows "ask" at most)`},
		{"filesystem.persistence", "keep", `flag --collect: filesystem.persistence: "keep" is above the ceiling (/etc/agentguard/ceiling.yaml:2:16 allows "ephemeral" at most)`},
		{"filesystem.commit", "always", `flag --collect: unknown word "always" (one of never, ask, success)`},
		{"filesystem.nothing", "x", `flag --collect: unknown key "filesystem.nothing"`},
	} {
		got := ""
		if err := p.Allows(x.key, x.word, src); err != nil {
			got = err.Error()
		}
		if got != x.want {
			t.Errorf("%s %s: %s", x.key, x.word, got)
		}
	}
	if err := merge(t).Allows("filesystem.commit", "success", src); err != nil {
		t.Errorf("without a ceiling: %v", err)
	}
}

func TestNilCeiling(t *testing.T) {
	if err := merge(t).Bound(nil); err != nil {
		t.Error(err)
	}
}

func TestReadCeiling(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ceiling.yaml")
	if _, err := ReadCeiling(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for body, want := range map[string]string{
		"ceiling: {process: {max_memory_mb: 1G}}": "",
		"ceiling: {}":                   "",
		"":                              "the file is empty (start with ceiling:)",
		"sandbox: {}":                   "this file must start with ceiling:",
		"ceiling: {env: {set: {A: b}}}": "env.set grants nothing that a ceiling could bound",
		"ceiling: {network: {resolve: {a.example: 10.0.0.1}}}":       "",
		"ceiling: {filesystem: {protect: []}}":                       "filesystem.protect grants nothing",
		"ceiling: {filesystem: {writable_mounts: [\"/a:/b\"]}}":      "a ceiling bounds paths of the host",
		"ceiling: {filesystem: {writable_mounts: [\"!/a\"]}}":        "removes nothing",
		"ceiling: {network: {egress: deny, allowlist: [\"a.b:1\"]}}": "",
		"ceiling: {process: {max_memory: 1G}}":                       "did you mean \"max_memory_mb\"?",
	} {
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCeiling(path)
		if want == "" && (err != nil || c == nil) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
