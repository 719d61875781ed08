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

// mustParse parses the body of a policy: lines below "sandbox:".
func mustParse(t *testing.T, name, body string) *File {
	t.Helper()
	f, err := Parse(name, []byte("sandbox:\n"+body))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// merge merges files over the defaults.
func merge(t *testing.T, files ...*File) *Policy {
	t.Helper()
	p, err := Merge(append([]*File{Defaults(host)}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustFlags(t *testing.T, flags ...Flag) *File {
	t.Helper()
	f, err := FromFlags(flags)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Later scalars replace, lists add in order, sources stay with their entries.
func TestMergeOrder(t *testing.T) {
	host := mustParse(t, HostFile, "  process: {max_wall_seconds: 10, max_subprocesses: 7}\n  filesystem: {read_only_mounts: [/etc-data]}\n")
	project := mustParse(t, "/p/a.yaml", "  process: {max_wall_seconds: 20}\n  filesystem: {read_only_mounts: [data, /etc-data]}\n")
	flags := mustFlags(t, Flag{"wall", "30"}, Flag{"ro", "/flag"})
	p := merge(t, host, project, flags)
	if p.MaxWall.N != 30e9 || p.MaxWall.Source.Flag != "--wall" {
		t.Errorf("wall: %+v", p.MaxWall)
	}
	if p.MaxTasks.N != 7 || p.MaxTasks.Source.File != HostFile {
		t.Errorf("tasks: %+v", p.MaxTasks)
	}
	var mounts []string
	for _, m := range p.ReadOnly {
		mounts = append(mounts, m.Path+" "+m.Source.String())
	}
	want := []string{"/etc-data /p/a.yaml:3:41", "/p/data /p/a.yaml:3:35", "/flag flag --ro"}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Error(diff)
	}
}

// For each scalar of the schema, the last of three sources wins.
func TestMergeLastScalarWins(t *testing.T) {
	a, b := samples(t)
	for _, k := range schema() {
		if k.form != one {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			first, second := mustParse(t, "/a.yaml", a[k.name]), mustParse(t, "/b.yaml", b[k.name])
			ab, ba := k.field.show(merge(t, first, second))[0], k.field.show(merge(t, second, first))[0]
			if ab.Source.File != "/b.yaml" || ba.Source.File != "/a.yaml" || ab.Value == ba.Value {
				t.Errorf("a,b: %+v; b,a: %+v", ab, ba)
			}
		})
	}
}

// For each list of the schema, entries add up and a removal takes one away.
func TestMergeListsAdd(t *testing.T) {
	a, b := samples(t)
	for _, k := range schema() {
		if k.form == one {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			base := len(k.field.show(merge(t)))
			if shown := k.field.show(merge(t)); shown[0].Value == "[]" || shown[0].Value == none {
				base = 0
			}
			first, second := mustParse(t, "/a.yaml", a[k.name]), mustParse(t, "/b.yaml", b[k.name])
			got := k.field.show(merge(t, first, second, first))
			if len(got) != base+2 {
				t.Fatalf("%d entries over %d defaults: %+v", len(got), base, got)
			}
			if k.form == named {
				return
			}
			remove, p := k.field.read(value{text: "!" + got[base].Value, src: Source{Flag: "--x"}})
			if p != nil {
				t.Fatal(p)
			}
			policy := merge(t, first, second)
			if p := remove(policy); p != nil {
				t.Fatal(p)
			}
			if left := k.field.show(policy); len(left) != base+1 || left[base].Value != got[base+1].Value {
				t.Errorf("left after removal: %+v", left)
			}
			if p := remove(policy); p == nil {
				t.Error("removed twice")
			}
		})
	}
}

// A merge leaves its inputs as they were: the same files merge again.
func TestMergeIsRepeatable(t *testing.T) {
	defaults := Defaults(host)
	remove := mustParse(t, "/a.yaml", "  env: {allowlist: [\"!LC_ALL\", B]}\n")
	var policies [3]*Policy
	for i := range policies {
		p, err := Merge(defaults, remove)
		if err != nil {
			t.Fatal(err)
		}
		policies[i] = p
	}
	if diff := cmp.Diff(policies[0], policies[2]); diff != "" {
		t.Error(diff)
	}
}

func TestWorkspaceIsEnumerated(t *testing.T) {
	silent := func(name string) *File { return mustParse(t, name, "  process: {user: 5}\n") }
	mode := func(name string) *File { return mustParse(t, name, "  filesystem: {workspace: {mode: rw}}\n") }
	path := func(name string) *File { return mustParse(t, name, "  filesystem: {workspace: {path: w}}\n") }
	for _, c := range []struct {
		what  string
		files []*File
		want  string
	}{
		{"no file", nil, "/srv/here"},
		{"the host's policy alone", []*File{silent(HostFile)}, "/srv/here"},
		{"a file without the key", []*File{silent("/p/a")}, ""},
		{"an empty workspace mapping", []*File{mustParse(t, "/p/a", "  filesystem: {workspace: {}}\n")}, "/srv/here"},
		{"a mode is a workspace key", []*File{mode("/p/a")}, "/srv/here"},
		{"in either order", []*File{silent("/p/b"), mode("/p/a")}, "/srv/here"},
		{"in either order", []*File{mode("/p/a"), silent("/p/b")}, "/srv/here"},
		{"the host's mode names nothing", []*File{mode(HostFile), silent("/p/a")}, ""},
		{"a path", []*File{path("/p/a")}, "/p/w"},
		{"a path, then silence", []*File{path("/p/a"), silent("/q/b")}, "/p/w"},
		{"a flag grants", []*File{silent("/p/a"), mustFlags(t, Flag{"workspace", "/x"})}, "/x"},
	} {
		if got := merge(t, c.files...).Workspace.Path; got != c.want {
			t.Errorf("%s: workspace %q, want %q", c.what, got, c.want)
		}
	}
	_, err := Merge(Defaults(host), silent("/p/a"), mustFlags(t, Flag{"mode", "rw"}))
	if err == nil || !strings.Contains(err.Error(), "--mode has no effect") {
		t.Errorf("--mode without a workspace: %v", err)
	}
}

func TestFlagAllowBeatsDeny(t *testing.T) {
	p := merge(t, mustParse(t, "/p/a", "  network: {egress: deny}\n"), mustFlags(t, Flag{"allow", "a.example:1"}))
	if p.Egress.Value != "allowlist" || p.Egress.Source.Flag != "--allow" {
		t.Errorf("%+v", p.Egress)
	}
	p = merge(t, mustFlags(t, Flag{"allow", "a.example:1"}), mustParse(t, "/p/a", "  network: {egress: deny}\n"))
	if p.Egress.Value != "deny" || len(p.Gaps()) != 0 {
		t.Errorf("denied entries are a gap: %+v", p.Gaps())
	}
}

// unsafe words count wherever they were written.
func TestUnsafeGrants(t *testing.T) {
	grants := mustParse(t, "/p/a", `  env: {allowlist: [GITHUB_TOKEN]}
  filesystem: {read_only_mounts: [/home/user], writable_mounts: ["/etc:/mnt/etc"]}
  network: {unix: [/run/docker.sock, /run/user/1/bus, /tmp/ssh-x/agent.1]}
`)
	words := mustParse(t, "/p/b", "  unsafe: [credential-env, broad-mount, docker-socket, dbus, ssh-agent]\n")
	for _, order := range [][]*File{{grants, words}, {words, grants}} {
		merge(t, order...)
	}
	_, err := Merge(Defaults(host), grants)
	var all Errors
	if !errors.As(err, &all) || len(all) != 6 {
		t.Errorf("%v", err)
	}
}

func TestDefaults(t *testing.T) {
	p := merge(t)
	if p.MaxMemory.N != 4<<30 || p.MaxWall.N != 3600e9 || p.MaxCPU.Unlimited || p.Workspace.Mode != "cow" {
		t.Errorf("%+v", p)
	}
	for _, c := range p.Clauses() {
		if !c.Source.IsDefault() {
			t.Errorf("%s has source %s", c.Key, c.Source)
		}
	}
	if g := p.Gaps(); len(g) != 0 {
		t.Errorf("a default is a gap: %+v", g)
	}
	interactive, err := Merge(Defaults(Context{Interactive: true}))
	if err != nil || !interactive.MaxCPU.Unlimited || !interactive.MaxWall.Unlimited || interactive.MaxMemory.N != 512<<20 {
		t.Errorf("%+v %v", interactive, err)
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p.yaml")
	if err := os.WriteFile(path, []byte("sandbox: {filesystem: {read_only_mounts: [x]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, name := range []string{path, "p.yaml", "./p.yaml"} {
		f, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p := merge(t, f)
		if got := p.ReadOnly[0]; got.Path != filepath.Join(dir, "x") || got.Source.File != name {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := ReadFile(dir); err == nil {
		t.Error("a directory is a policy")
	}
	if _, err := ReadFile("/dev/zero"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("/dev/zero: %v", err)
	}
}

// A policy that comes through a descriptor has the current directory for base.
func TestBase(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, want := range map[string]string{
		"-": dir, "/dev/stdin": dir, "/dev/fd/63": dir, "/proc/self/fd/0": dir, "a/p.yaml": filepath.Join(dir, "a"), "/x/y.yaml": "/x",
	} {
		if got := baseOf(name); got != want {
			t.Errorf("baseOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// Sockets that are the whole authority of their owner, by the names that their makers give them.
func TestSocketWord(t *testing.T) {
	for path, want := range map[string]string{
		"/run/docker.sock": "docker-socket", "/run/containerd/containerd.sock.ttrpc": "docker-socket", "/run/cri-dockerd.sock": "docker-socket",
		"/var/snap/lxd/common/lxd/unix.socket": "docker-socket", "/var/lib/incus/unix.socket": "docker-socket",
		"/run/user/1000/openssh_agent": "ssh-agent", "/home/u/.ssh/agent/s.Ab1.agent.Cd2": "ssh-agent", "/run/user/1000/gcr/ssh": "ssh-agent",
		"/home/u/.1password/agent.sock": "ssh-agent", "/tmp/vscode-ssh-auth-1.sock": "ssh-agent", "/tmp/ssh-x/agent.1": "ssh-agent",
		"/run/user/1000/bus":   "dbus",
		"/run/app/unix.socket": "", "/run/postgresql/.s.PGSQL.5432": "",
	} {
		if got := SocketWord(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
