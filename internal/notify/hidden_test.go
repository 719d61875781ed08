//go:build linux

package notify

import (
	"fmt"
	"os"
	"os/exec"
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

// Nor is one of real programs, which are met there: Start returns as soon as the new program is in its place.
func TestLooksAtExecves(t *testing.T) {
	for range 100 {
		cmd := exec.Command("/bin/true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &process{Process: Process{PID: uint32(cmd.Process.Pid)}}
		for s := snap(p, 0); !s.zombie && s.start != 0; s = snap(p, 0) {
			if s.hidden {
				t.Errorf("it is said to hide: %+v", s)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// Where another thread executes, it has the first one's number before it has the new program (de_thread in fs/exec.c), and
// like each thread it has executed nothing. What it runs then is not what came of it.
func TestThreadInThePlaceOfTheFirst(t *testing.T) {
	// A child that has executed nothing; of a command in the background stdin itself is /dev/null.
	cmd := exec.Command("/bin/sh", "-c", "exec 3<&0; (read x <&3) & echo $!; wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	}()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var told []Event
	l := &Listener{emit: func(e *Event) { told = append(told, *e) }}
	p := &process{Process: Process{PID: uint32(pid)}, fd: fd}
	before := snap(p, 0)
	if !before.ok || !before.forked {
		t.Fatalf("%+v", before)
	}
	before.forked = false
	l.hold(p, &Event{Type: Exec}, before)
	if l.settle(p, 0); len(told) != 0 {
		t.Errorf("told: %+v", told)
	}
}
