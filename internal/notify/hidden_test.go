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
