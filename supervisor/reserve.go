package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
)

// Reserve is what a run can have before anybody asks for it: the host looked at, the
// pinned programs opened, a leaf without limits, a slot of the sensor with its ring
// mapped, and in new namespaces a PID 1 that is locked down and a PID 2 that waits for its
// plan. None of it depends on who will ask for what; all of it serves one run (decision 0035).
//
// What the host is like is looked at again when the reserve is used ([Config].Reserve):
// where anything is not what it was, the run is started as without a reserve. A reserve
// that nobody uses is given back when its time is over, when one of its processes ends,
// or with the process that holds it.
type Reserve struct{ r *Run } // nil: used, or given back

// reservePrefix begins the names of the leaf and lock of a reserve, which a run keeps
// that uses it.
const reservePrefix = "reserve-"

// reserveMark is what the lock of a reserve holds until a run uses it, which writes the
// identity of its state directory there.
const reserveMark = "in reserve\n"

// errStale says that the host is not what it was when the reserve was made, or that the
// run needs another: it has to be started as without one.
var errStale = errors.New("the reserve does not fit")

// NewReserve makes a reserve, which takes a few milliseconds. The caller must use it or
// call Close.
func NewReserve() (*Reserve, error) {
	r := newRun(Config{Policy: &policy.Policy{}})
	r.ahead, r.lease, r.runtime = true, reservePrefix+runs.NewID(time.Now()), runtimeDir()
	if err := r.steps(r.order().reserving); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &Reserve{r}, nil
}

// Wait returns when f can be read. Of a reserve that has waited for as long as lasts, or
// in which a process has ended, nothing is held any longer meanwhile.
func (v *Reserve) Wait(f *os.File, lasts time.Duration) {
	if v == nil || v.r == nil {
		return
	}
	p := v.r.proc
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}, {Fd: int32(p.PidFD.Fd()), Events: unix.POLLIN}, {Fd: int32(p.Command.Fd()), Events: unix.POLLIN}}
	for end := time.Now().Add(lasts); ; {
		n, err := unix.Poll(fds, int(max(time.Until(end).Milliseconds(), 0)))
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil || fds[0].Revents == 0 {
			_ = v.Close() // what is left is swept by a run
		}
		return
	}
}

// Close gives back what no run has used. It may be called twice, and of nil. It takes no
// capability: PID 1 ends with its lifeline, and the leaf is root's.
func (v *Reserve) Close() error {
	r := v.take()
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	err := errors.Join(r.proc.Hangup(), r.leaf.Kill(ctx))
	if err == nil {
		err = r.proc.Reap()
	}
	err = errors.Join(err, r.proc.Close())
	r.proc = nil
	return errors.Join(err, r.release.run())
}

// take is the run that was begun; nil when there is none any more.
func (v *Reserve) take() *Run {
	if v == nil {
		return nil
	}
	r := v.r
	v.r = nil
	return r
}

// reserved continues the run of the reserve with the command that has come, if that needs
// no other. One that does not fit is kept for [Reserve.giveBack].
func (cfg Config) reserved() *Run {
	if !cfg.fitsReserve() {
		return newRun(cfg)
	}
	r := cfg.Reserve.take()
	if r == nil {
		return newRun(cfg)
	}
	r.cfg, r.told = cfg, newEvents(cfg.Events)
	r.timing.start()
	return r
}

// fitsReserve reports whether a run can be that of a reserve. PID 1 of one with a terminal leads
// the session of that terminal, which takes calls that its filter refuses once it is born; a run
// that is throttled has another ring, which holds its birth, and a PID 1 that dies with the
// thread that bore it.
func (cfg Config) fitsReserve() bool {
	streams, err := cfg.terminals()
	return err == nil && streams == (ttyStreams{}) && !throttled(cfg.Policy) && cfg.ringBytes == 0 && cfg.roomBytes == 0
}

// giveBack closes beside what follows a reserve that did not fit: the launch has the CPUs
// for itself, and a run that lasts does not keep a slot. The function that is returned waits.
func (v *Reserve) giveBack(log zerolog.Logger) (wait func()) {
	if v == nil || v.r == nil {
		return func() {}
	}
	done := make(chan error, 1)
	go func() { done <- v.Close() }()
	return func() {
		if err := <-done; err != nil {
			log.Error().Err(err).Msg("the reserve")
		}
	}
}

// look begins to look at the host, or looks whether it is the one that the reserve has
// seen.
func (r *Run) look() error {
	if r.host != nil {
		return r.lookAgain()
	}
	if r.lease == "" {
		r.lease = r.id
	}
	var err error
	if r.host, err = newHost(r.runtime); err != nil {
		return err
	}
	r.release.push("host", r.host.Close)
	return r.withoutMounts()
}

func (r *Run) lookAgain() error {
	now, err := mountinfo.Read()
	if err != nil {
		return err
	}
	if string(now) != string(r.host.mountinfo) {
		return fmt.Errorf("%w: the mount table has changed", errStale)
	}
	return makeRuntimeDir(r.runtime)
}

// reserveSensor begins to observe a leaf of which nothing else is known.
func (r *Run) reserveSensor() (err error) {
	if r.host.programs == nil {
		return errors.New("a host without programs has no reserve")
	}
	if r.sensor, err = r.host.programs.Reserve(r.leaf.ID()); err == nil {
		r.release.push("sensor", r.sensor.Close)
	}
	return err
}

func (r *Run) rest() error {
	if r.joined {
		return errors.New("birth inside the cgroup failed: such a host has no reserve")
	}
	return r.sensor.Rest()
}

// useSensor takes the mark from the lock, so that a release of the host finds a run, and
// binds the leaf as the policy says.
func (r *Run) useSensor() error {
	r.mono, r.wall = bootTime(), time.Now()
	if err := r.lock.Truncate(0); err != nil {
		return err
	}
	if err := r.sensor.Begin(r.sensorConfig()); err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return nil
}

// useLeaf sets the limits of the leaf.
func (r *Run) useLeaf() error {
	err := r.host.parent.Bound(r.leaf, r.leafLimits(), 1)
	if err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return nil
}

// useProcesses fits the pipes to the caller's streams. The processes must live.
func (r *Run) useProcesses() error {
	if !r.proc.Alive() {
		return fmt.Errorf("%w: its processes have ended", errStale)
	}
	return r.stdio.fit(r.cfg)
}

// fit makes of the pipes of a reserve those that newStdio would have made.
func (s *stdio) fit(cfg Config) error {
	s.outs[0].to, s.outs[1].to = cfg.Stdout, cfg.Stderr
	var errs []error
	if cfg.Policy.Stdin.Value == "null" {
		errs = append(errs, s.in.Close())
		s.in = nil
	}
	if sameFile(cfg.Stdout, cfg.Stderr) { // the command makes one of its two
		errs = append(errs, s.childErr.Close(), s.outs[1].from.Close())
		s.childErr, s.outs = s.childOut, s.outs[:1]
	}
	return errors.Join(errs...)
}

// inReserve reports whether a lock is a reserve's that nobody has used.
func inReserve(dir, id string) bool {
	mark, err := os.ReadFile(lockPath(dir, id))
	return err == nil && string(mark) == reserveMark
}
