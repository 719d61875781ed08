//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// records shows the peer its own.
func (s *served) records(*helper.Frame) (*helper.Frame, error) {
	shown, err := supervisor.ShowRecords(s.who)
	if err != nil {
		return nil, err
	}
	s.entry.Outcome = "granted"
	f := &helper.Frame{Kind: helper.Done, Files: []*os.File{shown.Dir}}
	if shown.Entries != nil {
		f.Files = append(f.Files, shown.Entries)
	}
	f.Lists = [][]string{{shown.Path, shown.Public, shown.Head, strconv.FormatInt(shown.Size, 10)}}
	return f, nil
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
