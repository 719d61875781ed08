package supervisor

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// mark is one step of a run, in microseconds. Steps of the birth and of the plan
// overlap.
type mark struct {
	stage     string
	start, us int64 // since the run was asked for; that it took
}

// timing notes how long the steps of a run take, for the benchmark's breakdown.
type timing struct {
	begun time.Time
	mu    sync.Mutex
	marks []mark
	last  time.Time // end of the last step of the main list
	now   string    // the step that was begun last
}

func (t *timing) start() {
	t.begun = time.Now()
	t.last, t.marks = t.begun, nil
}

// step takes a step and notes its time.
func (t *timing) step(s step) error {
	began := time.Now()
	t.mu.Lock()
	t.now = s.name
	t.mu.Unlock()
	err := s.do()
	t.add(s.name, began)
	return err
}

// current is the step that was begun last.
func (t *timing) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// slowAfter is how long a start may take before a person is told what it is at.
const slowAfter = time.Second

// tellSlow calls slow with the step under way when a start takes long, unless stop
// was called: not while a command runs, nor when it has been refused.
func (t *timing) tellSlow(slow func(step string)) (stop func()) {
	if slow == nil {
		return func() {}
	}
	var mu sync.Mutex
	over := false
	timer := time.AfterFunc(slowAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			slow(t.current())
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}

// mark ends a step of the main list that began where the one before ended.
func (t *timing) mark(stage string) { t.add(stage, t.last) }

func (t *timing) add(stage string, began time.Time) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.marks = append(t.marks, mark{stage, began.Sub(t.begun).Microseconds(), now.Sub(began).Microseconds()})
	t.last = now
}

// log writes one line with STEP_us=TOOK and STEP_at=BEGAN for each step, which
// bench/launch reads.
func (t *timing) log(l zerolog.Logger) {
	e := l.Debug()
	for _, m := range t.marks {
		e = e.Int64(m.stage+"_at", m.start).Int64(m.stage+"_us", m.us)
	}
	e.Int64("all_us", time.Since(t.begun).Microseconds()).Msg("timing")
}
