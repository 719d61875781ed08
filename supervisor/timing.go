package supervisor

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Mark is one step of a run: when it began and how long it took. Steps of the
// birth and of the plan overlap.
type Mark struct {
	Stage string `json:"stage"`
	Start int64  `json:"start_us"` // since the run was asked for
	US    int64  `json:"us"`
}

// timing notes how long the steps of a run take, for the benchmark's breakdown.
type timing struct {
	begun time.Time
	mu    sync.Mutex
	marks []Mark
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
	t.marks = append(t.marks, Mark{stage, began.Sub(t.begun).Microseconds(), now.Sub(began).Microseconds()})
	t.last = now
}

func (t *timing) log(l zerolog.Logger) {
	e := l.Debug()
	for _, m := range t.marks {
		e = e.Int64(m.Stage+"_us", m.US)
	}
	e.Int64("all_us", time.Since(t.begun).Microseconds()).Msg("timing")
}
