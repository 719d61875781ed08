package helper

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func openTestLog(t *testing.T, path string, keep int) *Log {
	t.Helper()
	l, err := OpenLog(path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l.size, l.keep = 4096, keep
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// entries are the lines of a file.
func entries(t *testing.T, path string) (out []Entry) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		out = append(out, e)
	}
	return out
}

// Many who write at once fill one file after another. None is longer than the bound, so
// many are kept, and the number of those that are gone is right.
func TestLogRotates(t *testing.T) {
	path, total := filepath.Join(t.TempDir(), "log"), 4*250
	var writers sync.WaitGroup
	for w := range 4 {
		l := openTestLog(t, path, 3)
		writers.Go(func() {
			for i := range total / 4 {
				if err := l.Write(Entry{Outcome: "refused", Why: fmt.Sprint(w, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	kept, seen := 0, map[string]bool{}
	for _, name := range []string{path, path + ".1", path + ".2", path + ".3"} {
		list := entries(t, name)
		if list[0].Outcome != "rotated" {
			t.Errorf("%s begins with %+v", name, list[0])
		}
		for _, e := range list[1:] {
			kept++
			seen[e.Why] = true
		}
		if st, err := os.Stat(name); err != nil || st.Size() > 4096+4*256 { // one line of each who had looked before
			t.Errorf("%s has %d bytes, %v", name, st.Size(), err)
		}
	}
	if dropped := entries(t, path)[0].Dropped; int(dropped)+kept != total || len(seen) != kept {
		t.Errorf("%d kept, %d told as dropped, of %d", kept, dropped, total)
	}
	left, _ := filepath.Glob(path + "*")
	if len(left) != 4 {
		t.Errorf("%v", left)
	}
}

// A file that logrotate has moved or removed is left alone: the next line begins another.
func TestLogIsMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	a, b := openTestLog(t, path, 1), openTestLog(t, path, 1)
	for i, move := range []func() error{
		func() error { return nil },
		func() error { return os.Rename(path, path+"-20300101") },
		func() error { return os.Remove(path) },
	} {
		if err := move(); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*Log{a, b} {
			if err := l.Write(Entry{Why: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if list := entries(t, path); len(list) != 2 || list[0].Why != fmt.Sprint(i) || list[1].Why != fmt.Sprint(i) {
			t.Errorf("%d: %+v", i, list)
		}
	}
	if n := len(entries(t, path+"-20300101")); n != 2 {
		t.Errorf("the one that was moved has %d lines", n)
	}
}

// A flood of refusals has some lines of the log, and then a number for all others.
func TestRefusalsAreCounted(t *testing.T) {
	told := map[int]int{}
	var flush []func()
	now := time.Unix(1000, 0)
	g := newGate(func(uid int) int { return uid % 10 }, func(uid, n int) { told[uid] += n })
	g.now = func() time.Time { return now }
	g.later = func(_ time.Duration, f func()) { flush = append(flush, f) }
	said := 0
	for i := range 200 {
		a, loud, err := g.enter(10*i + 1) // uids that were given to user 1
		if err != nil {
			t.Fatal(err)
		}
		if loud {
			said++
		}
		g.leave(a, true, loud)
	}
	if said != lineBurst || len(flush) != 1 {
		t.Errorf("%d lines, %d timers", said, len(flush))
	}
	if _, loud, _ := g.enter(2); !loud {
		t.Error("the flood of one user takes the lines of another")
	}
	flush[0]()
	if told[1] != 200-lineBurst || len(told) != 1 {
		t.Errorf("told: %v", told)
	}
	now = now.Add(5 * time.Second)
	a, loud, _ := g.enter(1)
	if !loud {
		t.Error("later there is no line")
	}
	g.leave(a, true, false)
	g.flushAll()
	if told[1] != 200-lineBurst+1 {
		t.Errorf("told at the end: %v", told)
	}
}

// Uids of a range are their owner's; others, and those of lines that are none, their own.
func TestSubordinateUIDs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	o := &owners{path: path}
	if o.of(100005) != 100005 {
		t.Error("without a file")
	}
	text := "root:500000:10\n1000:100000:65536\nno-such-user:200000:10\n1001:x:5\n1002:300000\n\n1003:4294967295:4294967295\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]int{99999: 99999, 100000: 1000, 165535: 1000, 165536: 165536, 200001: 200001, 300000: 300000, 500003: 0, 1000: 1000} {
		if got := o.of(uid); got != want {
			t.Errorf("%d is %d's, want %d", uid, got, want)
		}
	}
	if err := os.WriteFile(path, []byte("7:100000:1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := o.of(100000); got != 7 {
		t.Errorf("after a change: %d", got)
	}
}

// Whatever a caller says, its line is short: lines push one another out of the log.
func TestLogLineBounded(t *testing.T) {
	for _, c := range []string{"x", "\x01", "\xff", "\u2028", "<", "\"", "\\", "\x7f", "ä", "😀"} {
		long := strings.Repeat(c, 1<<16)
		e := Entry{Outcome: long, Request: long, Label: long, Run: long, Of: long, Why: long}
		for range 100 {
			e.Argv = append(e.Argv, long)
		}
		b, err := e.line()
		if most := 6*maxText + maxArgv + 512; err != nil || len(b) > most {
			t.Errorf("%q: a line of %d bytes, at most %d; %v", c, len(b), most, err)
		}
	}
	for _, s := range []string{"", "short", strings.Repeat("x", maxText)} {
		if got := cut(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := cut(strings.Repeat("ä", maxText)); got != strings.Repeat("ä", maxText/2)+"..." {
		t.Errorf("not cut between letters: %q", got)
	}
}
