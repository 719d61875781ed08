package supervisor

import (
	"fmt"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// number gives e the number of the kernel's record that it was made of. One
// that came after its loss was recorded has none: it is counted there.
func (r *recorder) number(e *trace.Event, b *bpf.Event) {
	if !b.Late {
		e.CPU, e.CPUSeq = uint32(b.CPU), b.Seq+1
	}
}

// fold accounts for a record of the kernel's that gets no line of its own.
func (r *recorder) fold(b *bpf.Event) {
	if !b.Late {
		r.w.Fold(uint32(b.CPU))
	}
}

// lose records a stretch of the kernel's numbers that was never read.
func (r *recorder) lose(g *bpf.Gap) {
	r.lost += g.Count
	e := trace.Event{
		Kind: trace.KindLoss, Phase: trace.PhaseCommand, Mono: bootTime(),
		Loss: trace.Loss{
			Class: "any", Cause: "ring", Count: g.Count, AfterSeq: g.AfterPos,
			CPU: int32(g.CPU), First: g.First + 1, Last: g.Last + 1,
		},
	}
	if g.Before != 0 {
		e.Loss.BeforeSeq = g.BeforePos + 1
	}
	r.appendOwn(&e)
}

// lossEvents puts every loss into the record that is not in it yet, and returns
// what else makes it incomplete.
func (r *Run) lossEvents(stats *bpf.Stats, err error) []string {
	var findings []string
	if err != nil {
		findings = append(findings, "sensor: "+err.Error())
	}
	for i := range stats.Gaps {
		r.rec.lose(&stats.Gaps[i])
	}
	var dropped uint64
	for _, d := range stats.Classes {
		dropped += d.Dropped
	}
	if dropped != r.rec.lost {
		findings = append(findings, fmt.Sprintf("the kernel counted %d lost events, and %d of its numbers are missing", dropped, r.rec.lost))
	}
	if stats.Missed > 0 {
		r.rec.appendOwn(&trace.Event{
			Kind: trace.KindLoss, Phase: trace.PhaseCommand, Mono: bootTime(),
			Loss: trace.Loss{Class: "any", Cause: "recursion", Count: stats.Missed, CPU: -1},
		})
	}
	return findings
}

// lossCounts are the kernel's own counts for the summary: what it numbered by
// CPU, and what was lost by class and kind.
func lossCounts(s *bpf.Stats) []trace.Count {
	var out []trace.Count
	add := func(name string, n uint64) {
		if n > 0 {
			out = append(out, trace.Count{Name: name, N: n})
		}
	}
	for cpu, n := range s.Numbered {
		add(fmt.Sprintf("cpu.%d.events", cpu), n)
	}
	var bytes uint64
	for class, d := range s.Classes {
		add("lost.class."+bpf.Class(class).String(), d.Dropped)
		bytes += d.DroppedBytes
	}
	add("lost.bytes", bytes)
	for _, d := range s.Dropped {
		add("lost."+d.Type.String(), d.N)
	}
	return out
}
