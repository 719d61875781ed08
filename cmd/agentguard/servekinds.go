//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/supervisor"
)

// kind is what a request asks for: how many descriptors come with it, and which
// capabilities serving it takes, found by trying. Until then none is effective but that
// of looking at the peer.
type kind struct {
	name  string
	files int
	takes lockdown.Set
	do    func(*served, *helper.Frame) (*helper.Frame, error)
}

var (
	looking = lockdown.Of(unix.CAP_SYS_PTRACE)
	acting  = lockdown.Of(unix.CAP_SETUID, unix.CAP_SETGID) // as the peer
)

func kinds(k helper.Kind) (kind, bool) {
	switch k {
	case helper.Exec:
		return kind{"exec", 3, supervisor.BirthCapabilities(), (*served).exec}, true
	case helper.DryRun:
		return kind{"dry-run", 3, supervisor.BirthCapabilities(), (*served).exec}, true
	case helper.Records:
		return kind{"records", 0, acting | lockdown.Of(unix.CAP_SYS_ADMIN), (*served).records}, true
	case helper.Users:
		return kind{"users", 0, 0, (*served).users}, true
	case helper.Commit:
		return kind{"commit", 0, acting, (*served).commit}, true
	case helper.Discard:
		return kind{"discard", 0, acting, (*served).commit}, true
	case helper.End:
		return kind{"kill", 0, lockdown.Of(unix.CAP_KILL, unix.CAP_SYS_PTRACE), (*served).end}, true
	}
	return kind{}, false
}

func (s *served) dispatch(f *helper.Frame) (*helper.Frame, error) {
	k, ok := kinds(f.Kind)
	if !ok {
		return nil, fmt.Errorf("%w: an unknown request", helper.ErrFrame)
	}
	s.entry.Request = k.name
	if len(f.Files) != k.files {
		return nil, fmt.Errorf("%w: %d descriptors instead of %d", helper.ErrFrame, len(f.Files), k.files)
	}
	if err := lockdown.Use(k.takes, k.takes); err != nil {
		return nil, err
	}
	if f.Kind != helper.Exec { // a caller that has gone is answered by nobody, and what waited for a run is given back before
		if err := s.reserve.Close(); err != nil {
			return nil, err
		}
		go s.leave(s.entry)
	}
	return k.do(s, f)
}

// leave ends the process when the caller has gone, which the log tells.
func (s *served) leave(e helper.Entry) {
	if _, err := helper.Read(s.conn); err == nil {
		return
	}
	s.closing.Lock() // for good; of a request that has come to its end, the caller has had the answer
	e.Outcome, e.Why = "gone", "the caller has not waited for the answer"
	if s.loud {
		_ = s.log.Write(e) // nobody is left to be told
	}
	os.Exit(helper.RefusedStatus)
}
