package supervisor

import (
	"crypto/sha256"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agentguard/agentguard/internal/terminal"
)

// stdio is the command's side of the relay and ours.
type stdio struct {
	childIn, childOut, childErr *os.File // given to the command, then closed here
	in                          *os.File // our end of stdin, nil when the command gets none
	outs                        []*relay
	wait                        sync.WaitGroup
	tty                         *tty           // the run's own terminal; nil: it has none
	keys                        *terminal.Keys // what is typed for a pipe
	started                     bool           // the relays run, and end by themselves
}

// newStdio makes the pipes, and puts the run's own terminal where the caller's
// is. stdout and stderr share one pipe when the caller's are one open file, so that
// the order of writes holds. Without stdin the command reads end of file at once.
func newStdio(stdin bool, stdout, stderr *os.File, t *tty) (*stdio, error) {
	s := &stdio{tty: t}
	var err error
	if t != nil {
		s.childIn = t.pty.Slave
	} else if s.childIn, s.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	if !stdin && s.in != nil {
		if err = s.in.Close(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.in = nil
	}
	if s.childOut, err = s.relay("stdout", stdout, t != nil && t.streams.out); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if t != nil && t.streams.out && t.streams.err || sameFile(stdout, stderr) {
		s.childErr = s.childOut
		return s, nil
	}
	if s.childErr, err = s.relay("stderr", stderr, t != nil && t.streams.err); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// relay adds a stream and returns the command's end of it.
func (s *stdio) relay(name string, to *os.File, tty bool) (*os.File, error) {
	r := &relay{Stream: Stream{Name: name}, to: to, tty: tty}
	child := (*os.File)(nil)
	if tty {
		r.from, child = s.tty.pty.Master, s.tty.pty.Slave
	} else {
		var err error
		if r.from, child, err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	s.outs = append(s.outs, r)
	return child, nil
}

// own gives the pipes and the terminal to the command's user: programs reopen their
// streams by name (/dev/stdout), and the inode's mode is 0600.
func (s *stdio) own(p *Plan) error {
	if p.Host.Mode != ModeRoot {
		return nil // they are made by the same user
	}
	id := p.Identity
	var errs []error
	for _, f := range s.pipes() {
		errs = append(errs, f.Chown(id.UID, id.GID))
	}
	if s.tty != nil {
		errs = append(errs, s.tty.pty.Slave.Chown(id.UID, ttyGroup))
	}
	return errors.Join(errs...)
}

// pipes are the command's ends, each once, without the terminal.
func (s *stdio) pipes() []*os.File {
	var out []*os.File
	for _, f := range []*os.File{s.childIn, s.childOut, s.childErr} {
		if f != nil && !slices.Contains(out, f) && !(s.tty != nil && f == s.tty.pty.Slave) {
			out = append(out, f)
		}
	}
	return out
}

// start begins to copy. stdin is read from the caller until end of file; what
// the command does not read before it ends is lost, as with ssh(1), unless it was
// typed and not yet taken.
func (s *stdio) start(stdin *os.File, limits Limits, level terminal.Level, files map[string]*os.File) error {
	keep, pass := newBudget(limits.Stdout), newBudget(limits.Stdout)
	s.started = true
	for _, r := range s.outs {
		if limits.CutHere {
			r.pass = &share{budget: pass}
		}
		switch {
		case r.tty:
			r.clean = s.tty
		case limits.Sanitize && terminal.Is(r.to):
			r.clean = terminal.NewFilter(min(level, terminal.Colours))
		}
		r.keep, r.record, r.sum = &share{budget: keep}, files[r.Name], sha256.New()
		s.wait.Go(r.run)
	}
	w := s.in
	if s.in = nil; w == nil {
		return nil
	}
	if terminal.Is(stdin) {
		return s.typed(stdin, w)
	}
	go func() { // ends with the process when the caller never closes its end
		_ = copyAll(w, stdin) // EPIPE: the command is gone, and so is its interest
		w.Close()
	}()
	return nil
}

// typed copies what is typed to a pipe until the run is over: then somebody else
// may want to read the terminal.
func (s *stdio) typed(stdin, w *os.File) error {
	var err error
	if s.keys, err = terminal.CopyKeys(stdin, w, terminal.NewCaller(stdin, stdin, nil).Foreground); err != nil {
		return errors.Join(err, w.Close())
	}
	go func() {
		<-s.keys.Done()
		w.Close()
	}()
	return nil
}

// closeChild closes the command's ends, so that end of file can be seen. The
// terminal's stays open for as long as the run lasts: a command that closes all of
// its streams may open it again.
func (s *stdio) closeChild() error {
	var errs []error
	for _, f := range s.pipes() {
		errs = append(errs, f.Close())
	}
	s.childIn, s.childOut, s.childErr = nil, nil, nil
	return errors.Join(errs...)
}

// pipeGrace is how long a dead run's pipes may take to come to their end.
const pipeGrace = time.Second

// finish waits for the copies of a dead run. A slow reader is waited for, as
// without us, until giveUp says otherwise.
func (s *stdio) finish(giveUp <-chan struct{}) []Stream {
	if s.tty != nil {
		s.outs[0].fail(s.tty.pty.CloseSlave()) // ours is the last: reads end after what is there
	}
	done := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-giveUp:
	case <-time.After(pipeGrace):
		for _, r := range s.outs {
			r.dead.Store(true)
			r.fail(ignoreClosed(r.from.SetReadDeadline(time.Now())))
		}
		select {
		case <-done:
		case <-giveUp:
		}
	}
	var out []Stream
	for _, r := range s.outs {
		out = append(out, r.abandon())
	}
	return out
}

// cut reports whether more was written than the record may keep; what a full disk did not take
// is another matter.
func (s *stdio) cut() bool {
	return slices.ContainsFunc(s.outs, func(r *relay) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.cut
	})
}

// terminal is the relay of the run's own terminal.
func (s *stdio) terminal() *relay {
	return s.outs[slices.IndexFunc(s.outs, func(r *relay) bool { return r.tty })]
}

// endKeys leaves the caller's terminal to whoever reads it next.
func (s *stdio) endKeys() error {
	if s.keys == nil {
		return nil
	}
	return s.keys.Stop()
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Close releases everything that start did not hand out, but for the terminal.
func (s *stdio) Close() error {
	errs := []error{s.closeChild(), s.endKeys()}
	if s.in != nil {
		errs = append(errs, s.in.Close())
	}
	for _, r := range s.outs {
		if !r.tty {
			errs = append(errs, ignoreClosed(r.from.Close()))
		}
		if !s.started {
			r.endOwn()
		}
	}
	return errors.Join(errs...)
}
