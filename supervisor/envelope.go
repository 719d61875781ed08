package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// makeCalls lists the calls of PID 2. From here on there is a record to recover
// should we die, and the lock says where.
func (r *Run) makeCalls() error {
	if _, err := r.lock.WriteAt([]byte(r.state.Identity()), 0); err != nil {
		return err
	}
	return r.program(false)
}

// program builds the command's program and keeps what it needs open. joinV2 is
// for a process that was not born in the leaf.
func (r *Run) program(joinV2 bool) error {
	files, err := r.leaf.JoinFiles(joinV2)
	if err != nil {
		return fmt.Errorf("the run's cgroups: %w", err)
	}
	for _, f := range files {
		r.release.push("cgroup file", f.Close)
	}
	r.materials.join, r.materials.late = files, r.ahead
	r.materials.oneOutput = r.ahead && r.stdio.childErr == r.stdio.childOut
	if err := r.openNotify(); err != nil {
		return err
	}
	r.calls = commandProgram(r.plan, r.materials)
	return nil
}

// envelope lets the process run its program up to execve. The plan is stored by
// then: a command whose record cannot be begun is not run.
func (r *Run) envelope() error {
	if r.joined { // PID 2 has one more cgroup to enter
		if err := r.program(true); err != nil {
			return err
		}
	}
	if err := errors.Join(r.stdio.own(r.plan), r.startRecord(), r.storePlan()); err != nil {
		return err
	}
	r.startNotify()
	r.followNetwork()
	r.begins()
	err := r.proc.Exec(r.calls, birthLimit)
	if serr := r.asked.sent(); err == nil {
		err = serr
	}
	if err != nil {
		return err
	}
	r.kept = true
	r.recordCanary()
	return nil
}

// recordCanary notes what the canary has just shown: execve was reached, so
// every probe was refused as the plan says.
func (r *Run) recordCanary() {
	for _, p := range r.plan.Canary {
		r.rec.appendOwn(&trace.Event{
			Kind: trace.KindCanary, Phase: trace.PhaseEnvelope, Mono: bootTime(),
			Probe: p.Call, Layer: canaryLayer(p.Layer), Errno: int32(p.errno), Verdict: trace.VerdictDeny,
		})
	}
}

// canaryLayer is the record's word for a probe's layer: ids and capabilities
// are ordinary permissions there.
func canaryLayer(layer string) trace.Layer {
	switch layer {
	case "capabilities", "identity":
		return trace.LayerDAC
	case "netns":
		return trace.LayerNone
	}
	return trace.Layer(layer)
}

// checkNamespaces compares PID 1's namespaces with ours: the canary inside
// cannot tell a network namespace of its own from a host without routes.
func (r *Run) checkNamespaces() error {
	if r.proc == nil || r.host.Info.shared() || slices.Contains(seams(), "canary") {
		return nil
	}
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts"} {
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return err
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.proc.Pid, ns))
		if err != nil {
			return err
		}
		if ours == theirs {
			return &Refusal{What: "the canary found a layer that does not bite: the " + ns + " namespace is the host's", Remedy: "nothing was run; see agentguard doctor"}
		}
	}
	return nil
}

// startRecord writes the first event, with the plan's digest, and begins to
// read what the sensor has seen since before PID 1 was born.
func (r *Run) startRecord() error {
	r.sealer = newSealer(r, r.boot)
	if err := r.sealer.readConfig(); err != nil {
		return err
	}
	w := trace.NewWriter(r.files[runs.TraceFile], trace.Options{
		MaxBytes: max(r.plan.Limits.Trace, 0), Mono: r.mono, Wall: r.wall, BootID: r.boot,
		Settled: func(lines []byte) {
			r.sealer.builder.Add(lines)
			r.told.settled(lines)
		},
	})
	r.rec = &recorder{plan: r.plan, w: w, changes: r.cfg.Policy.TraceFiles.Value == "changes", code: r.code}
	r.rec.unfound.dirs = strings.Split(lookupEnv(r.plan.Env, "PATH"), ":")
	if r.plan.Egress != nil {
		r.rec.names = r.plan.Egress.Table.Given()
	}
	r.sealer.begin()
	if err := r.beginCode(w); err != nil {
		return err
	}
	start := trace.Event{
		Kind: trace.KindStart, Phase: trace.PhaseEnvelope, Mono: bootTime(), Run: r.id, BootID: r.boot,
		Tool: Version, Kernel: r.plan.Host.Kernel, Tier: r.tier(), PlanSHA256: digest(r.planJSON), Degraded: r.plan.degradedTexts(),
	}
	if err := r.rec.w.Append(&start); err != nil {
		return r.recordError(err)
	}
	if r.sensor != nil {
		r.drained.Go(r.readEvents)
		r.stopSensor = sync.OnceValue(func() error {
			err := r.sensor.Stop()
			r.drained.Wait()
			return err
		})
		r.release.push("sensor reader", r.stopSensor)
	}
	return nil
}

func (r *Run) tier() string {
	switch {
	case r.sensor != nil:
		return r.plan.Host.Tier
	case r.asked != nil:
		return "notify"
	}
	return "none"
}

// startRelays lets output flow. The command's ends of the pipes are closed
// here, so that end of file means that nobody inside holds them.
func (r *Run) startRelays() error {
	if err := r.stdio.closeChild(); err != nil {
		return err
	}
	if err := r.stdio.writeAs(r.cfg.Caller); err != nil {
		return err
	}
	r.unmapped = r.materials.mounts.unmapped
	r.keepUppers(r.materials.mounts.takeUppers(r.plan.View))
	lowered := make(chan struct{})
	r.closing.Go(func() { // the command runs: nobody needs these any more
		if err := r.materials.Close(); err != nil {
			r.cfg.Log.Error().Err(err).Msg("mounts")
		}
		if err := r.sweep(); err != nil {
			r.cfg.Log.Warn().Err(err).Msg("sweeping after a dead supervisor")
		}
		if err := r.lower(); err != nil {
			r.cfg.Log.Error().Err(err).Msg("giving up capabilities")
		}
		close(lowered)
	})
	r.release.push("closing", func() error { r.closing.Wait(); return nil })
	if r.cfg.Alone { // before a thread touches what the caller may hold: see lower
		<-lowered
	}
	r.sealer.started()
	level := r.cfg.level(r.plan.Limits)
	if r.tty != nil {
		if err := r.tty.start(level, func() { r.signalCommand(unix.SIGHUP) }); err != nil {
			return err
		}
	}
	return r.stdio.start(r.cfg.Stdin, r.plan.Limits, level, map[string]*os.File{"stdout": r.files[runs.StdoutFile], "stderr": r.files[runs.StderrFile]})
}

// signalCommand sends a signal to the command's process group, as a terminal
// would, or to the command alone before Linux 6.9.
func (r *Run) signalCommand(sig unix.Signal) {
	const processGroup = 1 << 2 // PIDFD_SIGNAL_PROCESS_GROUP, 6.9
	fd := int(r.proc.Command.Fd())
	err := unix.PidfdSendSignal(fd, sig, nil, processGroup)
	if err == unix.EINVAL {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err != nil && err != unix.ESRCH {
		r.cfg.Log.Warn().Err(err).Str("signal", unix.SignalName(sig)).Msg("forwarding a signal")
	}
}

// exited is how a run came to its end.
type exited struct {
	exit   initproc.Exit
	err    error  // PID 1 could not say: it was killed
	reason string // runs.Reason*; why the run was ended, "" when the command ended
	after  time.Duration
}

// killed reports whether the command or all of the run died by SIGKILL.
func (e *exited) killed() bool {
	return e.err != nil || e.exit.Status.Signaled() && e.exit.Status.Signal() == unix.SIGKILL
}
