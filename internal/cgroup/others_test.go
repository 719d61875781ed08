package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/testenv"
)

// Another build's parent goes when it has been without runs for long, and stays
// while that build may be in use.
func TestSweepOthers(t *testing.T) {
	testenv.Root(t)
	l := detect(t)
	prefix := testenv.CgroupName() + "-"
	long := time.Now().Add(-2 * keepEmpty)
	dirs := map[string]bool{"00000001": true, "00000002": false, "00000003": true, "0000000x": false, "000": false}
	for build := range dirs {
		dir := filepath.Join(l.Unified, prefix+build)
		if err := makeDir(dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
	}
	// A leaf that is made and removed counts as use.
	leaf := filepath.Join(l.Unified, prefix+"00000002", "x"+suffix)
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(leaf); err != nil {
		t.Fatal(err)
	}
	own := prefix + "00000003"
	dirs["00000003"] = false
	swept, err := l.SweepOthers(t.Context(), prefix, own, func(string) bool { return false })
	if err != nil || len(swept) != 0 {
		t.Errorf("swept %q, %v", swept, err)
	}
	for build, gone := range dirs {
		if isDir(filepath.Join(l.Unified, prefix+build)) == gone {
			t.Errorf("%s: removed %v, want %v", build, !gone, gone)
		}
	}
}

// A parent that is left in a v1 hierarchy alone goes too, and what is released
// is not asked for its age.
func TestRelease(t *testing.T) {
	testenv.Root(t)
	l := detect(t)
	prefix := testenv.CgroupName() + "-"
	dirs := []string{filepath.Join(l.Unified, prefix+"00000001")}
	for _, root := range l.V1 {
		dirs = append(dirs, filepath.Join(root, prefix+"00000002"))
	}
	live := filepath.Join(l.Unified, prefix+"00000003")
	for _, dir := range append(dirs, live, filepath.Join(live, "here"+suffix), filepath.Join(dirs[0], "dead"+suffix)) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Remove(filepath.Join(live, "here"+suffix)); os.Remove(live) })
	held := l.existing(prefix + "00000003").leaf("held")
	spare := l.existing(prefix + "00000001").leaf("spare")
	for _, leaf := range []*Leaf{held, spare} {
		if err := os.Mkdir(leaf.Path, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := leaf.take()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	t.Cleanup(func() { os.Remove(held.Path) })
	swept, err := l.Release(t.Context(), prefix, func(id string) bool { return id == "here" }, func(id string) bool { return id == "spare" })
	if slices.Sort(swept); err != nil || !slices.Equal(swept, []string{"dead", "spare"}) {
		t.Errorf("swept %q, %v", swept, err)
	}
	for _, dir := range dirs {
		if isDir(dir) {
			t.Errorf("%s is there", dir)
		}
	}
	if !isDir(live) || !isDir(held.Path) {
		t.Error("a parent with a live run is gone")
	}
}
