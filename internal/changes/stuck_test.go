package changes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// picked commits what pick says with a journal, and reports whether the commit is open then.
func (s *Set) picked(t *testing.T, base string, j *os.File, force bool, pick func(p string, e *Entry) bool) (err error, open bool) {
	t.Helper()
	picks := make([]bool, len(s.Entries))
	for i := range picks {
		e := &s.Entries[i]
		picks[i] = pick(s.Path(e), e)
	}
	top, terr := os.Open(base)
	must(t, terr)
	defer top.Close()
	err = s.Commit(top, s.at(1), picks, Options{ID: "deep", Journal: j, Force: force})
	_, open, serr := s.Settled(j)
	must(t, serr)
	return err, open
}

var unixEpoch = time.Unix(0, 0)

func newJournal(t *testing.T) *os.File {
	t.Helper()
	j, err := os.OpenFile(filepath.Join(t.TempDir(), "journal"), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { j.Close() })
	return j
}

// What a commit cannot bring to its end is refused before anything was changed, also with force:
// each later one would come to it again.
func TestCommitThatCannotEnd(t *testing.T) {
	whiteout := func(p string) error { return unix.Mknod(p, unix.S_IFCHR, 0) }
	all := func(string, *Entry) bool { return true }
	file := func(p string) error { return os.WriteFile(p, []byte(p[len(p)-1:]), 0o644) }
	for name, c := range map[string]struct {
		lower, upper, host func(d string) error
		pick               func(p string, e *Entry) bool
		goesOver           bool // force does
	}{
		"a new directory that was discarded": {
			upper: func(d string) error { return errors.Join(os.Mkdir(d+"/new", 0o755), file(d+"/new/b")) },
			pick:  func(p string, _ *Entry) bool { return p == "new/b" },
		},
		"a directory that the host removed": {
			lower: func(d string) error { return os.Mkdir(d+"/d", 0o755) },
			upper: func(d string) error { return errors.Join(os.Mkdir(d+"/d", 0o755), file(d+"/d/b")) },
			host:  func(d string) error { return os.Remove(d + "/d") }, pick: all,
		},
		"a file in the place of a new directory": {
			upper: func(d string) error { return errors.Join(os.Mkdir(d+"/new", 0o700), file(d+"/new/b")) },
			host:  func(d string) error { return file(d + "/new") }, pick: all,
		},
		"a directory in the place of a new file": {
			upper: func(d string) error { return file(d + "/new") },
			host:  func(d string) error { return os.Mkdir(d+"/new", 0o700) }, pick: all,
		},
		"a directory in the place of a file": {
			lower: func(d string) error { return file(d + "/f") },
			upper: func(d string) error { return os.WriteFile(d+"/f", []byte("new"), 0o644) },
			host:  func(d string) error { return errors.Join(os.Remove(d+"/f"), os.Mkdir(d+"/f", 0o700)) }, pick: all,
		},
		"a deleted directory with what stays": {
			lower: func(d string) error { return errors.Join(os.Mkdir(d+"/d", 0o755), file(d+"/d/kept")) },
			upper: func(d string) error { return whiteout(d + "/d") },
			pick:  func(p string, _ *Entry) bool { return p == "d" }, goesOver: true,
		},
		"a replaced directory with what stays": {
			lower: func(d string) error { return errors.Join(os.Mkdir(d+"/d", 0o755), file(d+"/d/kept")) },
			upper: func(d string) error { return file(d + "/d") },
			pick:  func(p string, _ *Entry) bool { return p == "d" },
		},
		"a replaced directory with what the host made": {
			lower: func(d string) error { return os.Mkdir(d+"/d", 0o755) },
			upper: func(d string) error { return file(d + "/d") },
			host:  func(d string) error { return file(d + "/d/made") }, pick: all,
		},
	} {
		for _, force := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, force %v", name, force), func(t *testing.T) {
				upper, base, j := t.TempDir(), t.TempDir(), newJournal(t)
				for _, step := range []struct {
					do func(string) error
					at string
				}{{c.lower, base}, {c.upper, upper}} {
					if step.do != nil {
						must(t, step.do(step.at))
					}
				}
				set := plainTree(t, upper, base)
				if c.host != nil {
					must(t, c.host(base))
				}
				before := strings.Join(listing(t, base), "\n")
				err, open := set.picked(t, base, j, force, c.pick)
				after := strings.Join(listing(t, base), "\n")
				if over := force && c.goesOver; (err == nil) != over || open || before != after {
					t.Errorf("%v, open %v; before and after:\n%s\n%s", err, open, before, after)
				}
			})
		}
	}
}

// A hard link to what other programs act on is a change that is shown and held back, also where
// the content is what it was: the other name could be written later, by whoever may not write this one.
func TestHardLinkIsShown(t *testing.T) {
	for name, held := range map[string]bool{".git/hooks/pre-commit": true, ".git/config": true, ".git/HEAD": true, ".git/objects/ab": false, "Makefile": false} {
		upper, base := t.TempDir(), t.TempDir()
		for _, dir := range []string{upper, base} {
			must(t, os.MkdirAll(filepath.Dir(dir+"/"+name), 0o755), os.WriteFile(dir+"/"+name, []byte("# as it was\n"), 0o644), os.Chtimes(dir+"/"+name, unixEpoch, unixEpoch))
		}
		must(t, os.Link(upper+"/"+name, upper+"/x"))
		set := plainTree(t, upper, base)
		shown := false
		for _, c := range set.Changes(nil, nil) {
			if c.Path == name {
				shown = c.Op == Modified && c.Danger.Why != "" && c.Danger.Protected == held && strings.Contains(c.detail(), "a hard link")
			}
		}
		if !shown {
			t.Errorf("%s is not shown as it should be: %+v", name, set.Changes(nil, nil))
		}
		err, _ := set.picked(t, base, newJournal(t), false, func(_ string, e *Entry) bool { return !set.Danger(e, nil).Protected })
		var st unix.Stat_t
		if must(t, err, unix.Lstat(base+"/"+name, &st)); (st.Nlink == 1) != held {
			t.Errorf("%s has %d names", name, st.Nlink)
		}
	}
}

// Many files below long names take memory and time for what a path can be, and not for how deep they lie.
func TestLongPaths(t *testing.T) {
	const levels, files = 400, 200
	s := &Set{roots: []int{1}, Entries: []Entry{{N: 1, Name: []byte("/ws"), Old: &Node{Type: Dir}}}}
	add := func(parent int, name string, typ Type) int {
		n := len(s.Entries) + 1
		s.Entries = append(s.Entries, Entry{N: n, Parent: parent, Name: []byte(name), New: &Node{Type: typ, Mode: 0o644}})
		return n
	}
	at := 1
	for range levels {
		at = add(at, strings.Repeat("n", 255), Dir)
	}
	for i := range files {
		add(at, fmt.Sprint(i), File)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list := s.Changes(nil, nil)
	runtime.ReadMemStats(&after)
	for i := range list {
		if c := &list[i]; len(c.Path) > maxPathBytes+len(cut) || strings.HasPrefix(c.Path, cut+"/") != c.Danger.Protected {
			t.Fatalf("%d bytes, %+v", len(c.Path), c.Danger)
		}
	}
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(list)); len(list) != levels+files || each > 64<<10 {
		t.Errorf("%d changes take %d bytes each", len(list), each)
	}
}
