package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// RunConfig is one run.
type RunConfig struct {
	// CgroupID is the id of the run's leaf cgroup: a fresh one, at Config.Level
	// below the root, directly below Config.Parent.
	CgroupID uint64
	// RingBytes is the size of the event ring: a power of two, at least 64 KiB.
	// 0 is 1 MiB, 4 MiB with Freeze, and more where there are more than 8 CPUs.
	RingBytes int
	// ControlBytes is how much of the ring may be unread when an event of class
	// Control still goes in. 0: all of it. Less is for tests of what is lost then.
	ControlBytes int
	// Freeze, where set, is how the run waits for its reader instead of losing
	// events: called with true it stops every task in the cgroup, with false it
	// lets them go on. It may be called from any goroutine, one at a time, until
	// Read returns.
	Freeze func(bool) error
	// Position, where set, tells where in the caller's record the last event went
	// that Read has delivered. Gaps say between which two positions they lie.
	Position func() uint64
	// DenyListen refuses every bind of an INET or INET6 socket.
	DenyListen bool
	// Egress says that the run may reach more than loopback: see [Run.Allow].
	Egress bool
	// ChangesOnly leaves out files that are opened only to be read.
	ChangesOnly bool
}

// Run is a live run: bound, and observed from before its first process was born.
// Its methods may be used from several goroutines; Read by one at a time.
type Run struct {
	programs     *Programs
	id           uint64
	slot         *slot
	reader       *ringbuf.Reader
	wait         *ringWait
	readTime     atomic.Int64 // ns of CPU time that Read took
	leaving      sync.Mutex   // guards link: Detach and Close may meet
	link         link.Link    // of sys_exit, shared with the other live runs
	record       ringbuf.Record
	event, lost  Event
	gaps         gapTracker
	patience     patience
	brake        *brake // nil: none
	position     func() uint64
	missedBefore [len(tracingNames)]uint64
	rules        []Rule
	entered      bool // the entry in runs is ours
	rests        bool // it is a reserve, and missedBefore what was missed at birth
	stopping     atomic.Bool
	closed       atomic.Bool
}

const (
	minRing     = 64 << 10
	defaultRing = 1 << 20
	brakedRing  = 4 << 20   // so that a run is frozen for a few long times and not for many short ones
	ringPerCPU  = 128 << 10 // an eighth of it is about the longest event: room is asked for before it is taken, by all CPUs at once
	maxRing     = 64 << 20
	// flushEvery bounds how long an event waits while the ring is quiet: the
	// programs wake the reader only above the watermark. To be woken costs a Go
	// program 0.2 ms and more, so this is what an observed build pays most for.
	flushEvery = 25 * time.Millisecond
	// stormFlush is the same while the ring was found filling up: a storm fills one of 1 MiB in 15 ms.
	stormFlush = 5 * time.Millisecond
)

// Start binds the cgroup and begins to observe it. When it returns, everything
// that a process does which is born into the cgroup is seen.
func (p *Programs) Start(cfg RunConfig) (*Run, error) { return p.bind(cfg, false) }

func (p *Programs) bind(cfg RunConfig, reserve bool) (*Run, error) {
	if cfg.RingBytes == 0 {
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return nil, fmt.Errorf("bpf: %w", err)
		}
		cfg.RingBytes = ringSize(cfg.Freeze != nil, cpus)
	}
	if cfg.RingBytes < minRing || cfg.RingBytes&(cfg.RingBytes-1) != 0 {
		return nil, fmt.Errorf("bpf: ring of %d bytes: must be a power of two, at least %d", cfg.RingBytes, minRing)
	}
	r := &Run{programs: p, id: cfg.CgroupID, position: cfg.Position}
	if r.position == nil {
		r.position = func() uint64 { return 0 }
	}
	if err := r.start(cfg, reserve); err != nil {
		return nil, errors.Join(fmt.Errorf("bpf: run in cgroup %d: %w", cfg.CgroupID, plain(err)), r.Close())
	}
	return r, nil
}

// ringSize is the size for this host. What is reserved for a class must hold
// what all CPUs write at once after they have seen that there is room.
func ringSize(braked bool, cpus int) int {
	size := defaultRing
	if braked {
		size = brakedRing
	}
	for size < cpus*ringPerCPU && size < maxRing {
		size *= 2
	}
	return size
}

func (r *Run) start(cfg RunConfig, reserve bool) error {
	p := r.programs
	unlock, err := lockFile(lockPath(p.cfg.PinDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(p.pin("runs")); err != nil {
		return fmt.Errorf("the programs were replaced by those of another build: %w", err)
	}
	if r.slot, err = p.takeSlot(cfg.RingBytes); err != nil {
		return err
	}
	if err := r.slot.mark(reserve); err != nil {
		return err
	}
	if r.reader, err = ringbuf.NewReader(r.slot.ring); err != nil {
		return err
	}
	if r.wait, err = newRingWait(r.slot.ring.FD()); err != nil {
		return err
	}
	if err := r.discardOld(); err != nil {
		return err
	}
	if r.missedBefore, err = p.misses(); err != nil {
		return err
	}
	r.brake = newBrake(r.reader, cfg.Freeze)
	size := uint32(cfg.RingBytes)
	value := runValue{
		Slot: r.slot.index, Watermark: size / 8,
		Room: [classes]uint32{Bulk: size / 8 * 6, Verdict: size / 8 * 7, Control: size},
	}
	if cfg.ControlBytes > 0 {
		value.Room[Control] = uint32(cfg.ControlBytes)
	}
	if r.brake != nil {
		value.Watermark, value.Brake = size/4, size/2 // nobody is frozen below
	}
	value.Flags = cfg.flags()
	if err := p.runs.Update(r.id, value, ebpf.UpdateNoExist); err != nil {
		return err
	}
	r.entered = true
	if reserve {
		return nil
	}
	return p.attachTracing(r)
}

// enum run_flags of c/abi.h
const (
	runDenyListen = 1
	runEgress     = 2
	runChanges    = 4
)

func (cfg RunConfig) flags() (flags uint32) {
	if cfg.DenyListen {
		flags |= runDenyListen
	}
	if cfg.Egress {
		flags |= runEgress
	}
	if cfg.ChangesOnly {
		flags |= runChanges
	}
	return flags
}

// discardOld empties the ring of what an earlier run left.
func (r *Run) discardOld() error {
	if r.reader.AvailableBytes() == 0 {
		return nil
	}
	r.reader.SetDeadline(time.Now())
	for {
		err := r.reader.ReadInto(&r.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Read calls fn for each event until Stop (then it returns nil when the ring is
// empty) or Close, or until fn returns an error, which it returns. The event
// and its slices are valid during the call only. Gaps that are certain are
// delivered as events of type Lost; those of the last second, and of the time since
// the reader has stood still, are in Stats.
func (r *Run) Read(fn func(*Event) error) (err error) {
	stop, err := r.brake.watch(r.slot.ring.FD())
	if err != nil {
		return fmt.Errorf("bpf: brake: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	r.gaps.begin(r.position())
	r.reader.SetDeadline(time.Unix(1, 0)) // it reads what there is, and never waits
	for {
		last, wait := r.stopping.Load(), r.nextLook()
		more, err := r.drain(fn)
		if err != nil || !more || last {
			return err
		}
		if more, err = r.wait.until(wait, r.stopping.Load); err != nil || !more {
			return err
		}
	}
}

// nextLook is how long to wait after the ring was emptied, by what is in it now.
func (r *Run) nextLook() time.Duration {
	if r.reader.AvailableBytes() > r.reader.BufferSize()/8 {
		return stormFlush
	}
	return flushEvery
}

// drain delivers what is in the ring; false when it is closed. It keeps its
// thread, so that the time it takes can be told from that of others.
func (r *Run) drain(fn func(*Event) error) (more bool, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun := threadTime()
	defer func() { r.readTime.Add(int64(threadTime() - begun)) }()
	for n := uint(1); ; n++ {
		switch err := r.reader.ReadInto(&r.record); {
		case err == nil:
			err = r.deliver(fn)
			r.brake.look()
			if err == nil && n%1024 == 0 {
				err = r.settle(fn)
			}
			if err != nil {
				return false, err
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.brake.look()
			return true, r.settle(fn)
		case errors.Is(err, ringbuf.ErrClosed):
			return false, nil
		default:
			return false, fmt.Errorf("bpf: read events: %w", err)
		}
	}
}

// threadTime is the CPU time of the calling thread, user and system.
func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // cannot fail for the caller itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (r *Run) deliver(fn func(*Event) error) error {
	ev := &r.event
	if err := ev.decode(r.record.RawSample); err != nil {
		return err
	}
	if ev.Run != r.id {
		return nil // of the slot's previous run
	}
	if ev.CPU < len(r.slot.base) {
		ev.Seq -= r.slot.base[ev.CPU].Seq
	}
	ev.Late = !r.gaps.see(ev, r.position())
	err := fn(ev)
	r.gaps.delivered(ev.CPU, r.position())
	return err
}

// settle delivers the gaps that cannot close any more.
func (r *Run) settle(fn func(*Event) error) error {
	now := bootTime()
	if !r.patience.over(now) {
		return nil
	}
	for _, gap := range r.gaps.settle(now) {
		r.lost = Event{Type: Lost, CPU: gap.CPU, Run: r.id, Time: gap.Before, Lost: gap}
		if err := fn(&r.lost); err != nil {
			return err
		}
	}
	return nil
}

// bootTime is CLOCK_BOOTTIME in ns, as the programs read it.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail: the clock exists since 2.6.39
	return uint64(ts.Nano())
}

// Stop makes Read return when it has delivered what is in the ring. The cgroup
// must be empty, or later events are lost uncounted.
func (r *Run) Stop() error {
	r.stopping.Store(true)
	return r.wait.end()
}

// Close ends the run: its cgroup is denied the network from now on. The last
// live run detaches sys_exit.
func (r *Run) Close() error {
	if r.closed.Swap(true) || r.slot == nil {
		return nil
	}
	p := r.programs
	var errs []error
	if r.entered {
		if err := p.runs.Delete(r.id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, r.leaveRules())
	if r.reader != nil {
		r.brake.release()
		errs = append(errs, r.wait.close(), r.reader.Close())
	}
	unlock, err := lockFile(lockPath(p.cfg.PinDir, "lock"))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer unlock()
	errs = append(errs, r.slot.close(), r.leaveTracing())
	return errors.Join(errs...)
}

// Sweep removes the entries that killed supervisors left, of runs whose
// processes are gone, and sets of programs whose parent cgroup is gone. It does
// nothing where no programs are pinned.
func Sweep(cfg Config) error {
	if _, err := os.Stat(cfg.Parent); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if sets, _ := filepath.Glob(filepath.Join(cfg.PinDir, setPrefix+"*")); len(sets) == 0 {
		return nil
	}
	p, err := Open(cfg)
	if err != nil {
		return err
	}
	unlock, err := lockFile(lockPath(cfg.PinDir, "lock"))
	if err != nil {
		return errors.Join(err, p.Close())
	}
	defer unlock()
	_, err = p.sweepRuns()
	parent, perr := cgroupID(p.parent)
	if err = errors.Join(err, perr); err == nil {
		err = p.removeStale(parent)
	}
	return errors.Join(err, p.Close())
}
