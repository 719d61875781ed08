package supervisor

import (
	"sync"

	"github.com/agentguard/agentguard/internal/cgroup"
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
	err := f.leaf.Freeze(f.why != 0)
	if err != nil {
		f.why = was
	}
	return err
}
