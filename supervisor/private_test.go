package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// What a command has left in its private directory goes, however deep it lies and whatever its
// modes are, as an ordinary user and with few descriptors.
func TestRemoveTree(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	must(t, os.MkdirAll(filepath.Join(top, "closed", "more"), 0o755))
	must(t, os.WriteFile(filepath.Join(top, "closed", "file"), nil, 0))
	must(t, os.WriteFile(filepath.Join(top, "moved-1"), nil, 0o600)) // a name that moving takes
	must(t, os.Mkdir(filepath.Join(top, "moved-2"), 0o755))
	must(t, os.Symlink("/", filepath.Join(top, "link")))
	must(t, unix.Mkfifo(filepath.Join(top, "fifo"), 0))
	must(t, os.Chmod(filepath.Join(top, "closed"), 0))
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 3000 { // deeper than any path can say, and than descriptors last
		must(t, unix.Mkdirat(fd, "d", 0o500))
		must(t, unix.Fchmodat(fd, "d", 0o700, 0))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	must(t, removeTree(top))
	if exists(top) {
		t.Error("it is still there")
	}
	if err := removeTree(top); !os.IsNotExist(err) {
		t.Errorf("of nothing: %v", err)
	}
}

// A link in the place of a directory is not followed: whoever still writes there would choose whose
// mode is changed.
func TestRemoveEntrySwapped(t *testing.T) {
	top, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.MkdirAll(filepath.Join(top, "d", "inner"), 0o755))
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	list, err := os.ReadDir(top)
	must(t, err)
	must(t, os.Rename(filepath.Join(top, "d"), filepath.Join(top, "was")))
	must(t, os.Symlink(outside, filepath.Join(top, "d")))
	moved := 0
	if err := removeEntry(fd, list[0], &moved); err == nil {
		t.Error("it was taken for a directory")
	}
	if err := moveUp(fd, "d", fd, &moved); err == nil {
		t.Error("moved as a directory")
	}
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("what the link leads to: %v, %v", st.Mode(), err)
	}
}

// The directory of a run that lives stays, wherever its lock is: a start of the same user may have another
// XDG_RUNTIME_DIR, or none. That of a dead one goes.
func TestSweepPrivate(t *testing.T) {
	state, err := runs.OpenState(filepath.Join(t.TempDir(), "state"), os.Getuid())
	must(t, err)
	defer state.Close()
	lives := &Run{host: &Host{Info: HostInfo{Mode: ModeLandlock}}, grants: &grants{}, state: state, id: "lives", runtime: t.TempDir()}
	must(t, lives.makePrivate())
	dead := filepath.Join(state.Path(), privateName, "dead")
	must(t, os.Mkdir(dead, 0o700))
	long := time.Now().Add(-time.Hour)
	for _, name := range []string{lives.private.top, dead} {
		must(t, os.Chtimes(name, long, long))
	}
	other := &Run{state: state, runtime: t.TempDir()}
	must(t, other.sweepPrivate())
	if !exists(lives.private.home.Path) || exists(dead) {
		t.Errorf("left: %v, %v", exists(lives.private.home.Path), exists(dead))
	}
	must(t, lives.release.run())
	if exists(lives.private.top) {
		t.Error("it is there after the run")
	}
}
