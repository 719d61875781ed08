package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/internal/testenv"
	"golang.org/x/sys/unix"
)

// base returns a directory that nobody but root and the test's user can touch:
// t.TempDir is below a sticky /tmp, which is safe too.
func base(t *testing.T) string {
	t.Helper()
	d := t.TempDir()
	for p := d; p != "/"; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err == nil && st.Mode()&os.ModeSticky == 0 && st.Mode().Perm()&0o022 != 0 {
			testenv.Missing(t, "tmp", p+" is writable by others")
		}
	}
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func openState(t *testing.T) *State {
	t.Helper()
	s, err := OpenState(filepath.Join(base(t), "state"), os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestDefaultPath(t *testing.T) {
	tests := []struct {
		uid        int
		xdg, home  string
		want       string
		wantsError bool
	}{
		{0, "/x", "/root", "/var/lib/agentguard", false},
		{1000, "/x", "/home/u", "/x/agentguard", false},
		{1000, "", "/home/u", "/home/u/.local/state/agentguard", false},
		{1000, "rel", "/home/u", "/home/u/.local/state/agentguard", false},
		{1000, "", "", "", true},
		{1000, "", "rel", "", true},
	}
	for _, tt := range tests {
		env := map[string]string{"XDG_STATE_HOME": tt.xdg, "HOME": tt.home}
		got, err := DefaultPath(tt.uid, func(k string) string { return env[k] })
		if got != tt.want || (err != nil) != tt.wantsError {
			t.Errorf("%+v: got %q, %v", tt, got, err)
		}
	}
}

func TestOpenStateCreates(t *testing.T) {
	dir := filepath.Join(base(t), "a/b/./c//state")
	old := unix.Umask(0)
	defer unix.Umask(old)
	for range 2 {
		s, err := OpenState(dir, os.Geteuid())
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Clean(dir); s.Path() != want {
			t.Errorf("path %s, want %s", s.Path(), want)
		}
		for _, p := range []string{"", "runs", "../", "../../"} {
			st, err := os.Stat(filepath.Join(dir, p))
			if err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%q: %v %v", p, st.Mode(), err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenStateRefuses is the matrix of who could tamper with the record.
func TestOpenStateRefuses(t *testing.T) {
	const other = 12345
	chown := func(p string, uid int) error { return os.Lchown(p, uid, -1) }
	tests := []struct {
		name  string
		root  bool // needs root
		owner int  // uid to open as; 0: the test's
		make  func(d string) error
		path  string // below d; "s" if empty
		want  string // part of the error; "" when it is to be accepted
	}{
		{name: "plain", make: func(d string) error { return os.Mkdir(d+"/s", 0o755) }},
		{name: "group-writable", make: func(d string) error { return os.Chmod(d, 0o775) }, want: "writable by its group (mode 0775)"},
		{name: "world-writable", make: func(d string) error { return os.Chmod(d, 0o777) }, want: "writable by everybody (mode 0777)"},
		{name: "write-only to others", make: func(d string) error { return os.Chmod(d, 0o703) }, want: "writable by everybody"},
		{name: "sticky world-writable", make: func(d string) error { return os.Chmod(d, 0o777|os.ModeSticky) }},
		{name: "the directory itself group-writable", make: func(d string) error { os.Mkdir(d+"/s", 0o700); return os.Chmod(d+"/s", 0o770) }, want: "writable by its group"},
		{name: "runs world-writable", make: func(d string) error { os.MkdirAll(d+"/s/runs", 0o700); return os.Chmod(d+"/s/runs", 0o777) }, want: "writable by everybody"},
		{name: "a parent group-writable", make: func(d string) error { os.MkdirAll(d+"/p/q", 0o700); return os.Chmod(d+"/p", 0o770) }, path: "p/q/s", want: "/p is writable by its group"},
		{name: "not a directory", make: func(d string) error { return os.WriteFile(d+"/s", nil, 0o600) }, want: "is not a directory"},
		{name: "below a file", make: func(d string) error { return os.WriteFile(d+"/f", nil, 0o600) }, path: "f/s", want: "is not a directory"},
		{name: "runs is a link", make: func(d string) error { os.Mkdir(d+"/s", 0o777); return os.Symlink("/tmp", d+"/s/runs") }, want: ""},

		{name: "another's parent", root: true, make: func(d string) error { os.Mkdir(d+"/p", 0o755); return chown(d+"/p", other) }, path: "p/s", want: "/p belongs to uid 12345"},
		{name: "another's directory", root: true, make: func(d string) error { os.Mkdir(d+"/s", 0o755); return chown(d+"/s", other) }, want: "/s belongs to uid 12345"},
		{name: "another's directory in a sticky one", root: true, make: func(d string) error {
			os.Chmod(d, 0o777|os.ModeSticky)
			os.Mkdir(d+"/s", 0o755)
			return chown(d+"/s", other)
		}, want: "/s belongs to uid 12345"},
		{name: "another's sticky directory", root: true, make: func(d string) error {
			os.Mkdir(d+"/p", 0o755)
			os.Chmod(d+"/p", 0o1777|os.ModeSticky)
			return chown(d+"/p", other)
		}, path: "p/s", want: "/p belongs to uid 12345"},
		{name: "the owner's own", root: true, owner: other, make: func(d string) error { os.Mkdir(d+"/s", 0o700); return chown(d+"/s", other) }},
		{name: "owner, directory of root's", root: true, owner: other, make: func(d string) error { return nil }},
		{name: "link by root", root: true, make: func(d string) error { os.Mkdir(d+"/r", 0o700); return os.Symlink("r", d+"/l") }, path: "l/s"},
		{name: "absolute link by root", root: true, make: func(d string) error { os.Mkdir(d+"/r", 0o700); return os.Symlink(d+"/r/../r", d+"/l") }, path: "l/s"},
		{name: "link by root as the directory itself", root: true, make: func(d string) error { os.Mkdir(d+"/r", 0o700); return os.Symlink("r", d+"/s") }},
		{name: "link by another in root's directory", root: true, make: func(d string) error { os.Mkdir(d+"/r", 0o700); os.Symlink("r", d+"/l"); return chown(d+"/l", other) }, path: "l/s", want: "root does not vouch for"},
		{name: "link in a sticky directory", root: true, make: func(d string) error {
			os.Mkdir(d+"/r", 0o700)
			os.Symlink("r", d+"/l")
			return os.Chmod(d, 0o777|os.ModeSticky)
		}, path: "l/s", want: "root does not vouch for"},
		{name: "link in the owner's directory", root: true, owner: other, make: func(d string) error {
			os.MkdirAll(d+"/h/r", 0o700)
			os.Symlink("r", d+"/h/l")
			return chown(d+"/h", other)
		}, path: "h/l/s", want: "root does not vouch for"},
		{name: "link to an unsafe place", root: true, make: func(d string) error {
			os.Mkdir(d+"/r", 0o700)
			os.Chmod(d+"/r", 0o777)
			return os.Symlink("r", d+"/l")
		}, path: "l/s", want: "/r is writable by everybody"},
		{name: "links in a circle", root: true, make: func(d string) error { os.Symlink("m", d+"/l"); return os.Symlink("l", d+"/m") }, path: "l/s", want: "too many levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root {
				testenv.Root(t)
			}
			d := base(t)
			t.Cleanup(func() { os.Chmod(d, 0o700) })
			if err := tt.make(d); err != nil {
				t.Fatal(err)
			}
			owner := os.Geteuid()
			if tt.owner != 0 {
				owner = tt.owner
			}
			path := "s"
			if tt.path != "" {
				path = tt.path
			}
			if tt.name == "runs is a link" { // only root's links, and only root's directory, are followed
				tt.want = "" // /tmp is sticky: fine for root
				if os.Geteuid() != 0 {
					tt.want = "root does not vouch for"
				}
			}
			s, err := OpenState(filepath.Join(d, path), owner)
			if err == nil {
				defer s.Close()
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && err == nil:
				t.Errorf("accepted, want %q", tt.want)
			case tt.want != "" && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--state DIR")):
				t.Errorf("got  %v\nwant %q and --state DIR", err, tt.want)
			}
		})
	}
}

// TestOpenStateErrorIsSafe has a name that a terminal must not see.
func TestOpenStateErrorIsSafe(t *testing.T) {
	d := base(t) + "/\x1b[2J\n"
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(d, 0o777)
	_, err := OpenState(d+"/s", os.Geteuid())
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("got %q", err)
	}
}

func TestOpenStateNotWritable(t *testing.T) {
	_, err := OpenState("/proc/agentguard/state", os.Geteuid())
	if err == nil || !strings.Contains(err.Error(), "cannot create /proc/agentguard") || !strings.Contains(err.Error(), "--state DIR") {
		t.Errorf("got %v", err)
	}
}

// TestOwnedByTheOwner has root keep the record of somebody else.
func TestOwnedByTheOwner(t *testing.T) {
	testenv.Root(t)
	const owner = 12345
	s, err := OpenState(base(t)+"/state", owner)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Create("r1")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Create(TraceFile)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, p := range []string{"", "runs", "runs/r1", "runs/r1/trace.jsonl"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(s.Path(), p), &st); err != nil || st.Uid != owner || st.Mode&0o077 != 0 {
			t.Errorf("%q: uid %d, mode %o, %v", p, st.Uid, st.Mode, err)
		}
	}
}

func statOf(t *testing.T, path string) devIno {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return devIno{st.Dev, st.Ino}
}

func covers(t *testing.T, s *State, path string) bool {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	hit, err := s.Covers(fd)
	if err != nil {
		t.Fatal(err)
	}
	return hit
}

func TestReaches(t *testing.T) {
	s := openState(t)
	up := filepath.Dir(s.Path())
	os.Mkdir(up+"/sibling", 0o700)
	os.WriteFile(up+"/file", nil, 0o600)
	d, err := s.Create("r1")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Create(TraceFile)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	tests := []struct {
		path            string
		reaches, covers bool
	}{
		{"/", true, true},
		{up, true, true},
		{s.Path(), true, true},
		{s.Path() + "/runs", false, true},
		{s.Path() + "/runs/r1", false, true},
		{s.Path() + "/runs/r1/trace.jsonl", false, true},
		{up + "/sibling", false, false},
		{up + "/file", false, false},
		{"/proc", false, false},
	}
	for _, tt := range tests {
		d := statOf(t, tt.path)
		got, err := s.reaches(d.Dev, d.Ino)
		if got != tt.reaches || err != nil {
			t.Errorf("reaches(%s) = %v, %v", tt.path, got, err)
		}
		if got := covers(t, s, tt.path); got != tt.covers {
			t.Errorf("Covers(%s) = %v", tt.path, got)
		}
	}
	chain := s.chain
	if chain[0] != statOf(t, "/") || chain[len(chain)-1] != statOf(t, s.Path()) || !slices.Contains(chain, statOf(t, up)) {
		t.Errorf("ancestors %v", chain)
	}
}

func TestAliasPaths(t *testing.T) {
	const info = `22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 8:2 / /var rw - ext4 /dev/sda2 rw
24 22 8:2 /lib /mnt/li\040b rw - ext4 /dev/sda2 rw
25 22 8:2 /lib/agentguard/runs /mnt/runs rw - ext4 /dev/sda2 rw
26 22 8:2 /lib/agentguard-old /mnt/old rw - ext4 /dev/sda2 rw
27 22 8:1 / /mnt/root rw - ext4 /dev/sda1 rw
28 22 8:2 / /mnt/var rw shared:1 - ext4 /dev/sda2 rw
29 22 8:2 /li /mnt/li rw - ext4 /dev/sda2 rw
broken line
x 22 8:2 / /y rw`
	got := aliasPaths(slices.Collect(mountinfo.All([]byte(info))), 23, "/var/lib/agentguard")
	want := []string{"/mnt/li b/agentguard", "/mnt/runs", "/mnt/var/lib/agentguard"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := aliasPaths(nil, 23, "/x"); got != nil {
		t.Errorf("unknown mount: %q", got)
	}
}

// TestReachesThroughBindMount shows the state directory in a second place.
func TestReachesThroughBindMount(t *testing.T) {
	testenv.Root(t)
	up, other := base(t), t.TempDir()
	err := inMountNamespace(func() error {
		s, err := OpenState(up+"/state", 0)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := os.MkdirAll(other+"/a/b", 0o700); err != nil {
			return err
		}
		if err := unix.Mount(up, other+"/a/b", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		defer unix.Unmount(other+"/a/b", unix.MNT_DETACH)
		for _, p := range []string{other, other + "/a", other + "/a/b/state/runs"} {
			if !covers(t, s, p) {
				t.Errorf("%s shows the state directory by a bind mount", p)
			}
		}
		return nil
	})
	if errors.Is(err, errNoNamespace) {
		testenv.Missing(t, "mount-namespace", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}
