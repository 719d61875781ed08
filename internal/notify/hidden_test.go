//go:build linux

package notify

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Arguments that are still those from before are not told as the new program's. What is kept
// to see that does not grow with them.
func TestArgumentsOfOneThatHides(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	now := snapshot{hidden: true}
	for same, b := range map[bool]snapshot{true: {hidden: true, argv: argumentsOf(uint32(os.Getpid()))}, false: {hidden: true}} {
		var told []Event
		l := &Listener{emit: func(e *Event) { told = append(told, *e) }}
		p := &process{Process: Process{PID: uint32(os.Getpid())}, fd: fd}
		l.hold(p, &Event{Type: Exec, Hidden: true}, b)
		if l.execs.size != 0 || l.execs.count != 1 {
			t.Errorf("%d bytes of %d", l.execs.size, l.execs.count)
		}
		if l.surface(p, &now, 1); len(told) != 1 || (len(told[0].Argv) == 0) != same || told[0].ArgvLater == same {
			t.Errorf("the same %v: %+v", same, told)
		}
	}
}

// Who looks in the midst of an execve finds a program and no stack: that is no process
// that hides, and nothing is said of it yet. Of one whose thread waits it is.
func TestUnderWay(t *testing.T) {
	for _, test := range []struct {
		stack      uint64
		program    error
		waits      bool
		ok, hidden bool
	}{
		{stack: 1, ok: true},
		{stack: 1, waits: true, ok: true},
		{stack: 0},
		{stack: 0, waits: true, hidden: true},
		{program: unix.EACCES, hidden: true},
		{program: unix.EPERM, waits: true, hidden: true},
		{stack: 1, program: unix.EACCES, hidden: true},
		{program: unix.ENOENT},
		{program: unix.ENOENT, waits: true},
	} {
		s := snapshot{stat: stat{stack: test.stack}}
		if s.judge(test.program, test.waits); s.ok != test.ok || s.hidden != test.hidden {
			t.Errorf("%+v: ok %v, hidden %v", test, s.ok, s.hidden)
		}
	}
}
