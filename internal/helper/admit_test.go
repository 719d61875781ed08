package helper

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A user who asks too often is refused, others are not, and time gives back what was taken.
func TestGate(t *testing.T) {
	g, now := newGate(), time.Unix(1000, 0)
	g.now = func() time.Time { return now }
	admitted, loud := 0, 0
	ask := func(uid, n int) {
		admitted, loud = 0, 0
		for range n {
			err, l := g.enter(uid)
			if err == nil {
				admitted++
				g.leave(uid)
			}
			if l {
				loud++
			}
		}
	}
	if ask(1, 10*burst); admitted != burst || loud != 1 {
		t.Errorf("%d admitted, %d lines", admitted, loud)
	}
	if ask(2, 1); admitted != 1 {
		t.Error("another user is refused")
	}
	now = now.Add(time.Second)
	if ask(1, 10*burst); admitted != perSecond || loud != 1 {
		t.Errorf("a second later: %d admitted, %d lines", admitted, loud)
	}
	now = now.Add(time.Hour)
	if ask(1, 10*burst); admitted != burst {
		t.Errorf("an hour later: %d admitted", admitted)
	}
}

// No user has more than so many requests under way, and all together not more than so many.
func TestGateAtOnce(t *testing.T) {
	g, now := newGate(), time.Unix(1000, 0)
	g.now = func() time.Time { return now }
	for i := range MaxPerUser + 1 {
		if err, _ := g.enter(1); (err == nil) != (i < MaxPerUser) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	all := MaxPerUser
	for uid := 2; all < MaxAtOnce; uid++ {
		for range min(MaxPerUser, MaxAtOnce-all) {
			if err, _ := g.enter(uid); err != nil {
				t.Fatal(err)
			}
			all++
		}
	}
	if err, _ := g.enter(1000); err == nil {
		t.Error("more than all are admitted")
	}
	g.leave(1)
	if err, _ := g.enter(1000); err != nil {
		t.Error(err)
	}
}

// Of a command that is refused a line of the log is all that is left, and it is short.
func TestLogBounds(t *testing.T) {
	var out bytes.Buffer
	l, err := OpenLog(filepath.Join(t.TempDir(), "log"), &out)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	argv := slices.Repeat([]string{strings.Repeat("\x01", 1<<16)}, 1000)
	if err := l.Write(Entry{Argv: argv, Why: argv[0]}); err != nil {
		t.Fatal(err)
	}
	if n := out.Len(); n > 20<<10 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("a line of %d bytes", n)
	}
}
