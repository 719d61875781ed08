package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// Version is the version of this build, set by the linker.
var Version = "devel"

func cpus() int { return runtime.NumCPU() }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// finish ends the run: kill what is left, drain the sensor and the pipes, close
// the record, write the result, release everything.
func (r *Run) finish(started time.Time, end exited) (*runs.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	r.raise() // first: later, threads are in calls that take 10 ms (grace periods), and each is waited for
	if err := r.killRun(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the run could not be killed: %w", err), r.rec.w.Flush(), r.Close(), r.told.end())
	}
	r.timing.mark("killed")
	r.closing.Go(func() { r.code.stop(r.cfg.Log) })
	r.closing.Go(r.detach)
	networkEnd := r.net.end(r.cfg.Log)
	res := r.newResult(started, end)
	stop, relayed := r.giveUp(end)
	streams := r.stdio.finish(stop)
	relayed()
	if err := errors.Join(r.stdio.endKeys(), r.tty.Close()); err != nil {
		r.cfg.Log.Error().Err(err).Msg("terminal")
	}
	res.Stdout, res.Stderr = outputs(streams)
	r.timing.mark("relayed")
	stats, err := r.drain()
	networkEnd()
	if r.plan.Limits.Counted && int64(stats.FileBytes) > r.plan.Limits.Output && res.Reason != runs.ReasonWall {
		res.Status, res.Reason = StatusKilled, runs.ReasonOutput // passed between two looks of the watcher
	}
	if r.plan.OnLoss == "kill" && res.Reason != runs.ReasonWall && r.lossy() {
		res.Status, res.Reason = StatusKilled, runs.ReasonLoss // likewise
	}
	r.limitHits(res, r.leaf.OOMKills(), r.leaf.TaskRefusals())
	r.timing.mark("drained")
	r.tearDown()
	r.packChanges(res)
	r.timing.mark("packed")
	sum := r.closeRecord(res, stats, streams, err)
	r.tellMissing(res)
	r.timing.mark("recorded")
	r.closing.Go(func() {
		if err := r.code.letGo(); err != nil {
			r.cfg.Log.Error().Err(err).Msg("mounts")
		}
	})
	r.storeResult(res, sum)
	r.timing.mark("sealed")
	r.tellSealed(res)
	if err := r.Close(); err != nil {
		r.cfg.Log.Error().Err(err).Msg("clean-up")
		res.Error = joinText(res.Error, err.Error())
	}
	r.timing.mark("released")
	if err := r.told.end(); err != nil {
		r.cfg.Log.Error().Err(err).Msg("events")
		res.Error = joinText(res.Error, err.Error())
	}
	r.timing.log(r.cfg.Log)
	return res, nil
}

// tellSealed tells the result to who waits for no more. The record is nobody's any longer
// by then: who hears of it may commit, remove or continue the run at once.
func (r *Run) tellSealed(res *runs.Result) {
	if r.cfg.Sealed == nil {
		return
	}
	if err := r.dir.Unlock(); err != nil {
		r.cfg.Log.Error().Err(err).Msg("run directory")
	}
	r.cfg.Sealed(res)
}

// killRun ends every process of the run. Without a cgroup that is PID 1's end: the kernel
// then kills its PID namespace, and PID 1 is reaped when that is empty (pid_namespaces(7)).
func (r *Run) killRun(ctx context.Context) error {
	if r.leaf == nil {
		return errors.Join(r.proc.Kill(), r.proc.Reap(), r.endOrphans())
	}
	return killHeld(ctx, r.leaf, func() { r.code.release(r.cfg.Log) })
}

// killHeld kills a run whose execves are held for their digests. They are let go
// between: before the kill, a program could start to run that nobody looked at;
// long after it, its tasks would be waited for in vain, and to give back what
// held them would wait for the kernel.
func killHeld(ctx context.Context, leaf interface {
	Condemn() error
	Kill(context.Context) error
}, letGo func(),
) error {
	err := leaf.Condemn()
	letGo()
	return errors.Join(err, leaf.Kill(ctx))
}

// giveUp closes its channel when a caller that does not read its output is no
// longer waited for: at the next signal that asks to end, or a while after a
// limit has ended the run. When relayed is called nobody waits any more.
func (r *Run) giveUp(end exited) (stop chan struct{}, relayed func()) {
	stop = make(chan struct{})
	over := make(chan struct{})
	var late <-chan time.Time
	if end.reason != "" {
		late = time.After(2 * Grace)
	}
	go func() {
		defer close(stop)
		for {
			select {
			case <-late:
				return
			case <-over:
				return
			case sig := <-r.cfg.Signals:
				if sig == unix.SIGTERM || sig == unix.SIGINT || sig == unix.SIGHUP || sig == unix.SIGQUIT {
					return
				}
			}
		}
	}()
	return stop, func() { close(over) }
}

func joinText(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// newResult judges how the run ended.
func (r *Run) newResult(started time.Time, end exited) *runs.Result {
	res := &runs.Result{ID: r.id, Version: Version, Argv: r.plan.Argv, Started: started, Ended: time.Now(), Mode: r.plan.Host.Mode, Thin: r.plan.Thin}
	for _, m := range r.plan.Degraded {
		res.Degraded = append(res.Degraded, runs.Degraded(m))
	}
	if r.meter != nil && r.meter.unknown != nil {
		res.Degraded = append(res.Degraded, runs.Degraded(*r.meter.unknown))
	}
	for _, g := range r.plan.Gaps {
		res.Gaps = append(res.Gaps, runs.Gap{Clause: g.Clause, Source: g.Source, Missing: g.Missing})
	}
	for _, p := range r.unmapped {
		res.Unmapped = append(res.Unmapped, p)
		res.Thin = append(res.Thin, trace.Quote(p)+": its file system cannot be shown with mapped user ids, so root's files in it were read-only")
	}
	if r.cfg.Continue != nil {
		res.Continues = r.cfg.Continue.run.ID()
	}
	r.status(res, end)
	if res.Reason == runs.ReasonSignal && r.leaf.KilledAround() > 0 {
		res.Error = joinText(res.Error, "the kernel killed for want of memory outside of the run: the host's, or that of a cgroup around it, as a container's")
	}
	res.Usage.Wall = end.after
	var err error
	if res.Usage.User, res.Usage.System, err = r.leaf.CPU(); err != nil {
		r.cfg.Log.Error().Err(err).Msg("cpu usage")
	}
	if r.leaf == nil {
		res.Usage.User, res.Usage.System = end.exit.User, end.exit.System
	}
	res.Usage.MaxMemory = r.leaf.MemoryPeak()
	r.meter.fill(&res.Usage)
	return res
}

func (r *Run) status(res *runs.Result, end exited) {
	switch end.reason {
	case runs.ReasonWall:
		res.Status, res.Reason = StatusWall, end.reason
		return
	case runs.ReasonCPU, runs.ReasonMemory, runs.ReasonOutput, runs.ReasonLoss:
		res.Status, res.Reason = StatusKilled, end.reason
		return
	case runs.ReasonHidden:
		res.Status, res.Reason, res.Error = StatusKilled, end.reason, r.meter.hidden
		return
	case runs.ReasonError:
		res.Status, res.Reason, res.Error = StatusFailed, end.reason, "the run was cancelled"
		return
	}
	switch s := end.exit.Status; {
	case end.err != nil:
		res.Status, res.Reason = StatusKilled, runs.ReasonSignal
		res.Signal = "SIGKILL" // all of the run, PID 1 included, was killed from outside
		res.Error = strings.Join(r.orphanFindings(), "; ")
	case s.Signaled():
		res.Status, res.Reason = 128+int(s.Signal()), runs.ReasonSignal
		res.Signal, res.Core = trace.SignalName(int32(s.Signal())), s.CoreDump()
	default:
		res.Status, res.Reason = s.ExitStatus(), runs.ReasonExit
	}
}

func outputs(streams []Stream) (out, err runs.Output) {
	for _, s := range streams {
		o := runs.Output{Bytes: uint64(s.Total), Kept: uint64(s.Kept), SHA256: s.SHA256, Truncated: s.Kept < s.Total}
		if s.Name == "stdout" {
			out = o
		} else {
			err = o
		}
	}
	return out, err
}

// drain stops the sensor when the cgroup is empty and waits until everything
// that it saw is in the record.
func (r *Run) drain() (bpf.Stats, error) {
	if r.asked != nil {
		return bpf.Stats{}, r.asked.stop()
	}
	if r.sensor == nil {
		return bpf.Stats{}, nil
	}
	err := r.stopSensor()
	stats, serr := r.sensor.Stats()
	return stats, errors.Join(err, serr, r.rec.readErr)
}

// detach lets go of the sensor, which has nothing more to see, while what it has
// seen goes into the record.
func (r *Run) detach() {
	if r.sensor == nil {
		return
	}
	if err := r.sensor.Detach(); err != nil {
		r.cfg.Log.Error().Err(err).Msg("sensor")
	}
}

// tearDown releases what the dead run still holds in the kernel while the
// record is being closed. What fails here is tried again by the release list,
// which reports it.
func (r *Run) tearDown() {
	r.closing.Go(func() {
		if r.sensor != nil {
			if err := r.sensor.Close(); err != nil {
				r.cfg.Log.Error().Err(err).Msg("sensor")
			}
		}
		if err := r.leaf.Remove(killLimit); err != nil {
			r.cfg.Log.Error().Err(err).Msg("cgroup")
		}
	})
}

// limitHits writes a limit event for each limit that was met.
func (r *Run) limitHits(res *runs.Result, oomKills, refusedForks int64) {
	l := r.plan.Limits
	add := func(name, clause string, value, hits int64) {
		if hits <= 0 {
			return
		}
		res.Limits = append(res.Limits, runs.LimitHit{Name: name, Value: value, Hits: hits})
		e := trace.Event{
			Kind: trace.KindLimit, Phase: trace.PhaseCommand, Mono: bootTime(), Limit: name,
			LimitValue: uint64(max(value, 0)), LimitHits: uint64(hits), Layer: trace.LayerLimit, Rule: clause, RuleSource: r.plan.sources[name],
		}
		r.rec.appendOwn(&e)
	}
	one := func(met bool) int64 {
		if met {
			return 1
		}
		return 0
	}
	add("memory", "process.max_memory_mb", l.Memory, max(oomKills, r.meter.hits(res, runs.ReasonMemory)))
	add("tasks", "process.max_subprocesses", l.Tasks, refusedForks)
	add("cpu", "process.max_cpu_seconds", l.CPU, one(res.Reason == runs.ReasonCPU))
	add("wall", "process.max_wall_seconds", l.Wall, one(res.Reason == runs.ReasonWall))
	room, files := r.storageFull()
	add("output", "filesystem.max_output_bytes", l.Output, one(res.Reason == runs.ReasonOutput || room))
	add("files", "filesystem.max_files", l.Files, one(files))
	for name, hits := range r.net.limits() {
		add(name, "network."+name, r.plan.Egress.limit(name), hits)
	}
	add("stdout", "output.max_stdout_bytes", l.Stdout, one((res.Stdout.Truncated || res.Stderr.Truncated) && r.stdio.cut()))
}

// closeRecord writes what was lost, the outputs and the summary.
func (r *Run) closeRecord(res *runs.Result, stats bpf.Stats, streams []Stream, err error) *trace.Event {
	findings := append(r.lossEvents(&stats, err), r.code.end()...)
	for _, s := range streams {
		e := trace.Event{
			Kind: trace.KindOutput, Phase: trace.PhaseCommand, Mono: bootTime(), Stream: s.Name,
			Bytes: uint64(s.Total), Kept: uint64(s.Kept), SHA256: s.SHA256,
		}
		r.rec.appendOwn(&e)
		if s.Error != "" {
			findings = append(findings, s.Name+": "+s.Error)
		}
	}
	sum := &trace.Event{
		Mono: bootTime(), Phase: trace.PhaseCommand, ExitCode: int32(res.Status), Reason: res.Reason,
		UTime: uint64(res.Usage.User), STime: uint64(res.Usage.System), MaxRSS: uint64(max(res.Usage.MaxMemory, 0)),
		Counts: slices.Concat(r.kernelCounts(&stats), r.recordCounts(&stats), r.asked.counts(), []trace.Count{{Name: "denied", N: r.rec.denied.total}}, r.net.counts(), r.code.counts(), r.sealer.anchorCounts()),
	}
	if r.sensor == nil && r.asked == nil && (r.plan.Host.Mode != ModeUserNS && !r.plan.Host.shared() || r.plan.accepted(clauseRecord)) {
		findings = append(findings, "no events: the gap `record` was accepted")
	}
	findings = append(append(findings, r.asked.findings()...), r.orphanFindings()...)
	sum.Findings = append(findings, r.net.findings()...)
	res.Network, res.Brokers = r.net.destinations(), r.net.brokerUse()
	if werr := r.rec.w.Close(sum); werr != nil {
		r.cfg.Log.Error().Err(werr).Msg("record")
	}
	verdict, why := r.rec.w.Judge()
	res.Denials.Count, res.Lookups = r.rec.denied.total, r.rec.lookups
	for i := range r.rec.denied.first {
		res.Denials.First = append(res.Denials.First, runs.NewDenial(&r.rec.denied.first[i]))
	}
	res.Record = runs.Record{Path: r.dir.Path(), Verdict: string(verdict), Records: sum.Records + 1, Lost: sum.Lost, Findings: why, Tier: r.tier()}
	return sum
}

// kernelCounts are the sensor's totals. Without one they are not zero but absent.
func (r *Run) kernelCounts(s *bpf.Stats) []trace.Count {
	if r.sensor == nil {
		return nil
	}
	return counts(*s, r.plan.Syscalls)
}

// counts are the kernel's totals for the summary; each tells every call apart.
func counts(s bpf.Stats, each bool) []trace.Count {
	var out []trace.Count
	var read, written, sent, received, calls uint64
	for _, c := range s.Calls {
		name := seccomp.Name(c.NR)
		if each {
			out = append(out, trace.Count{Name: "syscall." + name, N: c.Calls})
		}
		if each && c.Errors > 0 {
			out = append(out, trace.Count{Name: "error." + name, N: c.Errors})
		}
		calls += c.Calls
		switch name {
		case "read", "pread64", "readv", "preadv", "preadv2":
			read += c.Bytes
		case "write", "pwrite64", "writev", "pwritev", "pwritev2":
			written += c.Bytes
		case "sendto", "sendmsg", "sendmmsg":
			sent += c.Bytes
		case "recvfrom", "recvmsg", "recvmmsg":
			received += c.Bytes
		}
	}
	return append(out, trace.Count{Name: "syscalls", N: calls}, trace.Count{Name: "bytes.read", N: read},
		trace.Count{Name: "bytes.written", N: written}, trace.Count{Name: "bytes.files", N: s.FileBytes}, trace.Count{Name: "bytes.sent", N: sent}, trace.Count{Name: "bytes.received", N: received},
		trace.Count{Name: "packets.sent", N: s.Tx.Packets}, trace.Count{Name: "packets.received", N: s.Rx.Packets}, trace.Count{Name: "packets.refused", N: s.TxRefused})
}
