package bpf

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachTracing joins the link of sys_exit, or makes it where no live run has it.
// Each run holds a descriptor of the same link, so that the last one to close (or
// to die) detaches at once; it is not pinned, since the removal of a pin detaches
// some time later, when the next run may have attached again and would be told
// everything twice. The lock is held.
func (p *Programs) attachTracing(r *Run) error {
	l, err := p.joinLink()
	if l == nil && err == nil {
		p.hurryRCU()
		l, err = p.makeLink()
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", tracingNames[perCall], err)
	}
	r.link = l
	return nil
}

// joinLink opens the link of sys_exit that a live run holds; nil where there is none.
func (p *Programs) joinLink() (link.Link, error) {
	var id uint32
	if err := p.links.Lookup(uint32(0), &id); err != nil || id == 0 {
		return nil, err
	}
	l, err := link.NewFromID(link.ID(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	prog, err := infoOf(p.tracing[perCall].FD())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if uint32(info.Program) != prog.ID {
		return nil, l.Close() // the number was given to another link since
	}
	return l, nil
}

func (p *Programs) makeLink() (link.Link, error) {
	var l link.Link
	var err error
	for range 100 {
		l, err = attach(p.tracing[perCall])
		// Before Linux 6.10: a killed supervisor's link is on its way out.
		if !errors.Is(err, unix.EEXIST) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	info, err := l.Info()
	if err == nil {
		err = p.links.Put(uint32(0), uint32(info.ID))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func attach(prog *ebpf.Program) (link.Link, error) {
	if prog.Type() == ebpf.TracePoint {
		return attachByPerf(prog)
	}
	return link.AttachTracing(link.TracingOptions{Program: prog, AttachType: ebpf.AttachTraceRawTp})
}

// Detach gives up the run's part in sys_exit before Close does, which takes the
// kernel a while. Nothing more is seen: the cgroup must be empty. What has been seen
// can still be read.
func (r *Run) Detach() error {
	unlock, err := lockFile(lockPath(r.programs.cfg.PinDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return r.leaveTracing()
}

// leaveTracing closes the run's link, which detaches sys_exit if no other run
// holds it. The lock is held. Twice is once.
func (r *Run) leaveTracing() error {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if r.link == nil {
		return nil
	}
	left := r.link.Close()
	r.link = nil
	now := time.Now()
	path := r.programs.detachedPath()
	err := os.Chtimes(path, now, now)
	if errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(path, nil, 0o600)
	}
	return errors.Join(left, err)
}

// hurryRCU ends the RCU grace period that a tracepoint waits for when it is
// attached again right after it was detached (kernel/tracepoint.c,
// TP_TRANSITION_SYNC_1_0_1): 10 to 16 ms for runs that follow each other. Giving
// up a mount waits for an expedited one (fs/namespace.c, namespace_unlock), which
// takes 0.1 ms and counts for both. A failure costs only the wait.
func (p *Programs) hurryRCU() {
	st, err := os.Stat(p.detachedPath())
	if err != nil || time.Since(st.ModTime()).Abs() > 100*time.Millisecond {
		return
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
}

// detachedPath is a file whose modification time is that of the last detach.
func (p *Programs) detachedPath() string {
	return lockPath(p.cfg.PinDir, "detached")
}

// misses counts by program how often the kernel skipped it, because it was
// running on that CPU already, for whatever process of the host.
func (p *Programs) misses() ([len(tracingNames)]uint64, error) {
	var misses [len(tracingNames)]uint64
	for i, prog := range p.tracing {
		stats, err := prog.Stats()
		if err != nil {
			return misses, err
		}
		misses[i] = stats.RecursionMisses
	}
	return misses, nil
}

// missed bounds the events that were lost that way since the run began: what
// one of two copies skipped, the other may have seen.
func (r *Run) missed() (uint64, error) {
	now, err := r.programs.misses()
	if err != nil {
		return 0, err
	}
	for i := range now {
		now[i] -= r.missedBefore[i]
	}
	if len(r.programs.tracing) > copiesFrom {
		for i, copied := range now[copiesFrom:] {
			now[i], now[copiesFrom+i] = min(now[i], copied), 0
		}
	}
	var sum uint64
	for _, n := range now {
		sum += n
	}
	return sum, nil
}
