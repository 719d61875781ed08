package supervisor

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/landlock"
)

// The runtime directory is root's alone, or there is no run.
func TestMakeRuntimeDir(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	mkfile(t, base+"/file", "", 0o600, 0, 0)
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	mkdirOwned(t, base+"/open", 0o775, 0, 0)
	mkdirOwned(t, base+"/sticky", 0o777|os.ModeSticky, 0, 0)
	mkdirOwned(t, base+"/good", 0o755, 0, 0)
	must(t, os.Symlink(base+"/good", base+"/link"))
	for name, want := range map[string]string{
		"good": "", "new": "", "new/below": "",
		"file": "is not a directory that only root can write", "user": "is not a directory that only root can write",
		"open": "is not a directory that only root can write", "sticky": "is not a directory that only root can write",
		"link": "is not a directory that only root can write", "no/parent": "cannot make the runtime directory",
	} {
		if name == "new/below" {
			must(t, makeRuntimeDir(base+"/new"))
		}
		err := makeRuntimeDir(filepath.Join(base, name))
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if r := refusal(t, err); !strings.Contains(r.What, want) || !strings.Contains(r.What, filepath.Join(base, name)) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(base+"/new", &st))
	if st.Mode&0o7777 != 0o755 {
		t.Errorf("made with mode %o", st.Mode)
	}
}

// A grant that is the runtime directory, however it is named, is found by what it is.
func TestReached(t *testing.T) {
	base := publicDir(t)
	dirs := []string{base + "/run/agentguard", base + "/run", base + "/other"}
	for _, d := range dirs {
		must(t, os.MkdirAll(d, 0o755))
	}
	machine := machineDirs(dirs[0])
	if want := strings.Count(dirs[0], "/") + 1; len(machine) != want { // itself, its parents, and /
		t.Errorf("%d directories, want %d", len(machine), want)
	}
	entry := func(p string) Entry {
		var st unix.Stat_t
		must(t, unix.Stat(p, &st))
		return Entry{At: "/somewhere/else", From: p, Dev: st.Dev, Ino: st.Ino}
	}
	for p, want := range map[string]bool{dirs[0]: true, dirs[1]: true, "/": true, dirs[2]: false} {
		got := reached([]Entry{entry(dirs[2]), entry(p)}, machine)
		if (got != nil) != want || (got != nil && got.From != p) {
			t.Errorf("%s reached: %+v", p, got)
		}
	}
	if reached(nil, machine) != nil || reached([]Entry{entry("/")}, nil) != nil {
		t.Error("nothing was reached")
	}
}

// What the probe says is what the kernel says.
func TestHostProbes(t *testing.T) {
	h := &Host{}
	h.kernel()
	h.probeLandlock()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	must(t, err)
	if h.Info.Kernel+"\n" != string(release) || h.Info.Machine == "" {
		t.Errorf("kernel %q on %q, /proc says %q", h.Info.Kernel, h.Info.Machine, release)
	}
	abi, err := landlock.ABI()
	if h.Info.Landlock != abi || (err != nil) != (h.Info.LandlockError != "") || !slices.Equal(h.Info.LandlockMissing, landlock.Missing(abi)) {
		t.Errorf("%+v, but the kernel says %d, %v", h.Info, abi, err)
	}
	must(t, h.openSystem())
	n := len(h.system)
	if n == 0 || h.links == nil || h.Info.IPv6 != exists("/proc/net/if_inet6") || len(h.procReadOnly) == 0 {
		t.Errorf("%d directories, %d links, /proc %q", n, len(h.links), h.procReadOnly)
	}
	before := testenv.Descriptors()
	must(t, h.Close(), h.Close())
	if got := testenv.Gone(before); got < n {
		t.Errorf("%d descriptors were closed, %d were open", got, n)
	}
}

func TestBuildInfo(t *testing.T) {
	b := Build()
	if b.Version != Version || b.Arch != runtime.GOARCH || b.OS != "linux" || len(b.Seams) != 0 || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("%+v", b)
	}
	if n := MemTotal(); n < 1<<20 || n%1024 != 0 {
		t.Errorf("RAM of %d bytes", n)
	}
}

// A crash stays inside only where neither a helper nor a socket of the host's is told.
func TestCrashes(t *testing.T) {
	for _, c := range []struct {
		pattern string
		noLimit bool
		want    string
	}{
		{"core\n", true, ""},
		{"|/usr/lib/systemd/systemd-coredump %P\n", false, ""},
		{"|/usr/lib/systemd/systemd-coredump %P\n", true, "helper"},
		{"@@/run/systemd/coredump\n", false, "socket"},
		{"@/run/coredump.socket\n", true, "socket"},
		{"", true, ""},
	} {
		got := crashes([]byte(c.pattern), c.noLimit)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q, no limit %v: %q", c.pattern, c.noLimit, got)
		}
	}
}
