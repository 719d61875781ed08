package changes

import (
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// git makes a repository in dir that tracks what it ignores, in more ways than one.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testenv.Missing(t, "git", err.Error())
	}
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// trackedRepo is a repository with these files tracked, all of which are ignored.
func trackedRepo(t *testing.T) (dir string, files []string) {
	t.Helper()
	dir = t.TempDir()
	git(t, dir, "init", "-q")
	files = []string{".gitignore", "build/kept.txt", "build/sub/deep/" + strings.Repeat("n", 200), "x.o", "new\nline.o"}
	slices.Sort(files)
	for _, f := range files {
		must(t, os.MkdirAll(filepath.Dir(dir+"/"+f), 0o755), os.WriteFile(dir+"/"+f, []byte("*.o\n/build/\n"), 0o644))
	}
	git(t, dir, append([]string{"add", "-f"}, files...)...)
	return dir, files
}

func TestTrackedIn(t *testing.T) {
	for _, version := range []string{"2", "3", "4"} {
		dir, files := trackedRepo(t)
		if version == "3" {
			must(t, os.WriteFile(dir+"/later", nil, 0o644))
			git(t, dir, "add", "-N", "later") // an extended flag
			files = append(files, "later")
			slices.Sort(files)
		}
		git(t, dir, "update-index", "--index-version", version)
		b, err := os.ReadFile(dir + "/.git/index")
		if must(t, err); binary.BigEndian.Uint32(b[4:]) != uint32(version[0]-'0') {
			t.Fatalf("git wrote version %d", binary.BigEndian.Uint32(b[4:]))
		}
		got, ok := trackedIn(open(t, dir))
		if names := slices.Sorted(maps.Keys(got)); !ok || !slices.Equal(names, files) {
			t.Errorf("version %s: %v %q", version, ok, names)
		}
		for cut := range len(b) { // any part of it is refused or ends
			_, _ = readIndex(b[:cut])
		}
	}
}

// Where an index does not say all, nothing that was there before is folded.
func TestTrackedUnknown(t *testing.T) {
	for name, make := range map[string]func(dir string) string{
		"split": func(dir string) string { git(t, dir, "update-index", "--split-index"); return dir },
		"a worktree": func(dir string) string {
			must(t, os.WriteFile(dir+"/build/.git", []byte("gitdir: /x"), 0o644))
			return dir + "/build"
		},
		"below": func(dir string) string { return dir + "/build" },
		"cut":   func(dir string) string { must(t, os.Truncate(dir+"/.git/index", 100)); return dir },
		"another version": func(dir string) string {
			must(t, os.WriteFile(dir+"/.git/index", []byte(strings.Repeat("DIRC", 20)), 0o644))
			return dir
		},
	} {
		dir, _ := trackedRepo(t)
		if got, ok := trackedIn(open(t, make(dir))); ok {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got, ok := trackedIn(open(t, t.TempDir())); !ok || len(got) > 0 {
		t.Errorf("no repository: %v %v", ok, got)
	}
}

// What git tracks is shown one by one although it is ignored; build output that
// was there before is folded.
func TestTrackedIsShown(t *testing.T) {
	base, _ := trackedRepo(t)
	upper := t.TempDir()
	for _, f := range []string{"build/out", "y.o", "build/nested/.git/HEAD", "build/nested/f"} {
		must(t, os.MkdirAll(filepath.Dir(base+"/"+f), 0o755), os.WriteFile(base+"/"+f, []byte("old"), 0o644))
	}
	for _, f := range []string{"build/kept.txt", "x.o", "y.o", "build/out", "build/new", "build/nested/f"} {
		must(t, os.MkdirAll(filepath.Dir(upper+"/"+f), 0o755), os.WriteFile(upper+"/"+f, []byte("changed"), 0o644))
	}
	set := plainTree(t, upper, base)
	shown, folds := set.FoldIgnored(set.Changes(nil, nil), func(string) (*os.File, error) { return os.Open(base) })
	var names []string
	for i := range shown {
		if shown[i].node().Type == File {
			names = append(names, shown[i].Path)
		}
	}
	slices.Sort(names)
	n := 0
	for i := range folds {
		n += folds[i].Added + folds[i].Modified
	}
	if want := []string{"build/kept.txt", "build/nested/f", "x.o"}; !slices.Equal(names, want) || n < 3 {
		t.Errorf("%q shown, %d folded", names, n)
	}
}

// Whatever an index holds, reading it ends within its bounds.
func FuzzGitIndex(f *testing.F) {
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00" + strings.Repeat("\x00", 20)))
	f.Add(append(append([]byte("DIRC\x00\x00\x00\x04\x00\x00\x00\x01"), make([]byte, 62)...), []byte("\x00a\x00"+strings.Repeat("\x00", 20))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		paths, err := readIndex(b)
		if err != nil && len(paths) > len(b) {
			t.Error("more paths than bytes")
		}
	})
}
