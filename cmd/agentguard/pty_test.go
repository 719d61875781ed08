package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/terminal"
)

// person sits at a terminal at which a program runs: a pseudoterminal of the host,
// which controls the program's session.
type person struct {
	t   *testing.T
	pty *terminal.Pty
	tty *os.File // the slave, kept open to look at
	cmd *exec.Cmd

	mu     sync.Mutex
	more   *sync.Cond
	shown  []byte       // all that the terminal was sent
	seen   int          // how far expect has come
	ended  bool         // the program's terminal is closed
	before unix.Termios // the line settings, when nothing had been started
}

// patience ends a hang; no test waits for it when all is well.
const patience = 2 * time.Minute

// sit starts a program at a new terminal, with the given streams instead of it
// where they are not nil.
func sit(t *testing.T, dir string, redirect [3]*os.File, argv ...string) *person {
	t.Helper()
	devpts, err := os.Open("/dev/pts")
	if err != nil {
		t.Fatal(err)
	}
	defer devpts.Close()
	p := &person{t: t}
	p.more = sync.NewCond(&p.mu)
	if p.pty, err = terminal.OpenPty(devpts); err != nil {
		t.Fatal(err)
	}
	p.tty = p.pty.Slave
	if err := errors.Join(p.pty.Like(nil), p.pty.Resize(&unix.Winsize{Row: 24, Col: 80})); err != nil {
		t.Fatal(err)
	}
	p.before = p.settings()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Env = []string{"PATH=" + programs() + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "TERM=xterm-256color", "HOME=/root", "LC_ALL=C.UTF-8", "PS1=P> "}
	files := [3]*os.File{p.tty, p.tty, p.tty}
	for i, f := range redirect {
		if f != nil {
			files[i] = f
		}
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = files[0], files[1], files[2]
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: files[0] == p.tty}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.watch()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if err := p.pty.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *person) watch() {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.pty.Master.Read(buf)
		p.mu.Lock()
		p.shown = append(p.shown, buf[:n]...)
		p.ended = err != nil
		p.more.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// expect waits until the terminal has been sent text, after what was expected before,
// for as long as anything comes.
func (p *person) expect(text string) {
	p.t.Helper()
	alarm := time.AfterFunc(patience, func() { p.mu.Lock(); p.ended = true; p.more.Broadcast(); p.mu.Unlock() })
	defer alarm.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for from := p.seen; ; {
		if i := bytes.Index(p.shown[from:], []byte(text)); i >= 0 {
			p.seen = from + i + len(text)
			return
		}
		if p.ended {
			tail := p.shown[p.seen:]
			p.t.Fatalf("%q was not shown, but %d bytes, at last %q", text, len(tail), tail[max(0, len(tail)-2000):])
		}
		from = max(from, len(p.shown)-len(text)+1)
		p.more.Wait()
		alarm.Reset(patience)
	}
}

// keys types.
func (p *person) keys(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.pty.Master, text); err != nil {
		p.t.Fatal(err)
	}
}

// answers types after text was shown, for several pairs.
func (p *person) answers(pairs ...string) {
	p.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		p.expect(pairs[i])
		p.keys(pairs[i+1])
	}
}

// insist types key until text is shown: a shell prints which job it brings to the
// foreground before it has done so.
func (p *person) insist(key, text string) {
	p.t.Helper()
	p.until(text, func() bool {
		p.mu.Lock()
		at := bytes.Index(p.shown[p.seen:], []byte(text))
		p.mu.Unlock()
		if at < 0 {
			p.keys(key)
			time.Sleep(20 * time.Millisecond)
		}
		return at >= 0
	})
	p.expect(text)
}

// all is what was shown.
func (p *person) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.shown)
}

// wait returns the exit status, once all that was written is shown.
func (p *person) wait() int {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-done
		p.t.Fatalf("the program does not end; shown: %q", p.all())
	}
	if err := p.pty.CloseSlave(); err != nil { // ours was the last
		p.t.Error(err)
	}
	p.mu.Lock()
	for !p.ended {
		p.more.Wait()
	}
	p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

// settings are the terminal's line settings, as text to compare.
func (p *person) settings() unix.Termios {
	p.t.Helper()
	s, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *s
}

// until waits for a condition.
func (p *person) until(what string, met func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			all := p.all()
			p.t.Fatalf("%s: not within %v; shown at last: %q", what, patience, all[max(0, len(all)-2000):])
		}
	}
}

// raw reports whether the terminal is in raw mode.
func (p *person) raw() bool { return p.settings().Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0 }

// guarded is the command line of a run.
func guarded(flags string, argv ...string) []string {
	out := append([]string{agentguard(), "exec"}, strings.Fields(flags)...)
	return append(append(out, "--"), argv...)
}
