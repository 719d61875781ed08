package supervisor

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
)

// step is one named part of a run's start.
type step struct {
	name string
	do   func() error
}

// steps takes the steps of a list in order, up to the first that fails.
func (r *Run) steps(list []step) error {
	for _, s := range list {
		if err := r.timing.step(s); err != nil {
			return err
		}
	}
	return nil
}

// lane is a list of steps that goes on beside another.
type lane struct {
	list    []step
	ended   []chan struct{} // closed when the step, or one before it, has ended the lane or itself
	errs    []error         // the first error up to the step; read after ended
	stopped atomic.Bool
}

// errStopped ends a lane whose work is not wanted any more.
var errStopped = errors.New("stopped")

// beside begins to take the steps of a list in a goroutine, which join waits for.
func (r *Run) beside(list []step) *lane {
	l := &lane{list: list, errs: make([]error, len(list))}
	for range list {
		l.ended = append(l.ended, make(chan struct{}))
	}
	go func() {
		growStack()
		var err error
		for i, s := range list {
			if err == nil && l.stopped.Load() {
				err = errStopped
			}
			if err == nil {
				err = r.timing.step(s)
			}
			l.errs[i] = err
			close(l.ended[i])
		}
	}()
	return l
}

// wait waits for the end of one step and returns the first error up to it. A
// nil lane, and one without the step, has nothing to wait for.
func (l *lane) wait(name string) error {
	if l == nil {
		return nil
	}
	i := slices.IndexFunc(l.list, func(s step) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	<-l.ended[i]
	return l.errs[i]
}

// join waits for the end of the lane, and stops it after its current step when
// the other list has failed with err. It returns the first of both errors.
func (l *lane) join(err error) error {
	if err != nil {
		l.stopped.Store(true)
	}
	last := len(l.list) - 1
	<-l.ended[last]
	if err != nil {
		return err
	}
	return l.errs[last]
}

// growStack makes the goroutine's stack as large as a launch needs at once. It
// would otherwise be moved four times on the way, each time with a walk through
// the tables of all its frames: 0.2 ms, and as many pages of the program touched.
//
//go:noinline
func growStack() byte {
	var room [24 << 10]byte
	return room[len(os.Args)&(len(room)-1)]
}
