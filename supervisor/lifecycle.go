package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// Time limits for the parts of a run that do not depend on the command. They
// are generous: they end a hang, they do not judge speed (emulated machines
// run 20 times slower).
const (
	birthLimit = 60 * time.Second
	killLimit  = 60 * time.Second
)

func dirOf(p string) string { return path.Dir(p) }

// lockPath is the file whose lock says that a run's supervisor lives.
func lockPath(dir, id string) string { return filepath.Join(dir, "live", id) }

// alive reports whether the supervisor of a run still holds its lock.
func alive(dir, id string) bool {
	f, err := os.OpenFile(lockPath(dir, id), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// sweepLocks removes the locks of supervisors that died between taking one and
// removing it. Only locks that nobody holds and that are a minute old are
// touched: a supervisor holds its lock from the instant it makes it.
func sweepLocks(dir string) {
	list, err := os.ReadDir(filepath.Dir(lockPath(dir, "x")))
	if err != nil {
		return // none has run yet
	}
	for _, e := range list {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > time.Minute && !alive(dir, e.Name()) {
			_ = os.Remove(lockPath(dir, e.Name()))
		}
	}
}

// openRecord makes the run's directory with its plan and its empty streams.
// When the run cannot start, the directory goes: there is nothing to record.
func (r *Run) openRecord() error {
	r.id = runs.NewID(time.Now())
	dir, err := r.state.Create(r.id)
	if err != nil {
		return r.recordError(err)
	}
	r.dir = dir
	r.release.push("run directory", func() error {
		err := dir.Close()
		if !r.kept {
			err = errors.Join(err, r.state.Remove(r.id))
		}
		return err
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

func (r *Run) openStdio() error {
	s, err := newStdio(r.plan.Stdin != "null", r.cfg.Stdout, r.cfg.Stderr, r.plan.Identity)
	if err != nil {
		return fmt.Errorf("pipes for the command: %w", err)
	}
	r.stdio = s
	r.release.push("stdio", s.Close)
	return nil
}

// makeLeaf makes the run's cgroup under a lock that tells other supervisors
// that it is in use.
func (r *Run) makeLeaf() error {
	if err := os.MkdirAll(filepath.Dir(lockPath(runtimeDir(), "x")), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(lockPath(runtimeDir(), r.id), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	r.release.push("live lock", func() error { return errors.Join(os.Remove(lock.Name()), lock.Close()) })
	// Waits: another start may be asking, for an instant, whether anybody holds it.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	l := r.plan.Limits
	r.leaf, err = r.host.parent.New(r.id, cgroup.Limits{Memory: l.Memory, Tasks: l.Tasks}, 1)
	if err != nil {
		return fmt.Errorf("the run's cgroup: %w", err)
	}
	r.release.push("cgroup", func() error { return r.leaf.Remove(5 * time.Second) })
	if err := r.openViews(); err != nil {
		return err
	}
	r.startMaterials()
	return nil
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

// startSensor begins to observe the leaf and writes the first record.
func (r *Run) startSensor() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	mono, wall := bootTime(), time.Now()
	w := trace.NewWriter(r.files[runs.TraceFile], trace.Options{MaxBytes: max(r.plan.Limits.Trace, 0), Mono: mono, Wall: wall, BootID: boot})
	r.rec = &recorder{plan: r.plan, w: w}
	if r.host.programs == nil { // the gap "record" was accepted
		return nil
	}
	sensor, err := r.host.programs.Start(bpf.RunConfig{CgroupID: r.leaf.ID(), DenyListen: r.plan.DenyListen})
	if err != nil {
		return err
	}
	r.sensor = sensor
	r.release.push("sensor", sensor.Close)
	return nil
}

// bootTime is now on CLOCK_BOOTTIME, in nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(b) < 36 {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return string(b[:36]), nil
}

// materialsResult is what the mount goroutine hands over.
type materialsResult struct {
	m   materials
	err error
}

// birth clones PID 1 and PID 2 and joins what was made meanwhile.
func (r *Run) birth() error {
	err := r.clone(r.leaf.Dir())
	joined := false
	if errors.Is(err, initproc.ErrDied) {
		// Some kernels kill at once what is cloned into a cgroup when the
		// caller's own cgroup was killed before; writing cgroup.procs works.
		r.cfg.Log.Warn().Msg("birth inside the cgroup failed; joining it by cgroup.procs")
		err, joined = r.cloneAndJoin(), true
	}
	r.timing.mark("locked")
	got := r.materials()
	if err = errors.Join(err, got.err); err != nil {
		return err
	}
	return r.program(got.m, joined)
}

// startMaterials makes the mounts and the ruleset beside the sensor's start
// and the clone.
func (r *Run) startMaterials() {
	ready := make(chan *materialsResult, 1)
	go func() {
		m, err := r.prepareMaterials()
		ready <- &materialsResult{m, err}
	}()
	r.materials = sync.OnceValue(func() *materialsResult { return <-ready })
	r.release.push("mounts", func() error {
		if got := r.materials(); got.err == nil {
			return got.m.Close()
		}
		return nil
	})
}

func (r *Run) prepareMaterials() (materials, error) {
	m := materials{filter: r.filter}
	var userns *os.File
	if r.uid != nil && hasIDMap(r.plan.View) {
		var err error
		if userns, err = r.uid.userns(runtimeDir()); err != nil && needsIDMap(r.plan.View) {
			return m, &Refusal{
				What: "a directory of root's cannot be shown writable to the run's own user", Err: err,
				Remedy: "use --mode ro, or give the directory to a user (chown); user.max_user_namespaces must not be 0",
			}
		}
		defer userns.Close() // of nil: no more than an error
	}
	var err error
	if m.mounts, err = prepareMounts(r.plan, r.views, userns); err != nil {
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
	flags := uintptr(namespaces)
	if r.plan.off("netns") {
		flags &^= unix.CLONE_NEWNET
	}
	p, err := initproc.Start(initproc.Config{
		Cgroup: into, Flags: flags,
		Stdin: r.stdio.childIn, Stdout: r.stdio.childOut, Stderr: r.stdio.childErr,
		Guardian:    guardianProgram(GuardianUID, seccomp.InitFilter(), flags&unix.CLONE_NEWNET != 0),
		FallbackExe: filepath.Join(runtimeDir(), "init"),
	})
	if err != nil {
		return err
	}
	r.proc = p
	r.release.push("processes", r.killAll)
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
// none is left.
func (r *Run) killAll() error {
	if r.proc == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	err := errors.Join(r.proc.Hangup(), r.proc.Kill(), r.leaf.Kill(ctx))
	if err == nil { // else PID 1 may be in a wait that nothing ends
		err = r.proc.Reap()
	}
	err = errors.Join(err, r.proc.Close())
	r.proc = nil
	return err
}
