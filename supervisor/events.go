package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// events reads the record while it is written, for Config.Events. The file is the
// queue: nobody who writes the record ever waits for who reads it.
//
//	recorder --Append--> trace.Writer --write--> trace.jsonl --Read--> f
//	                         `-------- settled: so many bytes stay ------^
type events struct {
	f    func(*trace.Event)
	file *os.File // from its beginning
	done chan error

	mu    sync.Mutex
	wake  sync.Cond
	read  int64
	stays int64 // bytes that are not taken back
	over  bool  // the record is closed: all of it stays
}

// newEvents returns nil where nobody listens.
func newEvents(f func(*trace.Event)) *events {
	if f == nil {
		return nil
	}
	e := &events{f: f}
	e.wake.L = &e.mu
	return e
}

// settled counts lines that the record will keep (trace.Options.Settled).
func (e *events) settled(lines []byte) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stays += int64(len(lines))
	e.wake.Broadcast()
}

// startEvents begins to tell what is in the record, when the command runs.
func (r *Run) startEvents() error {
	e := r.told
	if e == nil {
		return nil
	}
	var err error
	if e.file, err = r.dir.Open(runs.TraceFile); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	e.done = make(chan error, 1)
	go func() { e.done <- e.tell() }()
	return nil
}

// tell calls f for each record, up to the end of the record.
func (e *events) tell() error {
	in := trace.NewReader(e)
	err := in.Each(func(ev *trace.Event) error {
		e.f(ev)
		return nil
	})
	if rep := in.Report(); err == nil && (rep.BadLines > 0 || rep.Missing > 0) {
		err = fmt.Errorf("%d lines could not be read, %d records are missing", rep.BadLines, rep.Missing)
	}
	return errors.Join(err, e.file.Close())
}

// Read reads what stays, and waits for more until the record is closed.
func (e *events) Read(p []byte) (int, error) {
	e.mu.Lock()
	for e.read == e.stays && !e.over {
		e.wake.Wait()
	}
	if !e.over {
		p = p[:min(int64(len(p)), e.stays-e.read)]
	}
	e.mu.Unlock()
	n, err := e.file.Read(p)
	e.read += int64(n) // only here
	if err == io.EOF && !e.ended() {
		err = io.ErrUnexpectedEOF // somebody has cut the file
	}
	return n, err
}

func (e *events) ended() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// end tells the rest of a closed record, and returns after the last call of f.
func (e *events) end() error {
	if e == nil || e.done == nil {
		return nil
	}
	e.mu.Lock()
	e.over = true
	e.wake.Broadcast()
	e.mu.Unlock()
	if err := <-e.done; err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return nil
}
