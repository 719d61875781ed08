package supervisor

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// throttled reports whether the run waits for its record instead of outrunning it.
func throttled(p *policy.Policy) bool { return p.OnLoss.Value == "throttle" }

// startDying starts PID 1 from a thread that lasts as long as the run: where the
// kernel is told to kill PID 1 with its parent, it goes by the thread and not by
// the process (PR_SET_PDEATHSIG, prctl(2)).
func (r *Run) startDying(cfg initproc.Config) (p *initproc.Process, err error) {
	born, over := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p, err = initproc.Start(cfg)
		close(born)
		<-over
	}()
	<-born
	r.release.push("thread of birth", func() error { close(over); return nil })
	return p, err
}

// lossy reports whether something is known to be missing from the record.
// Programs that the kernel skipped are not: they bound what may be missing.
func (r *Run) lossy() bool {
	if r.rec.w.Lost() > 0 || r.rec.blind.Load() || r.asked.tooMany() {
		return true
	}
	if r.sensor == nil {
		return false
	}
	n, err := r.sensor.Dropped()
	if err != nil {
		r.cfg.Log.Error().Err(err).Msg("counting lost events")
	}
	return n > 0
}

// readEvents is the sensor's reader.
func (r *Run) readEvents() {
	if err := r.sensor.Read(r.rec.event); err != nil {
		r.rec.readErr = err
		r.rec.blind.Store(true)
	}
	r.rec.flushAll()
}

func cpuTime(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u) // cannot fail for the caller itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

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
	if stats.BrakeErr != nil {
		findings = append(findings, "the run could not be throttled: "+stats.BrakeErr.Error())
	}
	if stats.LostRepeats > 0 {
		r.rec.appendOwn(&trace.Event{
			Kind: trace.KindLoss, Phase: trace.PhaseCommand, Mono: bootTime(),
			Loss: trace.Loss{Class: string(trace.KindOpen), Cause: "ring", Count: stats.LostRepeats, CPU: -1},
		})
	}
	if stats.Missed > 0 {
		r.rec.appendOwn(&trace.Event{
			Kind: trace.KindLoss, Phase: trace.PhaseCommand, Mono: bootTime(),
			Loss: trace.Loss{Class: "any", Cause: "recursion", Count: stats.Missed, CPU: -1},
		})
	}
	return findings
}

// recordCounts say for the summary what the record itself took: what the kernel
// numbered by CPU, what was lost by class and kind, how often the run waited for
// its reader, and the work of the reader and of all of agentguard.
func (r *Run) recordCounts(s *bpf.Stats) []trace.Count {
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
	add("throttle.freezes", s.Freezes)
	add("throttle.frozen_ns", uint64(s.FrozenTime))
	add("throttle.waits", s.Waits)
	add("throttle.wait_ns", uint64(s.WaitTime))
	add("reader.events", s.Read)
	add("reader.cpu_ns", uint64(s.ReadTime))
	add("supervisor.cpu_ns", uint64(cpuTime(unix.RUSAGE_SELF)))
	return out
}
