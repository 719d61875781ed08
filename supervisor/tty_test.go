package supervisor

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/terminal"
)

// With a terminal, PID 1 leads the session and the command is a job of it.
func TestTerminalCalls(t *testing.T) {
	p := &Plan{Terminal: true}
	if at := index(commandProgram(p, placeholders(p)), "setsid()"); at >= 0 {
		t.Errorf("the command leaves the session of its terminal: step %d", at)
	}
	p.Terminal = false
	if index(commandProgram(p, placeholders(p)), "setsid()") < 0 {
		t.Error("without a terminal the command has no session of its own")
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	prog := guardian{terminal: null}.program()
	last := -1
	for _, label := range []string{"setpgid(command, command)", "ioctl(terminal, TIOCSPGRP", "close(terminal)", "setgroups(0)"} {
		i := index(prog, label)
		if i <= last {
			t.Errorf("%s is step %d, after step %d:\n%s", label, i, last, prog.Text())
		}
		last = i
	}
}

// What describes the terminal comes along; what the policy says stands.
func TestTerminalEnvironment(t *testing.T) {
	got := addTerminal([]string{"COLORTERM=set", "A=1"}, []string{"COLORTERM=truecolor", "NO_COLOR=1", "NO_COLOR_AT_ALL=1", "TOKEN=x"})
	if text := strings.Join(got, " "); text != "A=1 COLORTERM=set NO_COLOR=1" {
		t.Error(text)
	}
}

func TestTerminalLevel(t *testing.T) {
	for _, c := range []struct {
		sanitize bool
		term     string
		want     terminal.Level
	}{
		{true, "xterm", terminal.Screen}, {true, "", terminal.Screen}, {true, "dumb", terminal.Text}, {false, "dumb", terminal.All},
	} {
		cfg := Config{Environ: []string{"TERM=" + c.term}}
		if got := cfg.level(Limits{Sanitize: c.sanitize}); got != c.want {
			t.Errorf("%+v: level %d", c, got)
		}
	}
}

// A start that takes long says what it is at, once; one that is over says nothing.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		for _, takes := range []time.Duration{slowAfter - time.Millisecond, 3 * slowAfter} {
			var tm timing
			tm.start()
			stop := tm.tellSlow(func(step string) { told = append(told, step) })
			if err := tm.step(step{"programs", func() error { time.Sleep(takes); return nil }}); err != nil {
				t.Fatal(err)
			}
			stop()
			time.Sleep(2 * slowAfter)
		}
		if strings.Join(told, " ") != "programs" {
			t.Errorf("told %v", told)
		}
	})
}

// A held relay has passed on what there was, and goes on afterwards.
func TestRelayHold(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	s.start(nil, s.limits, terminal.Colours, s.record)
	_, err := s.childOut.WriteString("before")
	must(t, err)
	release := s.hold(t, 0)
	b := make([]byte, 100)
	n, err := s.out.Read(b)
	if err != nil || string(b[:n]) != "before" {
		t.Errorf("%q, %v", b[:n], err)
	}
	_, err = s.childOut.WriteString(" after")
	must(t, err)
	if left, err := unix.IoctlGetInt(int(s.outs[0].to.Fd()), unix.TIOCINQ); err != nil || left != 0 {
		t.Errorf("%d bytes passed a relay that was held, %v", left, err)
	}
	release()
	n, err = s.out.Read(b)
	if err != nil || string(b[:n]) != " after" {
		t.Errorf("%q, %v", b[:n], err)
	}
	must(t, s.closeChild())
	inTime(t, "the relay", func() { s.finish(nil) })
}

// A relay that did not come to its stop in time, since the caller read too slowly, goes on like any other when the
// stop is over: the run is not.
func TestRelayHoldInVain(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	s.start(nil, s.limits, terminal.Colours, s.record)
	room, err := unix.FcntlInt(s.passed[0].Fd(), unix.F_GETPIPE_SZ, 0)
	must(t, err)
	full := func() {
		inTime(t, "the relay", func() {
			for n := 0; n < room; time.Sleep(time.Millisecond) {
				n, err = unix.IoctlGetInt(int(s.passed[0].Fd()), unix.TIOCINQ)
				must(t, err)
			}
		})
	}
	wrote := make(chan error, 1)
	go func() { _, err := s.childOut.Write(make([]byte, 3*room)); wrote <- err }()
	full()
	release := s.outs[0].hold()
	read := func(n int) string {
		b := make([]byte, n)
		must(t, s.out.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadFull(s.out, b)
		must(t, err)
		return string(b)
	}
	read(room * 3 / 2) // more than it was at when it was to stop
	full()             // again, by what it has found in the pipe after its last read was broken off
	release()
	read(room * 3 / 2)
	must(t, <-wrote)
	_, err = s.childOut.WriteString("after")
	must(t, err)
	if got := read(len("after")); got != "after" {
		t.Errorf("%q", got)
	}
	must(t, s.closeChild())
	inTime(t, "the relay", func() { s.finish(nil) })
}
