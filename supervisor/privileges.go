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
	whole   = iota
	lowered // no thread can use more than the command's life takes
	bound   // no program that is started can
	lent    // as lowered, for a while
	over    // the run has ended, and nothing more is given up
)

// lower gives up what neither the life of the command nor its end takes. It comes after
// the sweep. CAP_SETPCAP stays for bound.
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
	p.stage = lowered
	live := lockdown.Of(append([]int{unix.CAP_SETPCAP}, livingCaps...)...)
	return lockdown.Use(live, live|lockdown.Of(endingCaps...))
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

// bound takes the same from whatever this process may start. It is a call for each
// capability and thread, which a command that has ended by now does not wait for.
func (r *Run) bound() error {
	p := &r.privileges
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != lowered {
		return nil
	}
	p.stage = bound
	live := lockdown.Of(livingCaps...)
	end := live | lockdown.Of(endingCaps...)
	if err := lockdown.Bound(end); err != nil {
		return err
	}
	return lockdown.Use(live, end)
}

// raise makes usable what the end takes.
func (r *Run) raise() {
	p := &r.privileges
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.lent
	switch p.stage {
	case lowered, bound:
		end = lockdown.Of(slices.Concat(livingCaps, endingCaps)...)
	case whole, over:
		p.stage = over
		return
	}
	p.stage = over
	if err := lockdown.Use(end, end); err != nil {
		r.cfg.Log.Error().Err(err).Msg("capabilities for the end")
	}
}
