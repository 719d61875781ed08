package supervisor

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
)

func autoToolchains(more ...policy.Text) policy.Policy {
	return policy.Policy{Toolchains: append([]policy.Text{{Value: "auto"}}, more...)}
}

// toolchainHome has a toolchain in a home and one elsewhere, each with a
// credential file beside what it needs.
func toolchainHome(t *testing.T) (base string, environ []string) {
	t.Helper()
	base = publicDir(t)
	for _, p := range []string{"home/.pyenv/shims/python", "home/.pyenv/pip.conf", "node/bin/node", "node/lib/x", "node/etc/npmrc", "home/.npm/_cacache/x", "home/.ssh/id"} {
		mkfile(t, path.Join(base, p), "", 0o755, 0, 0)
	}
	return base, []string{"HOME=" + base + "/home", "PATH=/usr/bin:" + base + "/home/.pyenv/shims:" + base + "/node/bin:" + base + "/home"}
}

func listEntries(base string, g *grants) []string {
	var out []string
	for _, e := range g.entries {
		out = append(out, strings.TrimPrefix(e.From, base+"/")+" "+e.Op+" "+e.Access+" "+e.Clause)
	}
	return out
}

func TestToolchainsOfPath(t *testing.T) {
	base, environ := toolchainHome(t)
	p := autoToolchains()
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, environ)
	must(t, err)
	defer closeGrants(t, g)
	want := []string{"home/.pyenv bind ro filesystem.toolchains (default)", "node bind ro filesystem.toolchains (default)"}
	if got := listEntries(base, g); !slices.Equal(got, want) || g.owner != nil || g.dir != Home {
		t.Errorf("%q, want %q; owner %v, in %s", got, want, g.owner, g.dir)
	}
	masks, err := maskSockets(g.entries, g.secrets)
	must(t, err)
	var masked []string
	for _, m := range masks {
		masked = append(masked, strings.TrimPrefix(m.At, base+"/"))
	}
	if !slices.Equal(masked, []string{"home/.pyenv/pip.conf", "node/etc/npmrc"}) {
		t.Errorf("masked: %q", masked)
	}
	env := buildEnv(&p, environ, g.entries, false, &g.found)
	for _, want := range []string{"PATH=" + base + "/home/.pyenv/shims:" + base + "/node/bin", "PYENV_ROOT=" + base + "/home/.pyenv", "HOME=" + Home} {
		if !slices.Contains(env, want) {
			t.Errorf("%q has no %s", env, want)
		}
	}
}

// What is found is left out where it may not be shown; what was named is refused.
func TestToolchainsLeftOut(t *testing.T) {
	base, environ := toolchainHome(t)
	open := func(p policy.Policy) ([]string, error) {
		g, err := openGrants(&p, Caller{UID: os.Getuid()}, environ)
		defer closeGrants(t, g)
		return listEntries(base, g), err
	}
	bounded := autoToolchains()
	bounded.ToolchainRoots = []string{base + "/node"}
	if got, err := open(bounded); err != nil || !slices.Equal(got, []string{"node bind ro filesystem.toolchains (default)"}) {
		t.Errorf("below the ceiling: %q, %v", got, err)
	}
	if got, err := open(policy.Policy{Toolchains: []policy.Text{{Value: "none"}}}); err != nil || len(got) != 0 {
		t.Errorf("none: %q, %v", got, err)
	}
	granted := autoToolchains()
	granted.Cow = []policy.Mount{mountAt(base+"/node", 3)}
	if got, err := open(granted); err != nil || len(got) != 2 || !strings.HasPrefix(got[0], "node cow rw filesystem.cow_mounts") {
		t.Errorf("granted anyway: %q, %v", got, err)
	}
	flag := policy.Source{Flag: "--toolchains"}
	for _, c := range []struct{ dir, want string }{
		{base + "/none", "no toolchain can be shown at " + base + "/none: no such file or directory [filesystem.toolchains (flag --toolchains)]; name a directory of programs, or its install"},
		{"/etc", "no toolchain can be shown at /etc [filesystem.toolchains (flag --toolchains)]; it holds much else; name a directory in it"},
		{base + "/home", "no toolchain can be shown at " + base + "/home [filesystem.toolchains (flag --toolchains)]; name a directory of programs, or its install"},
	} {
		if _, err := open(policy.Policy{Toolchains: []policy.Text{{Value: c.dir, Source: flag}}}); err == nil || err.Error() != c.want {
			t.Errorf("%s:\n got %v\nwant %s", c.dir, err, c.want)
		}
	}
	bounded.Toolchains = []policy.Text{{Value: base + "/home/.pyenv", Source: flag}}
	if _, err := open(bounded); err == nil || !strings.Contains(err.Error(), "is above the ceiling [filesystem.toolchains (flag --toolchains)]; filesystem.read_only_mounts of /etc/agentguard/ceiling.yaml") {
		t.Errorf("named, above the ceiling: %v", err)
	}
}

// An install with more credential files than can be masked is not shown.
func TestToolchainOfSecrets(t *testing.T) {
	base, environ := toolchainHome(t)
	for i := range maxMasks {
		mkfile(t, fmt.Sprintf("%s/home/.pyenv/versions/%d/pip.conf", base, i), "", 0o644, 0, 0)
	}
	p := autoToolchains()
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, environ)
	must(t, err)
	defer closeGrants(t, g)
	if got := listEntries(base, g); !slices.Equal(got, []string{"node bind ro filesystem.toolchains (default)"}) || len(g.secrets) != 1 {
		t.Errorf("%q, %d secrets", got, len(g.secrets))
	}
}

// A toolchain that is named comes first in PATH, whatever the caller's is.
func TestToolchainNamed(t *testing.T) {
	base, _ := toolchainHome(t)
	p := policy.Policy{Toolchains: []policy.Text{{Value: base + "/node", Source: lineOf(3)}}}
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, []string{"PATH=/usr/bin"})
	must(t, err)
	defer closeGrants(t, g)
	if got := listEntries(base, g); !slices.Equal(got, []string{"node bind ro filesystem.toolchains (p.yaml:3:3)"}) {
		t.Errorf("%q", got)
	}
	if env := buildEnv(&p, []string{"PATH=/usr/bin"}, append(g.entries, grant("/usr ro")), false, &g.found); !slices.Contains(env, "PATH="+base+"/node/bin:/usr/bin") {
		t.Errorf("%q", env)
	}
	if g.entries[0].found {
		t.Error("it counts as found")
	}
	must(t, g.keepFound(func([]Entry) error { return &Refusal{} }))
	if len(g.entries) != 1 {
		t.Error("what was named was left out")
	}
}

// What would show agentguard's own directories is left out again.
func TestFoundIsKeptOrClosed(t *testing.T) {
	base, environ := toolchainHome(t)
	p := autoToolchains()
	before := testenv.Descriptors()
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, environ)
	must(t, err)
	must(t, g.keepFound(func(list []Entry) error {
		if list[0].From == base+"/node" {
			return &Refusal{What: "it reaches"}
		}
		return nil
	}))
	if got := listEntries(base, g); !slices.Equal(got, []string{"home/.pyenv bind ro filesystem.toolchains (default)"}) {
		t.Errorf("%q", got)
	}
	closeGrants(t, g)
	if testenv.Since(before) != 0 {
		t.Errorf("%d descriptors are left", testenv.Since(before))
	}
}

func TestCaches(t *testing.T) {
	base, environ := toolchainHome(t)
	npm := policy.Text{Value: "npm", Source: policy.Source{Flag: "--cache"}}
	p := policy.Policy{Caches: []policy.Text{npm, {Value: "pip"}}}
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, environ)
	must(t, err)
	defer closeGrants(t, g)
	if got := listEntries(base, g); !slices.Equal(got, []string{"home/.npm cow rw filesystem.caches (flag --cache)"}) || g.entries[0].Cache != "npm" {
		t.Errorf("%q", got)
	}
	if g.owner != nil || g.dir != Home {
		t.Errorf("a cache is no workspace: owner %v, in %s", g.owner, g.dir)
	}
	if !slices.Contains(g.found.env, "npm_config_cache="+base+"/home/.npm") {
		t.Errorf("env %q", g.found.env)
	}
	for _, c := range []struct {
		p    policy.Policy
		env  string
		want string
	}{
		{policy.Policy{Caches: []policy.Text{npm}, CacheRoots: []string{"/srv"}}, "x=", "is above the ceiling [filesystem.caches (flag --cache)]; filesystem.cow_mounts of "},
		{policy.Policy{Caches: []policy.Text{npm}}, "npm_config_cache=/var", "the cache npm is at /var, which is a broad mount [filesystem.caches (flag --cache)]; set its variable to a directory of its own"},
		{policy.Policy{Caches: []policy.Text{{Value: "auto"}}, CacheRoots: []string{"/srv"}}, "x=", ""},
	} {
		g, err := openGrants(&c.p, Caller{UID: os.Getuid()}, append([]string{c.env}, environ...))
		if c.want == "" && (err != nil || len(g.entries) != 0) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, %d entries, want %q", err, len(g.entries), c.want)
		}
		closeGrants(t, g)
	}
}

// Found says what "auto" comes to, and holds nothing.
func TestFound(t *testing.T) {
	base, environ := toolchainHome(t)
	p := autoToolchains()
	p.Caches = []policy.Text{{Value: "auto", Source: lineOf(4)}}
	p.ReadOnly = []policy.Mount{mountAt("/nowhere", 1)}
	before := testenv.Descriptors()
	var got []string
	for _, c := range Found(&p, Caller{UID: os.Getuid()}, environ) {
		got = append(got, strings.ReplaceAll(c.Key+" "+c.Value+" "+c.Source.String(), base, "@"))
	}
	want := []string{
		"filesystem.toolchains @/home/.pyenv for @/home/.pyenv/shims default",
		"filesystem.toolchains @/node for @/node/bin default",
		"filesystem.caches npm @/home/.npm p.yaml:4:3",
	}
	if !slices.Equal(got, want) || testenv.Since(before) != 0 {
		t.Errorf("%q, want %q; %d descriptors", got, want, testenv.Since(before))
	}
}

// A program that is not inside is looked for where the caller has it, and the
// flag that shows it is said.
func TestNotFound(t *testing.T) {
	base, _ := toolchainHome(t)
	mkfile(t, base+"/ws/script", "#!"+base+"/node/bin/node -x\n", 0o755, 0, 0)
	mkfile(t, base+"/ws/lost", "#!/no/such/thing\n", 0o755, 0, 0)
	mkfile(t, base+"/ws/elf", "\x7fELF", 0o755, 0, 0)
	must(t, os.Symlink(base+"/node/bin/node", base+"/ws/link"))
	ws := mustOpen(t, base+"/ws")
	view := []Entry{{Op: "cow", At: base + "/ws", From: base + "/ws", Access: "rw", open: ws}}
	for _, c := range []struct {
		argv0, path string
		status      int
		want        string
	}{
		{"node", "relative:" + base + "/node/bin", StatusNotFound, "node was not found inside; the host has it as @/node/bin/node; show it with --toolchains @/node/bin"},
		{"python", "/usr/bin", StatusNotFound, "python was not found inside; the host has it as @/home/.pyenv/shims/python, which is not on this PATH; show it with --toolchains @/home/.pyenv/shims"},
		{"no-such", "/usr/bin", StatusNotFound, "no-such was not found inside; the host does not have it either on this PATH"},
		{base + "/node/bin/node", "", StatusNotFound, "@/node/bin/node was not found inside; the host has it as @/node/bin/node; show it with --toolchains @/node/bin"},
		{base + "/ws/none", "", StatusNotFound, "@/ws/none was not found inside; the host does not have it either"},
		{base + "/ws/script", "", StatusNoExec, "@/ws/script is there, but its interpreter @/node/bin/node is not inside; show it with --toolchains @/node/bin"},
		{"./lost", "", StatusNoExec, "@/ws/lost is there, but its interpreter /no/such/thing is not inside; this host does not have it either"},
		{"./elf", "", StatusNoExec, "@/ws/elf is there, but its interpreter or loader is not inside; look at its first line, and show what it names with --ro"},
		{"./link", "", StatusNotFound, "@/ws/link is a link to @/node/bin/node, which is not inside; show it with --toolchains @/node/bin"},
	} {
		r := &Run{caller: Caller{UID: os.Getuid()}, cfg: Config{Environ: []string{"PATH=" + c.path, "HOME=" + base + "/home"}}}
		r.plan = &Plan{Argv: []string{c.argv0}, Dir: base + "/ws", View: view, Candidates: candidates(c.argv0, []string{"PATH=/usr/bin"})}
		got := r.notFound()
		if text := strings.ReplaceAll(got.Error(), base, "@"); text != c.want || got.Status != c.status {
			t.Errorf("%s: status %d, %s\nwant %d, %s", c.argv0, got.Status, text, c.status, c.want)
		}
	}
	if got := showFlag("/run/x"); got != "show it with --ro /run/x" {
		t.Error(got)
	}
	mkfile(t, base+"/usr/bin/snap", "", 0o755, 0, 0)
	must(t, os.Symlink(base+"/usr/bin/snap", base+"/tool"))
	if got := showFlag(base + "/tool"); !strings.Contains(got, "set-user-id") {
		t.Error(got)
	}
}
