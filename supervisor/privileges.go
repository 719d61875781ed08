package supervisor

import (
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lockdown"
)

// What a run takes when it has been born, found by trying (decision 0027 has the table).
var (
	// while the command runs: to look at its processes and at what they execute, whoever
	// may read that and whoever may write it (codewatch: a lease), and to send signals to them.
	livingCaps = []int{unix.CAP_KILL, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_LEASE}
	// at its end, besides: trusted.overlay.* of what it has changed, and the marks of fanotify.
	endingCaps = []int{unix.CAP_SYS_ADMIN}
)

// BirthCapabilities are all that any run takes: those of agentguard.service.
func BirthCapabilities() lockdown.Set {
	return lockdown.Of(slices.Concat(neededCaps, usefulCaps)...)
}

// privileges are how far a process that has no other work than one run has given up its
// capabilities (Config.Alone, Config.Lends).
type privileges struct {
	mu    sync.Mutex
	stage int          // of the constants
	lent  lockdown.Set // what was permitted, and comes back
}

const (
	whole = iota
	bound // no thread can use more than the command's life and its end take, nor can a program that is started
	lent  // no thread can use more than the command's life takes, for a while
	over  // the run has ended, and nothing more is given up
)

// lower gives up what neither the life of the command nor its end takes. It comes after
// the sweep.
//
// On behalf of a caller it comes before anything is read of or written to the caller's streams, and for
// good: what the end takes stays usable. Capabilities are changed on all threads, each of which
// the runtime waits for, on a CPU of its own, and all that time nothing else goes on. A thread that
// waits for a pipe's lock takes no signal, and the caller can hold that for ever (it writes from
// memory whose page never comes: FUSE). Nothing would keep the run's limits then, nor end.
func (r *Run) lower() error {
	p := &r.privileges
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != whole {
		return nil
	}
	if r.cfg.Lends {
		return p.lend(r.anchorCaps())
	}
	if !r.cfg.Alone {
		return nil
	}
	p.stage = bound
	kept := lockdown.Of(slices.Concat(livingCaps, endingCaps)...)
	return errors.Join(lockdown.Bound(kept), lockdown.Use(kept, kept))
}

// lend makes unusable what the life of the command does not take, and keeps it permitted
// for what the process does afterwards. What the process starts has what root has: nothing is
// taken from the bounding set, which could not be given back.
func (p *privileges) lend(besides []int) error {
	held, err := lockdown.Held()
	if err != nil {
		return err
	}
	err = lockdown.Use(lockdown.Of(slices.Concat(livingCaps, besides)...), held)
	if errors.Is(err, errors.ErrUnsupported) { // built with cgo
		return nil
	}
	p.stage, p.lent = lent, held
	return err
}

// anchorCaps are what an anchor's file takes, which may belong to anybody.
func (r *Run) anchorCaps() []int {
	if r.sealer == nil || r.sealer.anchors == nil {
		return nil
	}
	return []int{unix.CAP_DAC_OVERRIDE}
}

// raise makes usable what the end takes. On behalf of a caller that is so already: nothing is changed, and
// nobody waited for.
func (r *Run) raise() {
	p := &r.privileges
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.lent
	if p.stage != lent {
		p.stage = over
		return
	}
	p.stage = over
	if err := lockdown.Use(end, end); err != nil {
		r.cfg.Log.Error().Err(err).Msg("capabilities for the end")
	}
}
