package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// Time limits for the parts of a run that do not depend on the command. They
// are generous: they end a hang, they do not judge speed (emulated machines
// run 20 times slower).
const (
	birthLimit = 60 * time.Second
	killLimit  = 60 * time.Second
)

// openRecord makes the run's directory with its plan and its empty streams.
// When the run cannot start, the directory goes: there is nothing to record.
func (r *Run) openRecord() error {
	var err error
	if r.boot, err = bootID(); err != nil {
		return err
	}
	dir, err := r.state.Create(r.id)
	if err != nil {
		return r.recordError(err)
	}
	r.dir = dir
	r.release.push("run directory", func() error {
		var err error
		if !r.kept { // while it is locked: another start would take it for a dead supervisor's
			err = r.state.RemoveAdopted(dir)
		}
		return errors.Join(err, dir.Close())
	})
	for _, name := range []string{runs.TraceFile, runs.StdoutFile, runs.StderrFile} {
		f, err := dir.Create(name)
		if err != nil {
			return r.recordError(err)
		}
		r.files[name] = f
		r.release.push(name, f.Close)
	}
	return r.writePlan()
}

// writePlan stores the plan beside what follows; the envelope waits for it.
func (r *Run) writePlan() error {
	var err error
	if r.planJSON, err = r.plan.JSON(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- r.dir.WriteFile(runs.PlanFile, r.planJSON, false) }()
	r.storePlan = sync.OnceValue(func() error {
		if err := <-done; err != nil {
			return r.recordError(err)
		}
		return nil
	})
	r.release.push("plan", func() error { _ = r.storePlan(); return nil }) // waited for; the failure was reported
	return nil
}

func (r *Run) recordError(err error) error {
	ref := &Refusal{What: "cannot write the record in " + r.state.Path(), Err: err, Remedy: "choose another place with --state DIR"}
	if errors.Is(err, unix.ENOSPC) {
		ref.Remedy = "make room (agentguard runs ls), or choose another place with --state DIR"
	}
	return ref
}

// makeLeaf makes the run's cgroup under a lock that tells other supervisors
// that it is in use.
func (r *Run) makeLeaf() error {
	if err := os.MkdirAll(filepath.Dir(lockPath(r.runtime, "x")), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(lockPath(r.runtime, r.lease), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	r.lock = lock
	r.release.push("live lock", r.unlock)
	// Waits: another start may be asking, for an instant, whether anybody holds it.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	if r.ahead {
		if _, err := lock.WriteString(reserveMark); err != nil {
			return err
		}
	}
	if r.host.parent == nil {
		return nil
	}
	r.leaf, err = r.host.parent.New(r.lease, r.leafLimits(), 1)
	if err != nil {
		return fmt.Errorf("the run's cgroup: %w", err)
	}
	r.release.push("cgroup", r.removeLeaf)
	return r.openViews()
}

// removeLeaf removes the run's cgroup; twice is once.
func (r *Run) removeLeaf() error {
	err := r.leaf.Remove(5 * time.Second)
	r.leafStays = err != nil
	return err
}

// unlock gives up the lock. A leaf that could not be removed keeps the name of
// its lock, so that the next start finds it.
func (r *Run) unlock() error {
	if r.leafStays {
		return r.lock.Close()
	}
	return errors.Join(os.Remove(r.lock.Name()), r.lock.Close())
}

// openViews opens the leaf's directories for the view at /sys/fs/cgroup: on
// pure v2 the leaf itself, on hybrid hosts one directory per hierarchy.
func (r *Run) openViews() error {
	dirs := map[string]string{}
	for c, d := range r.leaf.V1 {
		dirs[c] = d
	}
	if len(dirs) > 0 {
		dirs["unified"] = r.leaf.Path
	} else {
		dirs[""] = r.leaf.Path
	}
	for name, d := range dirs {
		f, err := os.OpenFile(d, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		r.views[name] = f
		r.release.push("cgroup view", f.Close)
	}
	return nil
}

// startSensor begins to observe the leaf.
func (r *Run) startSensor() error {
	r.mono, r.wall = bootTime(), time.Now()
	r.freezer.leaf = r.leaf
	if r.host.programs == nil { // a gap: the plan refuses it, or it was accepted
		return nil
	}
	cfg := r.sensorConfig()
	if throttled(r.cfg.Policy) {
		cfg.Freeze = func(on bool) error { return r.freezer.set(freezeLoss, on) }
	}
	sensor, err := r.host.programs.Start(cfg)
	if err != nil {
		return err
	}
	r.sensor = sensor
	r.release.push("sensor", sensor.Close)
	return nil
}

// leafLimits are those that the run's cgroup keeps.
func (r *Run) leafLimits() cgroup.Limits {
	p := r.cfg.Policy
	return cgroup.Limits{Memory: limit(p.MaxMemory), Tasks: limit(p.MaxTasks), Rates: r.cfg.Rates}
}

func (r *Run) sensorConfig() bpf.RunConfig {
	r.freezer.leaf = r.leaf
	return bpf.RunConfig{
		CgroupID: r.leaf.ID(), DenyListen: denyListen(r.cfg.Policy), Egress: wantsEgress(r.cfg.Policy),
		RingBytes: r.cfg.ringBytes, ControlBytes: r.cfg.roomBytes, ChangesOnly: r.cfg.Policy.TraceFiles.Value == "changes", Position: func() uint64 { return r.rec.w.Seq() },
	}
}

// bootTime is now on CLOCK_BOOTTIME, in nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// bootID is the kernel's name of this boot (proc_sys_kernel(5)).
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && len(b) < 36 {
		err = fmt.Errorf("%q", b)
	}
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return string(b[:36]), nil
})

// birth clones PID 1 and PID 2 and looks from outside at what they are in.
func (r *Run) birth() error {
	s, err := newStdio(r.cfg.Policy.Stdin.Value != "null", r.cfg.Stdout, r.cfg.Stderr, r.tty)
	if err != nil {
		return fmt.Errorf("pipes for the command: %w", err)
	}
	r.stdio = s
	r.release.push("stdio", s.Close)
	err = r.clone(r.leaf.Dir())
	if errors.Is(err, initproc.ErrDied) && r.leaf != nil {
		// Some kernels kill at once what is cloned into a cgroup when the
		// caller's own cgroup was killed before; writing cgroup.procs works.
		r.cfg.Log.Warn().Msg("birth inside the cgroup failed; joining it by cgroup.procs")
		err, r.joined = r.cloneAndJoin(), true
	}
	if err == nil {
		err = r.startMeter()
	}
	if err == nil {
		err = r.checkNamespaces()
	}
	return err
}

// makeMaterials makes the mounts and the ruleset. The view shows the leaf.
func (r *Run) makeMaterials() error {
	if err := r.born.wait("cgroup"); err != nil {
		return err
	}
	m, err := r.prepareMaterials()
	if err != nil {
		return err
	}
	r.materials = m
	r.release.push("mounts", r.materials.Close)
	return r.watchCode(m.mounts)
}

func (r *Run) prepareMaterials() (materials, error) {
	if r.host.Info.shared() {
		return r.sharedMaterials()
	}
	m := materials{filter: r.filter}
	var userns *os.File
	if r.uid != nil && hasIDMap(r.plan.View) {
		var err error
		if userns, err = r.uid.userns(r.runtime); err != nil && needsIDMap(r.plan.View) {
			return m, &Refusal{
				What: "a directory of root's cannot be shown writable to the run's own user", Err: err,
				Remedy: "use --mode ro, or give the directory to a user (chown); user.max_user_namespaces must not be 0",
			}
		}
		defer userns.Close() // of nil: no more than an error
	}
	var err error
	if m.mounts, err = prepareMounts(r.plan, given{leaf: r.views, userns: userns, record: r.dir.Dir(), devpts: r.tty.takeDevpts()}); err != nil {
		return m, err
	}
	if r.plan.LandlockABI > 0 {
		if m.ruleset, err = m.mounts.ruleset(r.plan.LandlockABI); err != nil {
			return m, errors.Join(err, m.mounts.Close())
		}
	}
	return m, nil
}

func hasIDMap(view []Entry) bool {
	for i := range view {
		if view[i].IDMap {
			return true
		}
	}
	return false
}

// namespaces of a run. The cgroup namespace is made by the process itself,
// once it is in all of its cgroups.
const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET

func (r *Run) clone(into *os.File) error {
	if r.host.Info.shared() {
		return r.cloneShared(into)
	}
	flags := uintptr(namespaces)
	if slices.Contains(seams(), "netns") {
		flags &^= unix.CLONE_NEWNET
	}
	start, g := initproc.Start, guardian{mode: r.host.Info.Mode, uid: GuardianUID, filter: seccomp.InitFilter(), loUp: flags&unix.CLONE_NEWNET != 0}
	if r.tty != nil {
		g.terminal = r.tty.pty.Slave
	}
	if g.dies = throttled(r.cfg.Policy) || r.tty != nil; g.dies { // it may be frozen
		start = r.startDying
	}
	p, err := start(initproc.Config{
		Cgroup: into, Flags: flags,
		Stdin: r.stdio.childIn, Stdout: r.stdio.childOut, Stderr: r.stdio.childErr, Terminal: r.tty != nil,
		Guardian: g.program(), Stopped: r.noteStop,
		FallbackExe: filepath.Join(r.runtime, "init"),
	})
	if err != nil {
		return err
	}
	r.proc = p
	return p.Locked(birthLimit)
}

// cloneAndJoin is the birth for hosts where clone3 into the leaf does not
// work: PID 1 is moved, PID 2 moves itself as its first step.
func (r *Run) cloneAndJoin() error {
	if err := r.killAll(); err != nil {
		return err
	}
	if err := r.clone(nil); err != nil {
		return err
	}
	return r.leaf.Enter(r.proc.Pid)
}

// killAll ends every process of the run and waits until the kernel says that
// none is left. It comes before all other releases: a uid, a lock or a cgroup
// must not be given back while a process of the run still has it.
func (r *Run) killAll() error {
	if r.proc == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	err := errors.Join(r.proc.Hangup(), r.proc.Kill(), r.leaf.Kill(ctx))
	if err == nil { // else PID 1 may be in a wait that nothing ends
		err = errors.Join(r.proc.Reap(), r.endOrphans())
	}
	err = errors.Join(err, r.proc.Close())
	r.proc = nil
	return err
}
