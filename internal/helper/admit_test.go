package helper

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testGate is a gate with a clock of the test's, for which each uid is its own user.
func testGate() (*gate, *time.Time) {
	now := time.Unix(1000, 0)
	g := newGate(func(uid int) int { return uid }, func(int, int) {})
	g.now = func() time.Time { return now }
	g.later = func(time.Duration, func()) {}
	return g, &now
}

// A user who asks too often is refused, others are not, and time gives back what was taken.
func TestGate(t *testing.T) {
	g, now := testGate()
	admitted, loud := 0, 0
	ask := func(uid, n int) {
		admitted, loud = 0, 0
		for range n {
			a, l, err := g.enter(uid)
			if err == nil {
				admitted++
				g.leave(a, false, false)
			} else if l {
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
	*now = now.Add(time.Second)
	if ask(1, 10*burst); admitted != perSecond || loud != 1 {
		t.Errorf("a second later: %d admitted, %d lines", admitted, loud)
	}
	*now = now.Add(time.Hour)
	if ask(1, 10*burst); admitted != burst {
		t.Errorf("an hour later: %d admitted", admitted)
	}
}

// No user has more than so many requests under way, and all together not more than so many.
func TestGateAtOnce(t *testing.T) {
	g, _ := testGate()
	for i := range MaxPerUser + 1 {
		if _, _, err := g.enter(1); (err == nil) != (i < MaxPerUser) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	all := MaxPerUser
	for uid := 2; all < MaxAtOnce; uid++ {
		for range min(MaxPerUser, MaxAtOnce-all) {
			if _, _, err := g.enter(uid); err != nil {
				t.Fatal(err)
			}
			all++
		}
	}
	if _, _, err := g.enter(1000); err == nil {
		t.Error("more than all are admitted")
	}
	g.leave(g.account(1), false, false)
	if _, _, err := g.enter(1000); err != nil {
		t.Error(err)
	}
}

// A uid that is given to another user while it has requests under way takes nothing along.
func TestGateOwnerChanges(t *testing.T) {
	g, _ := testGate()
	owner := 1
	g.owner = func(uid int) int {
		if uid == 100000 { // given by /etc/subuid
			return owner
		}
		return uid
	}
	a, _, err := g.enter(100000)
	if err != nil {
		t.Fatal(err)
	}
	owner = 2
	g.leave(a, true, false)
	if one, two := g.account(1), g.account(2); one.live != 0 || two.live != 0 || one.unsaid != 1 || two.unsaid != 0 || g.all != 0 {
		t.Errorf("%+v, %+v, %d", one, two, g.all)
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
