//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// records shows the peer its own, or an auditor those of the user that is asked for.
func (s *served) records(f *helper.Frame) (*helper.Frame, error) {
	of := s.who
	if len(f.Lists) > 0 {
		q, err := oneList(f, 1)
		if err != nil {
			return nil, err
		}
		if of, err = s.audited(q[0]); err != nil {
			return nil, err
		}
	}
	shown, err := supervisor.ShowRecords(of, s.who.UID)
	if err != nil {
		return nil, err
	}
	s.entry.Outcome = "granted"
	a := &helper.Frame{Kind: helper.Done, Files: []*os.File{shown.Dir}}
	if shown.Entries != nil {
		a.Files = append(a.Files, shown.Entries)
	}
	a.Lists = [][]string{{shown.Path, shown.Public, shown.Head, strconv.FormatInt(shown.Size, 10)}}
	return a, nil
}

// audited is the user whose records an auditor asks for, by name or number. Whoever is
// no auditor does not hear whether there is such a user.
func (s *served) audited(name string) (supervisor.Caller, error) {
	s.entry.Of = name
	if err := s.audits(); err != nil {
		return supervisor.Caller{}, err
	}
	uid, err := userNumber(name)
	if err == nil && uid == 0 {
		err = errors.New("root's own records are root's to read")
	}
	if err != nil {
		return supervisor.Caller{}, &supervisor.Refusal{What: "records of user " + trace.Quote(name), Err: err}
	}
	s.entry.Of = strconv.Itoa(uid)
	return supervisor.Caller{UID: uid, GID: uid, Sudo: true}, nil
}

// audits fails unless the peer is in the audit group.
func (s *served) audits() error {
	ok, err := s.rules.Audits(s.peer)
	if err == nil && !ok {
		err = &supervisor.Refusal{
			What:   "user " + strconv.Itoa(s.who.UID) + " may read no records but its own",
			Remedy: "the administrator names the group that may, audit_group in " + helperConfig + " (agentguard-audit), and adds the user to it",
		}
	}
	return err
}

// userNumber is a uid by itself, in decimal digits, or by the name of its user.
func userNumber(name string) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && strconv.FormatUint(n, 10) == name && n < 1<<32-1 {
		return int(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	return int(n), err
}

// users tells an auditor whose records there are.
func (s *served) users(*helper.Frame) (*helper.Frame, error) {
	if err := s.audits(); err != nil {
		return nil, err
	}
	list, err := supervisor.RecordUsers()
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, uid := range list {
		texts = append(texts, strconv.Itoa(uid))
	}
	s.entry.Outcome = "granted"
	return &helper.Frame{Kind: helper.Done, Lists: [][]string{texts}}, nil
}

// oneList reads a request of one list of n texts.
func oneList(f *helper.Frame, n int) ([]string, error) {
	if len(f.Lists) != 1 || len(f.Lists[0]) != n {
		return nil, fmt.Errorf("%w: it has other texts", helper.ErrFrame)
	}
	return f.Lists[0], nil
}

// ownRun opens a run of the peer's by its whole id.
func (s *served) ownRun(id string) (*runs.RunDir, error) {
	path, err := s.who.StateDir("")
	if err != nil {
		return nil, err
	}
	st, err := runs.OpenState(path, 0)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	s.entry.Run = id
	d, err := st.Open(id)
	if err != nil {
		return nil, &supervisor.Refusal{What: "user " + strconv.Itoa(s.who.UID) + " has no run " + trace.Quote(id)}
	}
	return d, nil
}

// commit commits or discards staged changes: id, "1" to force, and the picked entries.
func (s *served) commit(f *helper.Frame) (*helper.Frame, error) {
	q, err := oneList(f, 3)
	if err != nil {
		return nil, err
	}
	d, err := s.ownRun(q[0])
	if err != nil {
		return nil, err
	}
	defer d.Close()
	staged, err := supervisor.OpenStaged(d, s.who, true)
	if err != nil {
		return nil, err
	}
	defer staged.Close()
	picks := staged.Picked([]byte(q[2]))
	switch {
	case f.Kind == helper.Commit:
		err = staged.Commit(picks, q[1] != "")
	case staged.Open:
		err = &supervisor.Refusal{What: "a commit of run " + d.ID() + " was interrupted", Remedy: "finish it first: agentguard commit " + d.ID()}
	default:
		err = staged.Discard(picks)
	}
	if err != nil {
		return nil, err
	}
	s.entry.Outcome = "granted"
	return &helper.Frame{Kind: helper.Done}, nil
}

// end sends SIGTERM to the supervisor of a run: id.
func (s *served) end(f *helper.Frame) (*helper.Frame, error) {
	q, err := oneList(f, 1)
	if err != nil {
		return nil, err
	}
	d, err := s.ownRun(q[0])
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sup, err := d.Supervisor()
	if errors.Is(err, os.ErrNotExist) {
		return nil, &supervisor.Refusal{What: "run " + d.ID() + " is not live", Remedy: "agentguard ps lists those that are"}
	}
	if err != nil {
		return nil, err
	}
	defer sup.Close()
	if err := sup.Signal(unix.SIGTERM); err != nil {
		return nil, err
	}
	s.entry.Outcome = "granted"
	return &helper.Frame{Kind: helper.Done}, nil
}
