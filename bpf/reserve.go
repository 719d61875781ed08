package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Reserve is [Programs.Start] for a run of which nothing is known yet but its
// cgroup: the slot is taken, the ring mapped, and processes that are born into the
// cgroup are seen by the programs that stand attached. Nobody else pays: sys_exit is
// attached by [Run.Begin], until when processes may do no more than be born and wait.
// Until then the cgroup is denied every network.
func (p *Programs) Reserve(cgroup uint64) (*Run, error) {
	return p.bind(RunConfig{CgroupID: cgroup, DenyListen: true}, true)
}

// Rest says that the processes of a reserve have been born and wait: what the kernel
// skips between this and [Run.Begin], for whatever process of the host, is none of theirs.
func (r *Run) Rest() error {
	now, err := r.programs.misses()
	if err != nil {
		return fmt.Errorf("bpf: run in cgroup %d: %w", r.id, plain(err))
	}
	for i := range now {
		r.missedBefore[i] = now[i] - r.missedBefore[i] // so many at birth
	}
	r.rests = true
	return nil
}

// Begin makes a run of a reserve. Programs that were pinned anew, detached or
// exchanged since are an error: the reserve is worth nothing then and must be closed.
// RingBytes, ControlBytes and Freeze must be zero: the ring is there already. Rest
// comes before it.
func (r *Run) Begin(cfg RunConfig) error {
	if !r.rests || cfg.RingBytes != 0 || cfg.ControlBytes != 0 || cfg.Freeze != nil {
		return errors.New("bpf: this run cannot begin that way")
	}
	if err := r.begin(cfg); err != nil {
		return fmt.Errorf("bpf: run in cgroup %d: %w", r.id, plain(err))
	}
	r.rests = false
	return nil
}

func (r *Run) begin(cfg RunConfig) error {
	p := r.programs
	unlock, err := lockFile(lockPath(p.cfg.PinDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.unchanged(); err != nil {
		return err
	}
	if err := r.slot.mark(false); err != nil {
		return err
	}
	var value runValue
	if err := p.runs.Lookup(r.id, &value); err != nil {
		return err
	}
	value.Flags = cfg.flags()
	if err := p.runs.Update(r.id, value, ebpf.UpdateExist); err != nil {
		return err
	}
	if cfg.Position != nil {
		r.position = cfg.Position
	}
	now, err := p.misses()
	if err != nil {
		return err
	}
	for i := range now {
		r.missedBefore[i] = now[i] - r.missedBefore[i]
	}
	return p.attachTracing(r)
}

// unchanged reports whether the set is the one that was opened, with all of its
// programs attached. The lock is held.
func (p *Programs) unchanged() error {
	meta, err := readMeta(p.pin("meta"))
	if err == nil && meta != p.meta {
		err = errors.New("the set was built anew")
	}
	if err != nil {
		return fmt.Errorf("the programs were replaced: %w", err)
	}
	parent, err := cgroupID(p.parent)
	if err != nil {
		return err
	}
	return p.verify(parent)
}
