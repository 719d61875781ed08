// Package bpf is the kernel half of agentguard: cgroup programs that bound what
// a run may reach on the network, and a sensor that records what it did.
//
// The programs are loaded once per boot and pinned on a bpffs of the tool's own.
// The cgroup programs stay attached to the parent cgroup of all runs, so that
// they still bite when the supervisor is dead. The sensor's tracepoint at the end
// of system calls is attached only while a run lives, because every process of
// the host pays for it; those for processes (docs/decisions/0005) and, where the
// kernel takes them, the standing programs (0021) are attached as long as the set
// is pinned: who makes no process, changes no names and is not refused by Landlock
// pays nothing for them. A run is one map entry, keyed by the id of its leaf cgroup.
//
// Everything in a record comes from kernel objects unless its field says that
// it was read from user memory.
//
// Kernel floor 6.1 (bpf_loop 5.17, cgroup.ancestors 6.1). UNIX socket hooks need
// 6.7 and are left out where they do not load.
package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Config says where the programs live and which cgroups they govern.
type Config struct {
	// PinDir is the mount point of the tool's own bpffs, such as
	// /run/agentguard/bpf. It is created and mounted when it is not there.
	// Locks are files in PinDir + ".lock".
	PinDir string
	// Parent is the directory of the parent cgroup of all runs (cgroup v2).
	// It must be the tool's own: below it, every cgroup that is no live run
	// is denied the network.
	Parent string
	// Level is the depth of the leaf cgroups below the root of the v2
	// hierarchy: 2 for leaves of a parent directly below the root.
	Level int

	preempted bool // tests: as where the kernel preempts tracepoints
	untyped   bool // tests: as where the verifier does not follow typed reads
	tier1     bool // tests: as where no standing program loads
}

// Programs are the loaded programs and maps of one parent cgroup.
type Programs struct {
	cfg                Config
	id                 string // of the pinned set: names its directory and its locks
	parent             *os.File
	runs               *ebpf.Map
	rings              *ebpf.Map
	counts             *ebpf.Map
	links              *ebpf.Map
	tracing            []*ebpf.Program // in the order of tracingNames
	meta               [metaEntries]metaEntry
	unix               bool
	resolves, refusals bool // parts of the standing programs
}

// Open opens the pinned programs of cfg.Parent and verifies them; where they are
// missing, damaged or of another build, it loads, attaches and pins them. Only
// the latter reads the kernel's BTF (tens of milliseconds).
//
// It fails where an older build still has live runs below the same parent: two
// builds on one parent would deny each other's runs; likewise with [ErrForeign].
func Open(cfg Config) (*Programs, error) {
	p := &Programs{cfg: cfg}
	if err := p.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("bpf: %w", plain(err)), p.Close())
	}
	return p, nil
}

func (p *Programs) open() error {
	if p.cfg.Level < 1 || p.cfg.Level > 64 {
		return fmt.Errorf("cgroup level %d is not within 1..64", p.cfg.Level)
	}
	parent, err := os.Open(p.cfg.Parent)
	if err != nil {
		return fmt.Errorf("parent cgroup: %w", err)
	}
	p.parent = parent
	parentID, err := cgroupID(parent)
	if err != nil {
		return err
	}
	if p.id, err = setID(p.cfg, parentID); err != nil {
		return err
	}
	if err := ownBPFFS(p.cfg.PinDir); err != nil {
		return err
	}
	if p.openSet(parentID) == nil {
		return nil
	}
	return p.install(parentID)
}

// Close releases the descriptors. What is pinned stays.
func (p *Programs) Close() error {
	var errs []error
	for _, m := range []*ebpf.Map{p.runs, p.rings, p.counts, p.links} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	p.runs, p.rings, p.counts, p.links = nil, nil, nil, nil
	for _, prog := range p.tracing {
		errs = append(errs, prog.Close())
	}
	p.tracing = nil
	if p.parent != nil {
		errs = append(errs, p.parent.Close())
		p.parent = nil
	}
	return errors.Join(errs...)
}

// UnixHooks reports whether connects to UNIX sockets are recorded (Linux 6.7).
func (p *Programs) UnixHooks() bool { return p.unix }

func (p *Programs) pin(name string) string {
	return filepath.Join(p.cfg.PinDir, p.id, name)
}
