//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// dialHelper connects to the helper. One that root has not started is none: it would
// hear the environment and show records of its own making.
func dialHelper() (*net.UnixConn, error) {
	path := helperSocket()
	c, err := dialQueued(path)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil, &supervisor.Refusal{
			What:   fmt.Sprintf("the privileged helper at %s has had a full queue of callers for %v", trace.Quote(path), queueLimit),
			Remedy: "try again; its log says who asks so often",
		}
	case err != nil:
		remedy := "its administrator starts it (systemctl start agentguard.socket), and lets its group use it"
		if os.Getenv(socketVar) != "" {
			remedy = "correct " + socketVar + ", which names it, or unset it; " + socketVar + "=" + noSocket + " goes without a helper"
		}
		return nil, &supervisor.Refusal{
			What: "the privileged helper does not answer at " + trace.Quote(path), Err: errors.Unwrap(err), Remedy: remedy,
		}
	}
	raw, err := c.SyscallConn()
	var cred *unix.Ucred
	var fail error
	if err == nil {
		err = raw.Control(func(fd uintptr) { cred, fail = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	}
	if err = errors.Join(err, fail); err == nil && cred.Uid != 0 {
		err = &supervisor.Refusal{What: fmt.Sprintf("who answers at %s is user %d, and not root", trace.Quote(path), cred.Uid), Remedy: "unset " + socketVar}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// queueLimit is how long a caller waits for a place in the queue of the helper's socket.
const queueLimit = 10 * time.Second

// dialQueued connects to a socket, and waits where its queue is full: another user may
// flood it, and a connect(2) that does not block says EAGAIN then (unix(7)).
func dialQueued(path string) (*net.UnixConn, error) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if !errors.Is(err, unix.EAGAIN) || time.Since(began) > queueLimit {
			return c, err
		}
	}
}

// askOnce sends a request and returns its answer.
func askOnce(q *helper.Frame) (*helper.Frame, error) {
	c, err := dialHelper()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	werr := helper.Write(c, q) // a refusal may have come before all was sent
	f, err := answer(helper.Read(c))
	if err != nil && werr != nil && !errors.Is(werr, unix.EPIPE) {
		err = werr
	}
	return f, err
}

// answer makes an error of a frame that is one.
func answer(f *helper.Frame, err error) (*helper.Frame, error) {
	if err != nil {
		return nil, fmt.Errorf("the helper has gone without an answer: %w", err)
	}
	switch {
	case f.Kind == helper.Done:
		return f, nil
	case f.Kind == helper.Failed && len(f.Lists) > 0 && len(f.Lists[0]) == 2:
		return nil, errors.Join(answerError(f.Lists), f.Close())
	}
	return nil, errors.Join(fmt.Errorf("the helper's answer: %w", helper.ErrFrame), f.Close())
}

// answerError is the error that failure has put into a frame.
func answerError(lists [][]string) error {
	n, err := strconv.Atoi(lists[0][1])
	if err != nil {
		n = supervisor.StatusFailed
	}
	if len(lists) > 1 && len(lists[1]) > 0 && len(lists[1])%3 == 0 {
		e := &changes.ConflictError{}
		for t := lists[1]; len(t) > 0; t = t[3:] {
			number, _ := strconv.Atoi(t[0]) // nobody shows it
			e.Conflicts = append(e.Conflicts, changes.Conflict{N: number, Path: t[1], Why: t[2]})
		}
		return e
	}
	return &supervisor.Refusal{Status: n, What: lists[0][0]}
}

// conflicts are those that an error tells of.
func conflicts(err error) []changes.Conflict {
	var c *changes.ConflictError
	if errors.As(err, &c) {
		return c.Conflicts
	}
	return nil
}

// shownRecords asks for the records of a user, "" is the caller, and for what vouches for
// them.
func shownRecords(of string) (*runs.State, *vault.Vault, error) {
	q := &helper.Frame{Kind: helper.Records}
	if of != "" {
		q.Lists = [][]string{{of}}
	}
	f, err := askOnce(q)
	if err != nil {
		return nil, nil, err
	}
	if len(f.Lists) != 1 || len(f.Lists[0]) != 4 || len(f.Files) < 1 {
		return nil, nil, errors.Join(fmt.Errorf("the helper's answer: %w", helper.ErrFrame), f.Close())
	}
	t := f.Lists[0]
	snap := &vault.Snapshot{Public: t[1], Head: t[2]}
	if len(f.Files) > 1 {
		snap.Entries = f.Files[1]
	}
	v := vault.View(snap)
	if snap.Size, err = strconv.ParseInt(t[3], 10, 64); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	s, err := runs.View(f.Files[0], t[0])
	if err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	return s, v, nil
}

// askHelper returns how changes of a run are committed or discarded by the helper.
func askHelper(id string) func(picks []byte, discard, force bool) error {
	return func(picks []byte, discard, force bool) error {
		kind := helper.Commit
		if discard {
			kind = helper.Discard
		}
		_, err := askOnce(&helper.Frame{Kind: kind, Lists: [][]string{{id, yes(force), string(picks)}}})
		return err
	}
}

// throughHelper runs a command, or prints its plan, on the other side. The policy has
// been checked here for the sake of its messages; the helper checks it again.
func (f *execFlags) throughHelper(args []string, out *os.File) (*runs.Result, error) {
	if f.state != "" {
		return nil, &supervisor.Refusal{What: "--state is root's: the helper keeps the records of user " + strconv.Itoa(os.Getuid()) + " apart", Remedy: "leave it out"}
	}
	q := &execRequest{
		cwd: f.cwd, tty: f.tty, cont: f.cont, interactive: f.interactive, json: out != nil, calls: f.verbose, argv: args, environ: os.Environ(),
	}
	for _, file := range f.asked {
		q.asked = append(q.asked, file.Statements())
	}
	if f.dryRun {
		return nil, dryRun(q, planTo(out))
	}
	if f.detach {
		return nil, detach(q)
	}
	s, err := openStreams(f)
	if err != nil {
		return nil, err
	}
	q.own = s.pty != nil
	res, err := s.run(q)
	return res, errors.Join(err, s.close())
}

// askWithNull sends a request for a command that has no streams of ours. Two that were one
// file would be kept as one.
func askWithNull(kind helper.Kind, q *execRequest) (*helper.Frame, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	other, err := os.OpenFile("/dev/zero", os.O_WRONLY, 0) // takes all there is, too
	if err != nil {
		return nil, err
	}
	defer other.Close()
	return askOnce(&helper.Frame{Kind: kind, Lists: q.lists(), Files: []*os.File{null, null, other}})
}

// detach starts a run that goes on without us, and prints its id.
func detach(q *execRequest) error {
	q.detach = true
	a, err := askWithNull(helper.Exec, q)
	if err != nil {
		return err
	}
	if len(a.Lists) != 1 || len(a.Lists[0]) != 1 {
		return errors.Join(fmt.Errorf("the helper's answer: %w", helper.ErrFrame), a.Close())
	}
	_, err = fmt.Println(a.Lists[0][0])
	return errors.Join(err, a.Close())
}

func dryRun(q *execRequest, out io.Writer) error {
	a, err := askWithNull(helper.DryRun, q)
	if err != nil {
		return err
	}
	for _, list := range a.Lists {
		for _, text := range list {
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
	}
	return a.Close()
}

// run sends the request and waits for the end of the run. What can be done while the helper
// works is done then: a signal before that ends this process, and with it the run.
func (s *streams) run(q *execRequest) (*runs.Result, error) {
	c, err := dialHelper()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	werr := helper.Write(c, &helper.Frame{Kind: helper.Exec, Lists: q.lists(), Files: s.theirs[:]})
	sigs := forwarded()
	if err := s.begin(); err != nil {
		return nil, err
	}
	runs.ExpectResult()
	supervisor.Hurry(false)
	go func() { // ends with the process
		for sig := range sigs {
			if n, ok := sig.(unix.Signal); ok {
				_ = helper.Write(c, signalFrame(n)) // a run that has ended takes none
			}
		}
	}()
	for {
		f, err := helper.Read(c)
		if err == nil && f.Kind == helper.Stopped {
			if err := errors.Join(s.suspend(), helper.Write(c, signalFrame(unix.SIGCONT))); err != nil {
				return nil, err
			}
			continue
		}
		if f, err = answer(f, err); err != nil {
			if errors.Is(werr, unix.EPIPE) { // it was refused before all was sent
				werr = nil
			}
			return nil, errors.Join(err, werr)
		}
		if len(f.Lists) != 1 || len(f.Lists[0]) != 1 {
			return nil, fmt.Errorf("the helper's answer: %w", helper.ErrFrame)
		}
		return runs.ParseResult([]byte(f.Lists[0][0]))
	}
}

func signalFrame(n unix.Signal) *helper.Frame {
	return &helper.Frame{Kind: helper.Signal, Lists: [][]string{{strconv.Itoa(int(n))}}}
}

// endByHelper asks the helper to signal a live run.
func endByHelper(id string) error {
	_, err := askOnce(&helper.Frame{Kind: helper.End, Lists: [][]string{{id}}})
	return err
}
