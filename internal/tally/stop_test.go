package tally

import (
	"errors"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// as runs f on a thread of a user without rights, and gives the thread its own back.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	testenv.Root(t)
	set := func(real, effective, saved int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(real), uintptr(effective), uintptr(saved)); errno != 0 {
			t.Fatal(errno)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set(uid, uid, 0)
	defer set(0, 0, 0)
	f()
}

func session(pid int) int {
	sid, err := unix.Getsid(pid)
	if err != nil {
		return 0
	}
	return sid
}

// Where one process cannot be stopped, those that were stopped before it go on.
func TestStopFails(t *testing.T) {
	const uid = 61779
	tally, _ := start(t, `setsid sleep 100 & setpriv --reuid 61779 sleep 1000 & echo ready; wait`) // the last born is the first that is looked at
	list := func() []status {
		list, err := tally.list()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	until(t, tally, 0, func(Use) bool {
		l := list()
		var st unix.Stat_t
		return len(l) == 2 && unix.Stat("/proc/"+strconv.Itoa(l[0].pid), &st) == nil && st.Uid == uid && l[0].state == 'S' && session(l[1].pid) == l[1].pid
	})
	first, other := list()[0], list()[1]
	t.Cleanup(func() { _ = other.signal(unix.SIGKILL) }) // in a session of its own, since whoever is in ours may continue it
	as(t, uid, func() {
		if err := first.signal(0); err != nil {
			t.Error(err)
		}
		if s, err := tally.Stop(); s != nil || !errors.Is(err, unix.EPERM) {
			t.Errorf("%v, %v", s, err)
		}
	})
	until(t, tally, 0, func(Use) bool { return list()[0].state == 'S' })
	s, err := tally.Stop()
	if err != nil {
		t.Fatal(err)
	}
	as(t, uid, func() {
		if err := s.Continue(); !errors.Is(err, unix.EPERM) || len(s.list) != 1 {
			t.Errorf("%v, %v", err, s.list)
		}
	})
	if err := s.Continue(); err != nil || len(s.list) > 0 {
		t.Errorf("%v, %v", err, s.list)
	}
}
