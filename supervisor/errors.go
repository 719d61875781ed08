package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Exit statuses of agentguard itself; DESIGN and README list them.
const (
	StatusWall     = 124 // the wall-clock limit ended the run
	StatusFailed   = 125 // agentguard could not run, or could not enforce
	StatusNoExec   = 126 // found, but not executable
	StatusNotFound = 127 // not found
	StatusKilled   = 137 // a memory, cpu or output limit ended the run
)

// Refusal is an error that ends a run before its first instruction. It says
// what was refused, because of which clause, and what would change it.
type Refusal struct {
	Status int    // exit status, StatusFailed unless said otherwise
	What   string // one sentence without a full stop
	Clause string // "filesystem.workspace.mode (policy.yaml:4:11)", or ""
	Remedy string // "use --mode ro", or ""
	Err    error  // cause, or nil
}

// Error joins the parts into one line.
func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(r.What)
	if r.Err != nil {
		fmt.Fprintf(&b, ": %v", r.Err)
	}
	if r.Clause != "" {
		fmt.Fprintf(&b, " [%s]", r.Clause)
	}
	if r.Remedy != "" {
		fmt.Fprintf(&b, "; %s", r.Remedy)
	}
	return b.String()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// StatusOf returns the exit status that err stands for.
func StatusOf(err error) int {
	var r *Refusal
	if errors.As(err, &r) && r.Status != 0 {
		return r.Status
	}
	return StatusFailed
}

// releases is what a run has acquired, released last in, first out.
type releases struct {
	mu   sync.Mutex
	list []release
}

type release struct {
	what string
	undo func() error
}

func (r *releases) push(what string, undo func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, release{what, undo})
}

// run releases everything and joins the errors; it may be called twice.
func (r *releases) run() error {
	r.mu.Lock()
	list := r.list
	r.list = nil
	r.mu.Unlock()
	var errs []error
	for _, acquired := range slices.Backward(list) {
		if err := acquired.undo(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", acquired.what, err))
		}
	}
	return errors.Join(errs...)
}
