package helper

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A plain file is taken where a read of it returns. What a user mounts over a file system of its own
// (FUSE) shows the type of an overlay.
func TestPassableFiles(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "one/f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	proc, err := unix.Open("/proc/self/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fd    int
		taken bool
	}{"memory": {memory, true}, "procfs": {proc, false}, "overlay": {overlaid(t, dir), false}} {
		f := os.NewFile(uintptr(c.fd), name)
		defer f.Close()
		if err := Passable(f, 0); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// overlaid opens f in an overlay of the two directories, which is attached nowhere.
func overlaid(t *testing.T, dir string) int {
	t.Helper()
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "lowerdir", filepath.Join(dir, "one")+":"+filepath.Join(dir, "two"))
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, "f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
