//go:build linux

package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/terminal"
	"github.com/agentguard/agentguard/supervisor"
)

// streams are what the helper gets for the three descriptors of this process. What is
// safe in the hands of root it gets as it is. For an interactive run it is a terminal
// made here, so that the person's own stays with the session that it controls:
//
//	keys ---> person's terminal, raw ---> master | slave ---> supervisor, in a session led by it
//
// and for everything else a pipe.
type streams struct {
	theirs [3]*os.File
	mine   []*os.File // made here, closed when the helper has them

	pty    *terminal.Pty
	caller *terminal.Caller
	will   *supervisor.TerminalWill // as of a root run; nil: it could not be left
	shown  *terminal.Filter         // what the output has switched on, for the will
	keys   *terminal.Keys
	winch  chan os.Signal

	copies sync.WaitGroup // of what the run prints
	start  []func() error
}

func openStreams(f *execFlags) (*streams, error) {
	s := &streams{theirs: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	var err error
	switch own, oerr := ownTerminal(f.tty); {
	case oerr != nil:
		return nil, oerr
	case own:
		err = s.ownPty()
	case isTerminal(os.Stdin): // another session must not read it
		err = s.typed()
	}
	for i := 0; i < len(s.theirs) && err == nil; i++ {
		if helper.Passable(s.theirs[i], i) != nil {
			err = s.pipe(i)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// ownTerminal decides as the supervisor of a root run does.
func ownTerminal(when string) (bool, error) {
	out, err := terminal.Same(os.Stdin, os.Stdout), terminal.Same(os.Stdin, os.Stderr)
	switch {
	case when == supervisor.TTYAlways && !out && !err:
		return false, &supervisor.Refusal{What: "--tty always: stdin and one of stdout and stderr must be one terminal", Remedy: "leave the flag out, or call script(1) to have one"}
	case when == supervisor.TTYAlways:
		return true, nil
	}
	return out && when != supervisor.TTYNever, nil
}

// ownPty puts a terminal in the place of the person's.
func (s *streams) ownPty() error {
	dev, err := os.Open("/dev")
	if err != nil {
		return err
	}
	defer dev.Close()
	if s.pty, err = terminal.OpenPty(dev); err != nil {
		return err
	}
	out := os.Stdout
	if !terminal.Same(os.Stdin, os.Stdout) {
		out = os.Stderr
	}
	s.shown = terminal.NewFilter(terminal.All)
	s.caller = terminal.NewCaller(os.Stdin, out, func(saved, raw []byte) { _ = s.will.Settings(saved, raw) })
	settings, size, err := s.caller.Settings()
	if err == nil {
		err = errors.Join(s.pty.Like(settings), s.pty.Resize(size))
	}
	for i, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if terminal.Same(os.Stdin, f) {
			s.theirs[i] = s.pty.Slave
		}
	}
	s.start = append(s.start, s.raw)
	return err
}

// raw takes the person's terminal and passes keys, output and size.
func (s *streams) raw() error {
	var err error
	if s.will, err = supervisor.LeaveTerminal(s.caller.In(), s.caller.Out(), filepath.Join(supervisor.RuntimeDir, "init")); err != nil {
		s.will = nil // the run goes on without
	}
	if _, err = s.caller.Take(); err != nil {
		return err
	}
	if s.keys, err = terminal.CopyKeys(os.Stdin, s.pty.Master, s.foreground); err != nil {
		return err
	}
	s.winch = make(chan os.Signal, 1)
	signal.Notify(s.winch, unix.SIGWINCH)
	go func() {
		for range s.winch {
			s.fit()
		}
	}()
	s.copies.Go(func() { _, _ = io.Copy(s, s.pty.Master) }) // until the last slave is closed: EIO
	return nil
}

// Write shows output of the run. It has been through the supervisor's filter; ours knows
// what is to be undone.
func (s *streams) Write(b []byte) (int, error) {
	s.shown.Append(nil, b)
	_ = s.will.Undo(s.shown.Undo())
	return s.caller.Out().Write(b)
}

// foreground takes the terminal again where a shell has given it to us without a word.
func (s *streams) foreground() bool {
	if s.caller.Foreground() {
		_, _ = s.caller.Take() // it goes on as it is
	}
	return s.caller.Taken()
}

func (s *streams) fit() {
	if _, size, err := s.caller.Settings(); err == nil {
		_ = s.pty.Resize(size) // of a terminal that is gone there is none
	}
}

// suspend stops this process with its group, as the command was.
func (s *streams) suspend() error {
	if s.pty == nil {
		return nil
	}
	if err := errors.Join(s.caller.GiveBack(nil), terminal.Stop()); err != nil {
		return err
	}
	_, err := s.caller.Take()
	s.fit()
	return errors.Join(err, s.keys.Look())
}

// typed passes what is typed through a pipe.
func (s *streams) typed() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	s.theirs[0], s.mine = r, append(s.mine, r)
	s.start = append(s.start, func() error {
		s.keys, err = terminal.CopyKeys(os.Stdin, w, terminal.NewCaller(os.Stdin, os.Stdin, nil).Foreground)
		if err != nil {
			return err
		}
		go func() {
			<-s.keys.Done()
			w.Close()
		}()
		return nil
	})
	return nil
}

// pipe puts a pipe in the place of descriptor i, and the same one where two are one file.
func (s *streams) pipe(i int) error {
	own := s.theirs[i]
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if i == 0 {
		s.theirs[0], s.mine = r, append(s.mine, r)
		s.start = append(s.start, func() error {
			go func() { // ends with the process when nobody closes the other end
				_, _ = io.Copy(w, own)
				w.Close()
			}()
			return nil
		})
		return nil
	}
	s.theirs[i], s.mine = w, append(s.mine, w)
	if i == 1 && sameOpen(os.Stdout, os.Stderr) {
		s.theirs[2] = w
	}
	s.start = append(s.start, func() error {
		s.copies.Go(func() {
			_, _ = io.Copy(own, r)
			r.Close() // a reader that is gone is the command's to hear
		})
		return nil
	})
	return nil
}

// sameOpen reports whether two descriptors are one file.
func sameOpen(a, b *os.File) bool {
	var x, y unix.Stat_t
	return unix.Fstat(int(a.Fd()), &x) == nil && unix.Fstat(int(b.Fd()), &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// begin starts to copy, once the helper has its ends.
func (s *streams) begin() error {
	for _, f := range s.mine {
		if err := f.Close(); err != nil {
			return err
		}
	}
	s.mine = nil
	if s.pty != nil {
		if err := s.pty.CloseSlave(); err != nil {
			return err
		}
	}
	for _, start := range s.start {
		if err := start(); err != nil {
			return err
		}
	}
	return nil
}

// close waits for what the run has printed and gives the terminal back.
func (s *streams) close() error {
	var errs []error
	for _, f := range s.mine {
		errs = append(errs, f.Close())
	}
	if s.keys != nil {
		errs = append(errs, s.keys.Stop())
	}
	s.copies.Wait()
	if s.winch != nil {
		signal.Stop(s.winch)
		close(s.winch)
		errs = append(errs, s.caller.GiveBack(nil))
	}
	errs = append(errs, s.will.Revoke())
	if s.pty != nil {
		errs = append(errs, s.pty.Close())
	}
	return errors.Join(errs...)
}
