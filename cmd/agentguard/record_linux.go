package main

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// openRunRecord opens the record of a run of this host.
func openRunRecord(state, name string) (*record, error) {
	d, err := openRun(state, name)
	if err != nil {
		return nil, err
	}
	r, err := recordOf(d)
	if err == nil {
		r.vouch = func() (trace.Judgement, []string) { return vouchFor(state, d) }
		r.missing = func() []string { return missingOf(d) }
	}
	return r, err
}

// missingOf says which programs a run did not find and the host had; nothing of a
// run that has no result.
func missingOf(d *runs.RunDir) (out []string) {
	res, err := d.Result()
	if err != nil {
		return nil
	}
	for _, m := range res.Missing {
		out = append(out, trace.Line(m.String()))
	}
	return out
}

// recordOf opens the record of a run and takes over its directory, which stays
// open with the record: the lock that says whether the run is live is on it.
func recordOf(d *runs.RunDir) (*record, error) {
	f, err := d.Open(runs.TraceFile)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	r, err := newRecord(f, d.ID())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	r.live, r.dir = d.Live, d
	return r, nil
}

// eachRun calls visit for the record of every run of this host, the newest
// first, with the number of runs that are left, until visit says no more.
func eachRun(state string, visit func(r *record, left int) (more bool, err error)) error {
	return eachDir(state, func(d *runs.RunDir, left int) (bool, error) {
		r, err := recordOf(d)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil // it never had a record
		}
		if err != nil {
			return false, err
		}
		more, err := visit(r, left)
		return more, errors.Join(err, r.Close())
	})
}

// eachDir calls visit, which closes the directory, for every run of this host,
// the newest first, until visit says no more.
func eachDir(state string, visit func(d *runs.RunDir, left int) (more bool, err error)) error {
	s, err := openState(state)
	if err != nil {
		return err
	}
	defer s.Close()
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	for i, id := range ids {
		d, err := s.Open(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if more, err := visit(d, len(ids)-i-1); err != nil || !more {
			return err
		}
	}
	return nil
}

// openAsCaller opens a file by name: under sudo, as the invoking user. A named
// pipe that somebody put in the place of a file holds nobody up.
func openAsCaller(name string) (f *os.File, err error) {
	c, err := caller()
	if err != nil {
		return nil, err
	}
	err = c.As(func() (err error) {
		f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		return err
	})
	return f, err
}

// hostPath says what lies at a path of this host, as the caller sees it.
func hostPath() func(string) string {
	c, err := caller()
	if err != nil {
		return nil
	}
	return c.Outside(2 * time.Second)
}
