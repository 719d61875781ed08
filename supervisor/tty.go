package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/terminal"
)

// When a command gets a terminal of its own: Config.TTY.
const (
	TTYAuto   = "auto"   // stdin and stdout are the caller's terminal; "" is this too
	TTYAlways = "always" // stdin is, and stdout or stderr; refused where they are not
	TTYNever  = "never"
)

// ttyStreams are the streams that the run's own terminal stands behind.
type ttyStreams struct{ in, out, err bool }

// terminals decides which streams are the caller's one terminal and are replaced.
func (c *Config) terminals() (s ttyStreams, err error) {
	switch c.TTY {
	case "", TTYAuto, TTYAlways, TTYNever:
	default:
		return s, &Refusal{What: fmt.Sprintf("--tty %q: there are auto, always and never", c.TTY)}
	}
	if c.TTY == TTYNever {
		return s, nil
	}
	if terminal.Is(c.Stdin) && c.Policy.Stdin.Value != "null" {
		s = ttyStreams{out: terminal.Same(c.Stdin, c.Stdout), err: terminal.Same(c.Stdin, c.Stderr)}
		s.in = s.out || c.TTY == TTYAlways && s.err
	}
	switch {
	case s.in:
		return s, nil
	case c.TTY == TTYAlways:
		err = &Refusal{What: "--tty always: stdin and one of stdout and stderr must be one terminal", Remedy: "leave the flag out, or call script(1) to have one"}
	}
	return ttyStreams{}, err
}

// level is what a terminal of the caller's may be shown.
func (c *Config) level(limits Limits) terminal.Level {
	switch {
	case !limits.Sanitize:
		return terminal.All
	case lookupEnv(c.Environ, "TERM") == "dumb":
		return terminal.Text
	}
	return terminal.Screen
}

// tty is the terminal of an interactive run: a pseudoterminal in the run's own
// devpts, and the caller's terminal, in raw mode, at the other end of it.
//
//	caller's terminal --keys---> master | slave ---> command, and the jobs inside
//	caller's terminal <-filter-- master | slave <--- (its session is led by PID 1)
//
// Ctrl-C and Ctrl-Z are bytes here; the slave's line discipline makes signals of
// them. When the command itself is stopped, PID 1 says so, and we stop as well.
type tty struct {
	fallback string // see initproc.Config.FallbackExe
	streams  ttyStreams
	devpts   *os.File // until the mounts take it over
	pty      *terminal.Pty
	caller   *terminal.Caller
	log      zerolog.Logger
	stop     func() error // waits while the caller is stopped

	mu      sync.Mutex
	filter  *terminal.Filter
	away    bool // the caller's terminal is given back: the run is stopped, or over
	will    *TerminalWill
	keys    *terminal.Keys
	signals chan os.Signal
	heard   sync.WaitGroup
	answers chan string // of ours, to be typed; nil: none any more

	closing sync.Once
}

// openTerminal makes the run's own terminal where the caller has one.
func (r *Run) openTerminal() error {
	if !r.streams.in {
		return nil
	}
	devpts, err := newDevpts(r.host.Info.Mode)
	if err != nil {
		return err
	}
	out := r.cfg.Stdout
	if !r.streams.out {
		out = r.cfg.Stderr
	}
	t := &tty{fallback: filepath.Join(r.runtime, "init"), streams: r.streams, devpts: devpts, log: r.cfg.Log, signals: make(chan os.Signal, 1), stop: terminal.Stop}
	if r.cfg.Suspend != nil {
		t.stop = r.cfg.Suspend
	}
	t.caller = terminal.NewCaller(r.cfg.Stdin, out, t.note)
	r.tty = t
	r.release.push("terminal", t.Close)
	if t.pty, err = terminal.OpenPty(devpts); err != nil {
		return err
	}
	settings, size, err := t.caller.Settings()
	if err != nil {
		return err
	}
	if !t.caller.Foreground() { // they are those of the shell that is editing a line
		settings = nil
	}
	return errors.Join(t.pty.Like(settings), t.pty.Resize(size))
}

// takeDevpts hands the run's terminals to its view.
func (t *tty) takeDevpts() *os.File {
	if t == nil {
		return nil
	}
	f := t.devpts
	t.devpts = nil
	return f
}

// start takes the caller's terminal and begins to pass keys.
func (t *tty) start(level terminal.Level, hangup func()) error {
	t.filter = terminal.NewFilter(level)
	var err error
	if t.will, err = LeaveTerminal(t.caller.In(), t.caller.Out(), t.fallback); err != nil {
		return err
	}
	t.own()
	if t.keys, err = terminal.CopyKeys(t.caller.In(), t.pty.Master, t.own); err != nil {
		return err
	}
	signal.Notify(t.signals, unix.SIGWINCH, unix.SIGCONT)
	t.heard.Go(func() {
		for range t.signals {
			t.fit()
			t.logs(t.keys.Look())
		}
	})
	answers := make(chan string, 4)
	t.mu.Lock()
	t.answers = answers
	t.mu.Unlock()
	t.heard.Go(func() { // never the relay: a program that does not read would stop its own output
		for a := range answers {
			if !t.pty.Raw() {
				continue // who has asked is gone
			}
			_, err := io.WriteString(t.pty.Master, a)
			t.logs(err)
		}
	})
	go func() {
		if <-t.keys.Done(); t.keys.Ended() {
			hangup() // as the terminal would, were it the command's own
		}
	}()
	return nil
}

// own takes the caller's terminal unless it was given back or another job has it,
// and reports whether it is ours.
func (t *tty) own() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.away {
		return false
	}
	took, err := t.caller.Take()
	if err != nil {
		t.log.Warn().Err(err).Msg("the caller's terminal")
	}
	if took {
		_, err := t.caller.Out().Write(t.filter.Redo())
		t.logs(err)
		t.publish()
		t.fitLocked()
	}
	return t.caller.Taken()
}

// fit gives the run's terminal the size of the caller's.
func (t *tty) fit() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fitLocked()
}

func (t *tty) fitLocked() {
	_, size, err := t.caller.Settings()
	if err == nil {
		err = t.pty.Resize(size)
	}
	t.logs(err)
}

func (t *tty) logs(err error) {
	if err != nil && !errors.Is(err, os.ErrClosed) {
		t.log.Warn().Err(err).Msg("terminal")
	}
}

// Append filters what the caller is about to be shown.
func (t *tty) Append(dst, src []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	dst = t.filter.Append(dst, src)
	if a := t.filter.Answers(); len(a) > 0 {
		t.answer(string(a))
	}
	t.publish()
	return dst
}

// answer types our answers to what the output has asked, for a program that reads
// keys. When something is only shown that holds a query, nobody waits for an answer,
// and a line that is being typed stays what it is.
func (t *tty) answer(text string) {
	if !t.pty.Raw() {
		return
	}
	select {
	case t.answers <- text:
	default: // nobody reads: those before are still on their way
	}
}

// giveBack lets the caller have the terminal as it was.
func (t *tty) giveBack() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away = true
	err := t.caller.GiveBack(t.filter.Undo())
	t.publish()
	return err
}

// suspend gives the terminal back and stops this process with its group, until a
// shell lets them go on. out is held meanwhile: what the command said last is shown
// before.
func (t *tty) suspend(out *relay) error {
	release := out.hold()
	defer release()
	err := errors.Join(t.giveBack(), t.stop())
	t.mu.Lock()
	t.away = false
	t.mu.Unlock()
	t.own()
	return errors.Join(err, t.keys.Look())
}

// Close gives the terminal back and releases everything; safe to call twice.
func (t *tty) Close() (err error) {
	if t != nil {
		t.closing.Do(func() { err = t.close() })
	}
	return err
}

func (t *tty) close() error {
	signal.Stop(t.signals)
	close(t.signals)
	t.mu.Lock()
	if t.answers != nil {
		close(t.answers)
		t.answers = nil
	}
	t.mu.Unlock()
	var errs []error
	if t.pty != nil { // a write of keys that nobody reads ends here
		errs = append(errs, ignoreClosed(t.pty.Master.SetWriteDeadline(time.Now())))
	}
	t.heard.Wait()
	if t.keys != nil {
		errs = append(errs, t.keys.Stop())
	}
	if t.will != nil {
		errs = append(errs, t.giveBack())
	}
	errs = append(errs, t.will.Revoke())
	if t.devpts != nil {
		errs = append(errs, t.devpts.Close())
	}
	if t.pty != nil {
		errs = append(errs, t.pty.Close())
	}
	return errors.Join(errs...)
}

// note writes down the line settings for the will.
func (t *tty) note(saved, raw []byte) { t.logs(t.will.Settings(saved, raw)) }

// publish writes down what undoes the output, when that has changed.
func (t *tty) publish() {
	var undo []byte
	if !t.away && t.caller.Taken() {
		undo = t.filter.Undo()
	}
	t.logs(t.will.Undo(undo))
}

// memfd returns a file in memory of that size.
func memfd(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// noteStop hears from PID 1 that the command was stopped.
func (r *Run) noteStop(syscall.Signal) {
	select {
	case r.stops <- struct{}{}:
	default:
	}
}
