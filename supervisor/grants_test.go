package supervisor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
)

func mountAt(p string, n int) policy.Mount { return policy.Mount{Path: p, At: p, Source: lineOf(n)} }

// closeGrants closes what openGrants holds.
func closeGrants(t *testing.T, g *grants) {
	t.Helper()
	for _, e := range g.entries {
		if err := e.open.File.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestGrantsOpen(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/file", "", 0o644, 0, 0)
	mkdirOwned(t, base+"/ro", 0o755, 0, 0)
	mkdirOwned(t, base+"/rw", 0o755, 0, 0)
	mkdirOwned(t, base+"/ws", 0o755, 0, 0)
	ro := mountAt(base+"/ro", 4)
	elsewhere := policy.Mount{Path: base + "/ro", At: "/opt//tool/../tool", Source: policy.Source{Flag: "--ro"}}
	bare := policy.Mount{Path: base + "/ro"}
	for _, c := range []struct {
		name  string
		p     policy.Policy
		want  []string // "PLACE FROM ACCESS CLAUSE"
		dir   string
		owner string
	}{
		{name: "nothing", dir: Home},
		{
			name: "read only", p: policy.Policy{ReadOnly: []policy.Mount{ro, elsewhere, bare}}, dir: Home,
			want: []string{
				base + "/ro ro filesystem.read_only_mounts (p.yaml:4:3)",
				"/opt/tool ro filesystem.read_only_mounts (flag --ro)",
				base + "/ro ro filesystem.read_only_mounts (default)",
			},
		},
		{
			name: "the first writable directory is the owner", dir: base + "/rw", owner: base + "/rw",
			p:    policy.Policy{Writable: []policy.Mount{mountAt(base+"/file", 1), mountAt(base+"/rw", 2), mountAt(base+"/ws", 3)}},
			want: []string{base + "/file rw filesystem.writable_mounts (p.yaml:1:3)", base + "/rw rw filesystem.writable_mounts (p.yaml:2:3)", base + "/ws rw filesystem.writable_mounts (p.yaml:3:3)"},
		},
		{
			name: "a workspace is the owner, whatever is writable", dir: base + "/ws", owner: base + "/ws",
			p:    policy.Policy{Writable: []policy.Mount{mountAt(base+"/rw", 2)}, Workspace: policy.Workspace{Path: base + "/ws", Mode: "ro", Source: lineOf(9)}},
			want: []string{base + "/rw rw filesystem.writable_mounts (p.yaml:2:3)", base + "/ws ro filesystem.workspace (p.yaml:9:3)"},
		},
		{
			name: "a writable workspace", dir: base + "/ws", owner: base + "/ws",
			p:    policy.Policy{Workspace: policy.Workspace{Path: base + "/ws", Mode: "rw"}},
			want: []string{base + "/ws rw filesystem.workspace (default)"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := openGrants(&c.p, Caller{UID: os.Getuid()}, nil)
			must(t, err)
			defer closeGrants(t, g)
			var got []string
			for _, e := range g.entries {
				got = append(got, e.At+" "+e.Access+" "+e.Clause)
				var st unix.Stat_t
				must(t, unix.Stat(e.From, &st))
				if e.Op != "bind" || e.Dev != st.Dev || e.Ino != st.Ino || e.Dir() != (st.Mode&unix.S_IFDIR != 0) {
					t.Errorf("%+v is not %s", e, e.From)
				}
			}
			if !slices.Equal(got, c.want) || g.dir != c.dir {
				t.Errorf("in %s: %q, want in %s %q", g.dir, got, c.dir, c.want)
			}
			if (g.owner == nil) != (c.owner == "") || (g.owner != nil && g.owner.Path != c.owner) {
				t.Errorf("owner %+v, want %q", g.owner, c.owner)
			}
		})
	}
}

// Dir tells whether a granted entry is a directory.
func (e Entry) Dir() bool { return e.open.Dir() }

func TestGrantsRefused(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	mkfile(t, base+"/file", "", 0o644, 0, 0)
	mkfile(t, base+"/closed/file", "", 0o644, 0, 0)
	must(t, os.Chmod(base+"/closed", 0o700))
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	must(t, os.Symlink("/srv/real", base+"/user/abs"), os.Symlink("../file", base+"/user/rel"),
		unix.Mknod(base+"/node", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mknod(base+"/block", unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))))
	l, err := net.Listen("unix", base+"/sock")
	must(t, err)
	defer l.Close()
	for _, c := range []struct {
		path, what, remedy string
		err                error
	}{
		{"/nowhere", "cannot grant " + base + "/nowhere", "create it, or remove the grant", unix.ENOENT},
		{"/closed/file", "cannot grant " + base + "/closed/file", "a run gets no more than its caller may open", unix.EACCES},
		{"/user/abs", "cannot grant " + base + "/user/abs", "name the real path: --ro /srv/real", nil},
		{"/user/rel", "cannot grant " + base + "/user/rel", "name the real path: --ro " + base + "/file", nil},
		{"/sock", base + "/sock is a socket", "grant sockets with --unix " + base + "/sock", nil},
		{"/node", base + "/node is a device node, and devices cannot be granted", "remove the grant", nil},
		{"/block", base + "/block is a device node, and devices cannot be granted", "remove the grant", nil},
	} {
		before := testenv.Descriptors()
		g, err := openGrants(&policy.Policy{ReadOnly: []policy.Mount{mountAt(base+c.path, 7)}}, Caller{UID: testUID, GID: testGID, Sudo: true}, nil)
		r := refusal(t, err)
		if r.What != c.what || r.Remedy != c.remedy || r.Clause != "filesystem.read_only_mounts (p.yaml:7:3)" || StatusOf(err) != StatusFailed {
			t.Errorf("%s: %+v", c.path, r)
		}
		if c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v is not %v", c.path, err, c.err)
		}
		if len(g.entries) != 0 || testenv.Since(before) != 0 {
			t.Errorf("%s: %d entries, %d descriptors are left", c.path, len(g.entries), testenv.Since(before))
		}
	}
}

// A link of root's to what takes a word under unsafe takes it too: whoever reads the policy
// sees the link. What is granted is what it leads to.
func TestGrantsThroughLinks(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	must(t, os.Symlink("/var", base+"/data"), os.Symlink("/etc", base+"/out"), os.Symlink("docker.sock", base+"/s"))
	l, err := net.Listen("unix", base+"/docker.sock")
	must(t, err)
	defer l.Close()
	mount := func(name string) []policy.Mount { return []policy.Mount{mountAt(base+name, 7)} }
	for _, c := range []struct {
		p          policy.Policy
		word, what string // "": granted without
	}{
		{policy.Policy{ReadOnly: mount("/data")}, "broad-mount", base + "/data leads to /var, which is a broad mount"},
		{policy.Policy{Cow: mount("/data")}, "broad-mount", base + "/data leads to /var, which is a broad mount"},
		{policy.Policy{Writable: mount("/out")}, "broad-mount", base + "/out leads to /etc, which is a system directory, and would be writable"},
		{policy.Policy{ReadOnly: mount("/out")}, "", ""},
		{policy.Policy{Unix: []policy.Text{{Value: base + "/s"}}}, "docker-socket", base + "/s leads to " + base + "/docker.sock, which needs a word that makes a reader pause"},
	} {
		g, err := openGrants(&c.p, Caller{}, nil)
		if c.word != "" {
			if r := refusal(t, err); r.What != c.what || r.Remedy != "if the command must have it, write unsafe: ["+c.word+"] in a policy file" {
				t.Errorf("%+v", r)
			}
			c.p.Unsafe = []policy.Text{{Value: c.word}}
			g, err = openGrants(&c.p, Caller{}, nil)
		}
		if err != nil || len(g.entries) != 1 {
			t.Errorf("%s: %v, %d entries", c.what, err, len(g.entries))
		}
	}
}

// The kernel's own file systems are refused by what they are, wherever they are mounted.
func TestGrantableRefusesMachineFileSystems(t *testing.T) {
	for p, name := range map[string]string{"/proc/sys": "proc", "/proc/version": "proc", "/sys/kernel": "sysfs", "/proc/self/ns/net": "nsfs"} {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		o := Opened{File: os.NewFile(uintptr(fd), p), Path: "/innocent"}
		must(t, unix.Fstat(fd, &o.Stat))
		r := grantable(o)
		if r == nil || r.What != "/innocent lies on a "+name+" file system, which steers the machine" || r.Remedy == "" {
			t.Errorf("%s: %v", p, r)
		}
		must(t, o.File.Close())
	}
	if r := grantable(*mustOpen(t, "/usr")); r != nil {
		t.Errorf("/usr: %v", r)
	}
}

// All problems are said, and what was opened beside them is held for the release.
func TestGrantsReportEverything(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/file", "", 0o644, 0, 0)
	p := policy.Policy{
		ReadOnly: []policy.Mount{mountAt(base+"/a", 1), mountAt(base+"/file", 2)}, Writable: []policy.Mount{mountAt(base+"/b", 3)},
		Workspace: policy.Workspace{Path: base + "/file", Mode: "rw", Source: lineOf(4)},
	}
	g, err := openGrants(&p, Caller{UID: os.Getuid()}, nil)
	defer closeGrants(t, g)
	want := "cannot grant " + base + "/a: no such file or directory [filesystem.read_only_mounts (p.yaml:1:3)]; create it, or remove the grant\n" +
		"cannot grant " + base + "/b: no such file or directory [filesystem.writable_mounts (p.yaml:3:3)]; create it, or remove the grant\n" +
		"the workspace " + base + "/file is not a directory [filesystem.workspace (p.yaml:4:3)]; name a directory with -w DIR"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if len(g.entries) != 2 || g.owner != nil {
		t.Errorf("entries %+v, owner %+v", g.entries, g.owner)
	}
}

// What openSystem returns is what the host has, by kind.
func TestOpenSystem(t *testing.T) {
	before := testenv.Descriptors()
	opened, links, err := openSystem()
	must(t, err)
	if testenv.Since(before) != 0+len(opened) {
		t.Errorf("%d descriptors for %d directories", testenv.Since(before), len(opened))
	}
	seen := map[string]bool{}
	for _, o := range opened {
		var st unix.Stat_t
		must(t, unix.Lstat(o.Path, &st))
		if st.Ino != o.Stat.Ino || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			t.Errorf("%s: %+v", o.Path, o.Stat)
		}
		seen[o.Path] = true
	}
	for p, target := range links {
		if got, err := os.Readlink(p); err != nil || got != target {
			t.Errorf("%s -> %q, want %q (%v)", p, target, got, err)
		}
		seen[p] = true
	}
	for _, p := range systemPaths {
		if _, err := os.Lstat(p); (err == nil) != seen[p] {
			t.Errorf("%s: shown %v, but lstat says %v", p, seen[p], err)
		}
	}
	must(t, closeAll(opened))
	if err := closeAll(opened); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing twice is hidden: %v", err)
	}
}

// No secret of the host is among what every run sees.
func TestSystemPathsHoldNoSecret(t *testing.T) {
	for _, p := range systemPaths {
		for _, secret := range []string{"/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/etc/sudoers", "/root", "/home", "/var", "/proc", "/run", "/etc/agentguard"} {
			if within(secret, p) || within(p, secret) {
				t.Errorf("%s shows %s", p, secret)
			}
		}
		if filepath.Clean(p) != p || !filepath.IsAbs(p) {
			t.Errorf("%s is not clean", p)
		}
	}
}
