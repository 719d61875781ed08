package supervisor

import (
	"time"

	"github.com/rs/zerolog"
)

// Mark is the time from the start of Prepare to the end of a step.
type Mark struct {
	Stage string `json:"stage"`
	US    int64  `json:"us"`
}

// timing notes when the steps of a run end, for the benchmark's breakdown.
type timing struct {
	begun time.Time
	marks []Mark
}

func (t *timing) start() { t.begun = time.Now() }

func (t *timing) mark(stage string) {
	t.marks = append(t.marks, Mark{stage, time.Since(t.begun).Microseconds()})
}

func (t *timing) log(l zerolog.Logger) {
	e, last := l.Debug(), int64(0)
	for _, m := range t.marks {
		e = e.Int64(m.Stage+"_us", m.US-last)
		last = m.US
	}
	e.Int64("all_us", last).Msg("timing")
}
