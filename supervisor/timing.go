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
}

func (t *timing) start() {
	t.begun = time.Now()
	t.last = t.begun
}

// step takes a step and notes its time.
func (t *timing) step(s step) error {
	began := time.Now()
	err := s.do()
	t.add(s.name, began)
	return err
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
