package changes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// edits are what others may do to the file f between commit's last look and its
// act. Each leaves something that is theirs, which want describes.
var edits = map[string]struct {
	do   func(t *testing.T, f string)
	want string // first line of the listing below the top
}{
	"written in place, with size and time restored": {func(t *testing.T, f string) {
		st, err := os.Stat(f)
		must(t, err, os.WriteFile(f, []byte("dlo"), 0o644), os.Chtimes(f, st.ModTime(), st.ModTime()))
	}, `"/d/f" 100644 0:0 "dlo"`},
	"replaced by an editor": {func(t *testing.T, f string) {
		must(t, os.WriteFile(f+"~", []byte("theirs"), 0o600), os.Rename(f+"~", f))
	}, `"/d/f" 100600 0:0 "theirs"`},
	"a link now": {func(t *testing.T, f string) {
		must(t, os.Remove(f), os.Symlink("elsewhere", f))
	}, `"/d/f" 120777 0:0 -> elsewhere`},
	"a directory now": {func(t *testing.T, f string) {
		must(t, os.Remove(f), os.MkdirAll(f+"/sub", 0o700))
	}, `"/d/f" 40700 0:0`},
}

// raced is a commit of one file that is replaced or deleted, with an edit at the
// point between the last look and the act.
func raced(t *testing.T, deletion bool, act string, edit func(f string)) (c *testCase, commit func(force bool, step func(string)) error) {
	t.Helper()
	testenv.Root(t)
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(base+"/d", 0o755), os.WriteFile(base+"/d/f", []byte("old"), 0o644), os.Mkdir(upper+"/d", 0o755))
	if deletion {
		must(t, unix.Mknod(upper+"/d/f", unix.S_IFCHR, 0))
	} else {
		must(t, os.WriteFile(upper+"/d/f", []byte("new"), 0o644))
	}
	c = &testCase{dir: t.TempDir(), base: base, upper: upper}
	set := c.pack(t)
	c.newJournal(t)
	t.Cleanup(func() { must(t, c.journal.Close()) })
	return c, func(force bool, step func(string)) error {
		return set.Commit(open(t, base), set.at(1), []bool{true, true, true}, Options{ID: "test", Journal: c.journal, Force: force, Step: func(name string) {
			if edit != nil && strings.HasPrefix(name, act) {
				do := edit
				edit = nil
				do(base + "/d/f")
			}
			if step != nil {
				step(name)
			}
		}})
	}
}

// both names the act that takes the host's file away, for a replaced file and for a deleted one.
var both = map[bool]string{false: "exchange", true: "take out"}

// What the host makes of a file between the last look and the act that takes it
// away is kept, at its place and in every bit, and with Force it is overwritten.
func TestEditBeforeTheAct(t *testing.T) {
	for name, e := range edits {
		for deletion, act := range both {
			t.Run(act+", "+name, func(t *testing.T) {
				var theirs []string
				var dir string
				c, commit := raced(t, deletion, act, func(f string) {
					e.do(t, f)
					dir = filepath.Dir(filepath.Dir(f))
					theirs = without(listing(t, dir), "/"+Stage("test"))
				})
				for range 2 { // also when it is taken up again
					if err := commit(false, nil); err == nil || !strings.Contains(err.Error(), "changed while it was committed") {
						t.Fatalf("%v", err)
					}
					got := without(listing(t, c.base), "/"+Stage("test"))
					if strings.Join(got, "\n") != strings.Join(theirs, "\n") || !strings.HasPrefix(got[2], e.want) {
						t.Errorf("%q, want %q, as %q", got, theirs, e.want)
					}
				}
				c.forced(t, commit, deletion, name)
			})
		}
	}
}

// forced ends what was raced. A tree that the run did not see is never removed.
func (c *testCase) forced(t *testing.T, commit func(bool, func(string)) error, deletion bool, name string) {
	t.Helper()
	err := commit(true, nil)
	b, rerr := os.ReadFile(c.base + "/d/f")
	if strings.Contains(name, "directory") {
		if st, err := os.Stat(c.base + "/d/f/sub"); err != nil || !st.IsDir() {
			t.Errorf("the tree is gone: %v", err)
		}
		return
	}
	if must(t, err); deletion && !os.IsNotExist(rerr) || !deletion && string(b) != "new" {
		t.Errorf("with force: %q, %v", b, rerr)
	}
	if names, err := os.ReadDir(c.base); err != nil || len(names) != 1 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// A file that is deleted on the host in that moment is not made again, and one that
// is made where the run makes one is not overwritten.
func TestGoneBeforeTheAct(t *testing.T) {
	_, commit := raced(t, false, "exchange", func(f string) { must(t, os.Remove(f)) })
	if err := commit(false, nil); err == nil || !strings.Contains(err.Error(), "it is gone") {
		t.Errorf("%v", err)
	}
	if err := commit(false, nil); err == nil || !strings.Contains(err.Error(), "it is gone") {
		t.Errorf("again: %v", err)
	}
	must(t, commit(true, nil))

	upper, base := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(upper+"/f", []byte("new"), 0o644))
	set := plainTree(t, upper, base)
	c := &testCase{dir: t.TempDir()}
	c.newJournal(t)
	defer c.journal.Close()
	err := set.Commit(open(t, base), set.at(1), []bool{true, true}, Options{ID: "test", Journal: c.journal, Step: func(name string) {
		if strings.HasPrefix(name, "move in") {
			must(t, os.WriteFile(base+"/f", []byte("theirs"), 0o644))
		}
	}})
	if b, rerr := os.ReadFile(base + "/f"); err == nil || !strings.Contains(err.Error(), "made on the host too") || rerr != nil || string(b) != "theirs" {
		t.Errorf("%v; %q", err, b)
	}
}

// A process that has a file open for writing would write into what is removed: the
// file is a conflict, before anything is done, and also when it is opened in the
// last moment.
func TestOpenForWriting(t *testing.T) {
	for deletion, act := range both {
		var writer *os.File
		hold := func(f string) {
			var err error
			writer, err = os.OpenFile(f, os.O_WRONLY, 0)
			must(t, err)
		}
		c, commit := raced(t, deletion, act, hold)
		if err := commit(false, nil); err == nil || !strings.Contains(err.Error(), beingWritten) {
			t.Errorf("%s: %v", act, err)
		}
		_, err := writer.WriteString("theirs")
		must(t, err)
		if b, err := os.ReadFile(c.base + "/d/f"); string(b) != "theirs" {
			t.Errorf("%s: %q, %v", act, b, err)
		}
		must(t, writer.Close())

		c, commit = raced(t, deletion, "", nil)
		hold(c.base + "/d/f")
		var conflict *ConflictError
		if err := commit(false, nil); !errors.As(err, &conflict) || conflict.Conflicts[0].Why != beingWritten {
			t.Errorf("%s: %v", act, err)
		}
		must(t, writer.Close(), commit(false, nil))
	}
}

// The same when the commit is killed at any step after the edit: what the host has
// is its own, or comes back to its place with the next commit.
func TestEditThenCrash(t *testing.T) {
	type killed struct{}
	for deletion, act := range both {
		for at := 0; ; at++ {
			c, commit := raced(t, deletion, act, func(f string) { edits["replaced by an editor"].do(t, f) })
			n, over := -1, true
			func() {
				defer func() {
					if r := recover(); r != nil {
						if _, ok := r.(killed); !ok {
							panic(r)
						}
						over = false
					}
				}()
				_ = commit(false, func(name string) {
					if n >= 0 || strings.HasPrefix(name, act) {
						n++
					}
					if n == at+1 {
						panic(killed{})
					}
				})
			}()
			err := commit(false, nil)
			if b, rerr := os.ReadFile(c.base + "/d/f"); err == nil || string(b) != "theirs" {
				t.Errorf("%s, killed %d steps later: %v; %q, %v", act, at, err, b, rerr)
			}
			if over {
				break
			}
		}
	}
}

// A file in a directory that hands its group down has that group also where the
// owner of the tree is no member of it.
func TestGroupOfDirectory(t *testing.T) {
	testenv.Root(t)
	const user, group = 12345, 54321
	upper, base := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(base+"/team", 0o755), os.WriteFile(base+"/team/old", []byte("old"), 0o644), os.Mkdir(upper+"/team", 0o755), os.MkdirAll(upper+"/team/sub", 0o755),
		os.WriteFile(upper+"/team/old", []byte("changed"), 0o640), os.WriteFile(upper+"/team/new", []byte("new"), 0o604), os.WriteFile(upper+"/team/sub/f", nil, 0o644), os.WriteFile(upper+"/plain", nil, 0o644))
	run(t, "chown", "-R", "12345:12345", base, upper)
	run(t, "sh", "-c", `chgrp -R 54321 "$1"/team "$2"/team && chmod 2775 "$1"/team "$2"/team "$2"/team/sub`, "sh", base, upper)
	c := &testCase{dir: t.TempDir(), base: base, upper: upper, user: user}
	c.pack(t)
	c.newJournal(t)
	for at := 0; ; at++ {
		if _, over := c.crash(t, at); over {
			break
		}
	}
	for name, want := range map[string]uint32{"/team/old": group, "/team/new": group, "/team/sub": group, "/team/sub/f": group, "/plain": user} {
		var st unix.Stat_t
		if must(t, unix.Lstat(base+name, &st)); st.Gid != want || st.Uid != user {
			t.Errorf("%s is %d:%d", name, st.Uid, st.Gid)
		}
	}
	for name, want := range map[string]string{"/team/old": "changed", "/team/new": "new"} {
		if b, err := os.ReadFile(base + name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	must(t, c.journal.Close())
}
