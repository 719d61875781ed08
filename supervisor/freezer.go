package supervisor

import (
	"sync"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/tally"
)

// Reasons for which a run is frozen.
const (
	freezeLoss = 1 << iota // its record must catch up
	freezeStop             // it was stopped, and we with it
)

// freezer freezes a run for as long as there is a reason to.
type freezer struct {
	mu   sync.Mutex
	leaf *cgroup.Leaf
	why  int

	tally   *tally.Tally // of a run without a cgroup
	stopped *tally.Stopped
}

func (f *freezer) set(reason int, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.why
	if f.why &^= reason; on {
		f.why |= reason
	}
	if (was != 0) == (f.why != 0) {
		return nil
	}
	err := f.freeze(f.why != 0)
	if err != nil {
		f.why = was
	}
	return err
}

// freeze stops the processes one by one where there is no cgroup to freeze.
func (f *freezer) freeze(on bool) (err error) {
	switch {
	case f.leaf != nil || f.tally == nil:
		return f.leaf.Freeze(on)
	case on:
		f.stopped, err = f.tally.Stop()
		return err
	}
	return f.stopped.Continue()
}
