package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/tally"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// Users without root have a cgroup with controllers only where somebody delegated them
// one. Without, their limits are kept thus (decision 0032):
//
//	tasks    RLIMIT_NPROC in a user namespace of the command's own, where it counts nothing else
//	memory   the run's processes are looked at every 20 to 200 ms; where that takes much, every second
//	cpu      likewise, where there is no cgroup at all
//	output   likewise, where it is counted
//	the end  of PID 1 is that of its PID namespace

// Processes are looked at the more often the sooner a limit can be met. What that takes
// of one CPU is bounded, and so is the pause: who makes looks slow must not make them rare.
const (
	lookOften  = 20 * time.Millisecond
	lookSeldom = 200 * time.Millisecond
	lookRarely = 5 * lookSeldom
	lookWithin = time.Second // a look that takes longer fails
	lookShare  = 20          // a twentieth
	fastest    = 4 << 30     // bytes a second that are taken or written at most, by guess
)

// meter looks at what a run uses where no cgroup counts it.
type meter struct {
	tally *tally.Tally
	use   tally.Use // at the last look
	peak  int64     // most memory at any look, in bytes
	pause time.Duration

	looked chan looked // nil: no look is under way
	failed int         // looks in a row
	err    error       // of the last that failed

	hidden  string   // why the run is ended: a limit that somebody wrote cannot be kept
	unknown *Missing // the limit is a default: it could not be kept
}

// samples reports whether a run's processes are looked at.
func (r *Run) samples() bool {
	return r.host.Info.Samples && (r.host.parent == nil || r.host.lacks(cgroup.Memory) || r.cfg.Policy.CountsOutput())
}

// sampled are the limits that nothing else keeps.
func (r *Run) sampled() Limits {
	l := r.plan.Limits
	if !r.host.lacks(cgroup.Memory) {
		l.Memory = -1
	}
	if r.leaf != nil {
		l.CPU = -1
	}
	if !l.Counted {
		l.Output = -1
	}
	return l
}

func (h *Host) lacks(controller string) bool {
	return slices.Contains(h.Info.MissingControllers, controller)
}

// startMeter begins to look at the descendants of PID 1.
func (r *Run) startMeter() error {
	if !r.samples() {
		return nil
	}
	t, err := tally.New(r.proc.Pid)
	if err != nil {
		return err
	}
	t.Writes, t.Within = r.cfg.Policy.CountsOutput(), lookWithin
	if r.host.Info.Mode == ModeUserNS && r.host.lacks(cgroup.Memory) {
		if err := t.EnterIPC(); err != nil {
			return fmt.Errorf("the run's IPC namespace, whose memory counts: %w", err)
		}
		r.release.push("IPC namespace", t.Close)
	}
	r.meter = &meter{tally: t}
	r.freezer.tally = t
	return nil
}

// looked is what a look has found.
type looked struct {
	use  tally.Use
	err  error
	took time.Duration // of a CPU: who keeps all of them busy does not make looks rarer
}

// look looks once.
func (m *meter) look(most int64) (got looked) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun := threadTime()
	got.use, got.err = m.tally.Look(most)
	got.took = threadTime() - begun
	return got
}

// threadTime is the CPU time of this thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // fails for no clock that there is
	return time.Duration(ts.Nano())
}

// take returns the reason to end a run that has passed one of the limits, or "".
func (m *meter) take(got looked, l Limits) (reason string) {
	m.pause = min(max(lookOften, lookShare*got.took), lookRarely)
	use := got.use
	if err := got.err; err != nil { // of a run that has just ended: PID 1 is gone
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			m.failed, m.err = m.failed+1, err
		}
		return ""
	}
	m.failed, m.use, m.peak = 0, use, max(m.peak, use.Memory)
	m.pause = max(m.pause, room(&use, &l))
	switch {
	case l.Memory >= 0 && use.Memory > l.Memory:
		return runs.ReasonMemory
	case l.CPU >= 0 && use.CPU >= time.Duration(l.CPU):
		return runs.ReasonCPU
	case l.Output >= 0 && use.Written > l.Output:
		return runs.ReasonOutput
	}
	return ""
}

// room is how long no limit can be met, [lookSeldom] at most.
func room(use *tally.Use, l *Limits) time.Duration {
	least := lookSeldom
	for _, bytes := range []struct{ limit, used int64 }{{l.Memory, use.Memory}, {l.Output, use.Written}} {
		if bytes.limit >= 0 {
			least = min(least, time.Duration(float64(bytes.limit-bytes.used)/fastest*float64(time.Second)))
		}
	}
	if l.CPU >= 0 {
		least = min(least, (time.Duration(l.CPU)-use.CPU)/time.Duration(cpus()))
	}
	return least
}

// nextLook is when the processes are looked at again; nil: never.
func (w *watcher) nextLook() <-chan time.Time {
	if w.r.meter == nil || w.reason != "" {
		return nil
	}
	return time.After(w.r.meter.pause)
}

// startLook looks beside the watcher, whom nothing in /proc keeps from its other limits.
func (w *watcher) startLook() <-chan looked {
	m, most := w.r.meter, w.r.sampled().Memory
	m.looked = make(chan looked, 1)
	go func() { m.looked <- m.look(most) }()
	return m.looked
}

// judge ends a run that has passed a limit, or hides what it counts.
func (w *watcher) judge(got looked) {
	m, l := w.r.meter, w.r.sampled()
	m.looked = nil
	before := m.err
	reason := m.take(got, l)
	if before == nil && m.err != nil {
		w.r.cfg.Log.Error().Err(m.err).Msg("the run's processes")
	}
	if w.reason != "" {
		return
	}
	if reason == "" {
		reason = m.hides(l, w.r.cfg.Policy)
	}
	if reason != "" {
		w.end(reason, 0)
	}
}

// lastLook waits for a look that is under way when the run has ended.
func (w *watcher) lastLook() {
	if m := w.r.meter; m != nil && m.looked != nil {
		m.take(<-m.looked, w.r.sampled())
	}
}

// hides returns the reason to end a run of which a process hides what a limit counts, or "". A
// limit that nobody wrote ends nothing, and is told to have been missing. (The command
// has had its execve at the first look: our own processes, which hide as well, are no more.)
func (m *meter) hides(l Limits, p *policy.Policy) (reason string) {
	h := m.use.Hidden
	if h.PID == 0 && m.failed < 2 {
		return ""
	}
	whole := h.Whole || h.Brief || m.failed > 1
	delegated := " without a cgroup; " + helperRemedy + ", or " + delegatedRemedy
	switch {
	case l.Memory >= 0 && !p.MaxMemory.Source.IsDefault():
		m.hidden = m.hiding("its memory", "--memory ("+p.MaxMemory.Source.String()+")") + delegated
	case whole && l.CPU >= 0 && !p.MaxCPU.Source.IsDefault():
		m.hidden = m.hiding("its CPU time", "--cpu ("+p.MaxCPU.Source.String()+")") + delegated
	case l.Output >= 0: // counted only where somebody wrote it
		m.hidden = m.hiding("what it writes", "--output ("+p.MaxOutputBytes.Source.String()+")") + "; " + helperRemedy
	case l.Memory >= 0 && m.unknown == nil:
		m.unknown = &Missing{Guarantee: clauseMemory, Why: m.hiding("its memory", "the limit"), Remedy: helperRemedy}
	}
	if m.hidden != "" {
		return runs.ReasonHidden
	}
	return ""
}

// hiding says who hides what of which limit, and how.
func (m *meter) hiding(what, flag string) string {
	if m.failed > 1 {
		return fmt.Sprintf("the run's processes could not be looked at, twice in a row (%v), so %s cannot be kept", m.err, flag)
	}
	h := m.use.Hidden
	who, how := trace.Quote(h.Name), ""
	switch {
	case h.Whole:
		who, how = "of the run", " on a /proc that is mounted with hidepid"
	case h.Brief:
		how = ", or in children or threads that end before they can be read"
	}
	return fmt.Sprintf("process %s (%d) hides %s by not being dumpable (prctl(PR_SET_DUMPABLE), or its program cannot be read)%s, so %s cannot be kept", who, h.PID, what, how, flag)
}

// fill puts into a usage what no cgroup and no exit status tell.
func (m *meter) fill(u *runs.Usage) {
	if m == nil {
		return
	}
	u.MaxMemory = max(u.MaxMemory, m.peak)
	if m.use.CPU > u.User+u.System {
		u.User = m.use.CPU - u.System // which part was the kernel's is not known
	}
}

// hits is how often a look has ended the run for a reason.
func (m *meter) hits(res *runs.Result, reason string) int64 {
	if m == nil || res.Reason != reason {
		return 0
	}
	return 1
}

// tasksByUser reports whether the run's tasks are bounded by RLIMIT_NPROC alone.
func (p *Plan) tasksByUser() bool {
	return p.Host.CountsTasks && p.Limits.Tasks >= 0 && slices.Contains(p.Host.MissingControllers, cgroup.Pids)
}

// noScope says why the run has no cgroup of the user's own, or none with controllers.
func (i *HostInfo) noScope() string {
	switch {
	case i.NoScope != "":
		return "systemd's user manager was asked for one in vain: " + trace.Quote(i.NoScope)
	case i.CgroupDelegated != "":
		return i.CgroupDelegated + " lacks " + strings.Join(i.MissingControllers, " and ")
	}
	return "There is no cgroup v2 tree here"
}

// delegatedRemedy is how a user gets a cgroup.
const delegatedRemedy = "systemd-run --user --scope -p Delegate=yes agentguard exec ..."

// sampledThin tells of limits that have the supervisor's attention as their only layer.
func (p *Plan) sampledThin() []string {
	if p.Host.Mode != ModeUserNS && !p.Host.shared() {
		return nil
	}
	var out []string
	lacks := func(c string) bool { return slices.Contains(p.Host.MissingControllers, c) }
	if p.Limits.Memory >= 0 && lacks(cgroup.Memory) {
		out = append(out, "memory: the run's processes are added up every "+lookOften.String()+" when the limit is near, and the run is ended; between two looks it may take more")
	}
	if p.Limits.CPU >= 0 && p.Host.CgroupDelegated == "" {
		out = append(out, "cpu: added up every "+lookOften.String()+" when the limit is near; processes that live shorter and are not waited for are not seen")
	}
	if p.Limits.Counted {
		out = append(out, "output: what is written to real directories is added up likewise, in whole pages and where a disk is behind them (no tmpfs); what a process wrote since it was last looked at, and that nobody waited for, is not seen")
	}
	if p.tasksByUser() {
		out = append(out, "tasks: RLIMIT_NPROC in a user namespace of the command's own; refused forks are not counted")
	}
	if len(out) > 0 && p.Host.HidePID != "" {
		out = append(out, "limits: /proc is mounted with "+p.Host.HidePID+": where a process hides there (not dumpable), limits cannot be kept, and those that somebody wrote end the run")
	}
	if len(out) > 0 {
		out = append(out, "limits: in a cgroup of the user's own the kernel keeps them. "+p.Host.noScope()+". By hand: "+delegatedRemedy)
	}
	return out
}
