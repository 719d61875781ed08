//go:build linux

package notify

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 2 3 0 -1 4194368 0 0 0 0 5 6 0 0 20 0 1 0 1234 0 0 18446744073709551615 1 2 140737 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 99 100 101 102 0\n"
	for _, name := range []string{"sh", "a) Z 1 (b", "", ")"} {
		s, err := parseStat([]byte("42 (" + name + ") S" + rest))
		if err != nil || s.start != 1234*ticks || !s.forked || s.stack != 140737 || s.args != 99 || s.zombie {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	if s, err := parseStat([]byte("42 (x) Z" + rest)); err != nil || !s.zombie {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "42 (x) S", "42 (x) S 1 2 3 0 -1 x" + rest} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestReadOwn(t *testing.T) {
	me := uint32(os.Getpid())
	p, err := readStatus(uint32(unix.Gettid()))
	if err != nil || p.PID != me || p.PPID != uint32(os.Getppid()) || p.UID != uint32(os.Getuid()) || p.NSPID == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	s, err := readStat(me)
	if err != nil || s.forked || s.stack == 0 || s.start == 0 || s.start > bootTime() {
		t.Errorf("%+v, %v", s, err)
	}
	i, err := readImage(me)
	if err != nil || i.Inode == 0 || i.Deleted {
		t.Errorf("%+v, %v", i, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("Name:\tx\nTgid:\t1\nPPid:\t2\nUid:\t3\t3\t3\t3\nNStgid:\t1\t2\n"))
	f.Add([]byte("1 (x) S 1"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseStat(b)
		_, _ = parseStatus(b)
	})
}

// What was made is counted as made, and not as what was not, also when nobody takes the answer.
func TestMadeTooLate(t *testing.T) {
	f, err := os.Open(os.DevNull) // no call waits here
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := &Listener{fd: f}
	l.made(&notif{}, 0)
	if l.stats != (Stats{Made: 1}) {
		t.Errorf("%+v", l.stats)
	}
}
