package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// treeBelow makes a directory to be compared.
func treeBelow(t *testing.T) (dir string, tree *guardedTree) {
	t.Helper()
	base := t.TempDir()
	dir = filepath.Join(base, "hooks")
	must(t, os.MkdirAll(dir+"/a/b/c", 0o755), os.WriteFile(dir+"/a/b/c/old", []byte("x"), 0o644), os.WriteFile(dir+"/a/gone", nil, 0o644), os.Symlink("/etc/passwd", dir+"/a/link"))
	f, err := os.OpenFile(base, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	tree = &guardedTree{outer: &Opened{File: f, Path: base}, from: "/ws", rel: "hooks"}
	tree.before, tree.whole = tree.look(upTo(lots))
	nextTick(t)
	return dir, tree
}

// nextTick waits until what is changed has another time than what was before: up to Linux
// 6.12 times of files are those of the last timer interrupt (inode_set_ctime_current).
func nextTick(t *testing.T) {
	var then, now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &then))
	for now = then; now == then; time.Sleep(time.Millisecond) {
		must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
}

const lots = maxCompared

// Whatever was made, changed or removed below a directory is told, however deep.
func TestGuardedTree(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(dir string) error
		want []string
	}{
		{"nothing", func(string) error { return nil }, nil},
		{"made", func(d string) error { return os.WriteFile(d+"/a/b/c/new", nil, 0o755) }, []string{"/ws/hooks/a/b/c/new was made"}},
		{"made with its directory", func(d string) error {
			return errors.Join(os.MkdirAll(d+"/x/y", 0o755), os.WriteFile(d+"/x/y/z", nil, 0o755))
		}, []string{"/ws/hooks/x was made"}},
		{"written", func(d string) error { return os.WriteFile(d+"/a/b/c/old", []byte("y"), 0o644) }, []string{"/ws/hooks/a/b/c/old was changed"}},
		{"mode", func(d string) error { return os.Chmod(d+"/a/b", 0o700) }, []string{"/ws/hooks/a/b was changed"}},
		{"replaced", func(d string) error {
			return errors.Join(os.WriteFile(d+"/t", []byte("x"), 0o644), os.Rename(d+"/t", d+"/a/b/c/old"))
		}, []string{"/ws/hooks/a/b/c/old was changed"}},
		{"removed", func(d string) error { return os.RemoveAll(d + "/a/b") }, []string{"/ws/hooks/a/b was removed"}},
		{"a link elsewhere", func(d string) error {
			return errors.Join(os.RemoveAll(d+"/a/b"), os.Symlink("/usr", d+"/a/b"))
		}, []string{"/ws/hooks/a/b was changed"}},
		{"replaced as a whole", func(d string) error {
			return errors.Join(os.Rename(d, d+"2"), os.MkdirAll(d+"/a", 0o755), os.WriteFile(d+"/a/gone", nil, 0o755))
		}, []string{"/ws/hooks/a was changed", "/ws/hooks/a/gone was changed", "/ws/hooks/a/b was removed", "/ws/hooks/a/link was removed"}},
	} {
		dir, tree := treeBelow(t)
		if !tree.whole || len(tree.before) != 6 {
			t.Fatalf("%v %v", tree.whole, tree.before)
		}
		must(t, tt.do(dir))
		if got := tree.planted(upTo(lots)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func upTo(n int) *int { return &n }

// What is beyond a bound is said to be.
func TestGuardedTreeBounds(t *testing.T) {
	beyond := func(got []string) bool {
		return len(got) > 0 && strings.Contains(got[len(got)-1], "/ws/hooks was not compared as a whole")
	}
	dir, tree := treeBelow(t)
	if got := tree.planted(upTo(3)); !beyond(got) || len(got) != 1 {
		t.Errorf("names: %q", got)
	}
	must(t, os.MkdirAll(dir+strings.Repeat("/d", maxDeep+3), 0o755))
	if got := tree.planted(upTo(lots)); !beyond(got) || got[0] != "/ws/hooks/d was made" {
		t.Errorf("depth: %q", got)
	}
	_, tree = treeBelow(t)
	for i := range maxPlanted + 5 {
		tree.before["n"+strconv.Itoa(i)] = version{}
	}
	if got := tree.planted(upTo(lots)); len(got) != maxPlanted+1 || got[maxPlanted] != "/ws/hooks: and 5 more below it" {
		t.Errorf("lines: %q", got)
	}
}
