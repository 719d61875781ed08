package changes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// Whoever swaps a directory of the tree for a link while it is committed gets
// nothing written, deleted or changed at the other end.
func TestCommitWhileSwapped(t *testing.T) {
	upper, base, outside := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{base + "/sub/deep", outside + "/deep"} {
		must(t, os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/f", []byte("old"), 0o644), os.WriteFile(dir+"/mode", []byte("same"), 0o600))
	}
	must(t, os.MkdirAll(upper+"/sub/deep", 0o755), os.WriteFile(upper+"/sub/deep/f", []byte("new"), 0o644), os.WriteFile(upper+"/sub/deep/mode", []byte("same"), 0o777),
		os.WriteFile(upper+"/sub/deep/added", nil, 0o644), os.Chmod(upper+"/sub/deep/mode", 0o777), os.Symlink(outside, base+"/link"))
	set := plainTree(t, upper, base)
	before := listing(t, outside)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, base+"/sub", unix.AT_FDCWD, base+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range rounds(t, 60, 15) {
		_ = commitAll(t, set, base) // any end will do, but a file elsewhere
		_ = os.RemoveAll(base + "/" + Stage("deep"))
	}
	close(stop)
	<-done
	if diff := cmp.Diff(before, listing(t, outside)); diff != "" {
		t.Errorf("outside (-before +after):\n%s", diff)
	}
}

// What has the name of commit's own directory is not mixed with it.
func TestStageNameTaken(t *testing.T) {
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(upper+"/"+Stage("deep"), 0o755), os.WriteFile(upper+"/"+Stage("deep")+"/2", []byte("x"), 0o644), os.WriteFile(upper+"/f", nil, 0o644))
	err := commitAll(t, plainTree(t, upper, base), base)
	if left, _ := os.ReadDir(base); err == nil || !strings.Contains(err.Error(), "commit's own directory") || len(left) > 0 {
		t.Errorf("%v, left %v", err, left)
	}
}

// A hard link to a protected file does not carry a change of it into the host.
func TestLinkToProtected(t *testing.T) {
	upper, base := t.TempDir(), t.TempDir()
	for dir, text := range map[string]string{upper: "evil", base: "good"} {
		must(t, os.Mkdir(dir+"/.git", 0o755), os.WriteFile(dir+"/.git/config", []byte(text), 0o644))
	}
	must(t, os.Link(upper+"/.git/config", upper+"/x"))
	set := plainTree(t, upper, base)
	picks := make([]bool, len(set.Entries))
	for i := range picks {
		picks[i] = !set.Danger(&set.Entries[i], nil).Protected
	}
	j, err := os.OpenFile(filepath.Join(t.TempDir(), "journal"), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	must(t, err)
	defer j.Close()
	must(t, set.Commit(open(t, base), set.at(1), picks, Options{ID: "deep", Journal: j}))
	for name, want := range map[string]string{"/.git/config": "good", "/x": "evil"} {
		var st unix.Stat_t
		b, err := os.ReadFile(base + name)
		if must(t, err, unix.Lstat(base+name, &st)); string(b) != want || st.Nlink != 1 {
			t.Errorf("%s: %q, %d names", name, b, st.Nlink)
		}
	}
}

// A mode is not given to a file that has other names: one may be protected.
func TestModeOfLinked(t *testing.T) {
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(base+"/tool", []byte("x"), 0o644), os.Link(base+"/tool", base+"/hook"), os.WriteFile(upper+"/tool", []byte("x"), 0o644), os.Chmod(upper+"/tool", 0o755))
	var conflict *ConflictError
	if err := commitAll(t, plainTree(t, upper, base), base); !errors.As(err, &conflict) || !strings.Contains(conflict.Conflicts[0].Why, "2 names") {
		t.Errorf("%v", err)
	}
	if st, err := os.Stat(base + "/hook"); err != nil || st.Mode() != 0o644 {
		t.Errorf("%v %v", st, err)
	}
}

// The overlay's marks in the user's name space are plain attributes of the
// command's own, mean nothing and are not kept.
func TestForgedMarks(t *testing.T) {
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(base+"/secret", 0o755), os.WriteFile(base+"/secret/f", []byte("x"), 0o644), os.Mkdir(base+"/d", 0o755), os.WriteFile(base+"/d/kept", nil, 0o644), os.Mkdir(upper+"/d", 0o755))
	for name, value := range map[string]string{"redirect": "/secret", "opaque": "y", "metacopy": "", "whiteout": "y"} {
		must(t, unix.Setxattr(upper+"/d", "user.overlay."+name, []byte(value), 0))
	}
	set := plainTree(t, upper, base)
	for i := range set.Entries {
		if e := &set.Entries[i]; len(e.From) > 0 || e.Op() != None {
			t.Errorf("%q: %c, from %q", set.Path(e), e.Op(), e.From)
		}
	}
}

// A directory that its owner may not write is opened for the time, as the run did,
// also when the commit is killed meanwhile. The owner is no root.
func TestClosedDirectory(t *testing.T) {
	testenv.Root(t)
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(base+"/d", 0o755), os.WriteFile(base+"/d/f", []byte("old"), 0o644), os.Mkdir(upper+"/d", 0o755), os.WriteFile(upper+"/d/f", []byte("new"), 0o644),
		os.WriteFile(base+"/d/gone", nil, 0o644), os.Chmod(base+"/d", 0o500), os.Chmod(upper+"/d", 0o500), unix.Mknod(upper+"/d/gone", unix.S_IFCHR, 0))
	run(t, "chown", "-R", "12345:12345", base, upper)
	c := &testCase{dir: t.TempDir(), base: base, upper: upper, user: 12345}
	c.pack(t)
	for over := false; !over; c.step++ {
		c.newJournal(t)
		run(t, "sh", "-c", `cd "$1" && chmod 700 d && echo -n old >d/f && touch d/gone && chown 12345:12345 d/* && chmod 500 d && rm -rf .agent*`, "sh", base)
		for at := c.step; ; at = 1000 {
			_, done := c.crash(t, at)
			over = done && at == c.step
			if done {
				break
			}
		}
		b, err := os.ReadFile(base + "/d/f")
		st, serr := os.Stat(base + "/d")
		_, gone := os.Lstat(base + "/d/gone")
		if must(t, err, serr); string(b) != "new" || st.Mode().Perm() != 0o500 || !os.IsNotExist(gone) {
			t.Errorf("killed at %d and then committed: %q, %v, %v", c.step, b, st.Mode(), gone)
		}
	}
	must(t, c.journal.Close())
}
