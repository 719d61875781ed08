package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/seccomp"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// birthFindings is what came of making a cgroup like a run's, and a PID 1 in it.
type birthFindings struct {
	layout    cgroup.Layout
	layoutErr error
	treeErr   error            // making cgroups in the v2 tree
	v1Err     map[string]error // the same in the v1 hierarchies, by controller
	kill      bool             // cgroup.kill is there
	err       error            // of the birth
	joined    bool             // births into the cgroup die: PID 1 was moved there
	tried     bool
}

// recordFindings is what came of loading and attaching the programs of the record.
type recordFindings struct {
	support bpf.Support
	err     error
	opened  bool // the programs were loaded, pinned and attached to the cgroup
	events  int  // that the kernel reported of the birth
}

// probeName is the name of the cgroups that doctor makes and removes. The
// number tells a later doctor whether one was left behind.
func probeName() string { return fmt.Sprintf("%s%d", probePrefix, os.Getpid()) }

// errNoTree is what everything comes to that needs a cgroup.
var errNoTree = errors.New("there is no cgroup to try it in")

const probePrefix = "agentguard-doctor-"

// tryRun makes what a run is made of, without a command and without a trace of
// it afterwards: a parent and a leaf cgroup of doctor's own, the programs pinned
// in a mount namespace of its own, a PID 1 that is born into the leaf.
func (x *examination) tryRun() {
	b := &x.birth
	b.layout, b.layoutErr = cgroup.Detect()
	if !x.root {
		b.treeErr, b.err, x.record.err = errRoot, errRoot, errRoot
		return
	}
	x.record.support = bpf.Probe()
	b.tryV1()
	parent, leaf, err := b.makeTree()
	if err != nil {
		b.treeErr, b.err, x.record.err = err, errNoTree, errNoTree
		return
	}
	_, err = os.Stat(filepath.Join(leaf.Path, "cgroup.kill"))
	b.kill = err == nil
	x.record.err = inPrivateMounts(func() error { return x.record.try(parent, leaf, b) })
	if !b.tried { // the record failed first
		b.try(leaf, "")
	}
	b.treeErr = errors.Join(leaf.Remove(killLimit), os.Remove(parent.Path))
}

// tryV1 makes and removes a cgroup in each v1 hierarchy that limits runs.
func (b *birthFindings) tryV1() {
	b.v1Err = map[string]error{}
	for c, point := range b.layout.V1 {
		dir := filepath.Join(point, probeName())
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.Remove(dir)
		}
		b.v1Err[c] = err
	}
}

// makeTree makes the parent and the leaf in the v2 tree, without limits.
func (b *birthFindings) makeTree() (*cgroup.Parent, *cgroup.Leaf, error) {
	if b.layout.Unified == "" {
		return nil, nil, errors.New("no cgroup v2 hierarchy is mounted")
	}
	p := &cgroup.Parent{Path: filepath.Join(b.layout.Unified, probeName()), Level: leafLevel(b.layout.Unified)}
	if err := os.Mkdir(p.Path, 0o755); err != nil {
		return nil, nil, err
	}
	leaf, err := p.New("probe", cgroup.Limits{}, 0)
	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(p.Path))
	}
	return p, leaf, nil
}

// leafLevel is the depth of a leaf whose parent is directly below the mount, or
// 0 where the mount is not the hierarchy's root, so that it cannot be told. The
// inode of the root is 1 whatever a cgroup namespace shows (fs/kernfs/dir.c).
func leafLevel(unified string) int {
	var st unix.Stat_t
	if unix.Stat(unified, &st) != nil || st.Ino != 1 {
		return 0
	}
	return 2
}

// try loads, pins and attaches the programs, and lets them see a birth. The
// caller is in a mount namespace of its own: pins and locks go with it.
func (r *recordFindings) try(parent *cgroup.Parent, leaf *cgroup.Leaf, b *birthFindings) error {
	place, err := coverDir()
	if err != nil {
		return err
	}
	pins := filepath.Join(place, "doctor", "bpf")
	programs, err := bpf.Open(bpf.Config{PinDir: pins, Parent: parent.Path, Level: parent.Level})
	if err != nil {
		return err
	}
	// Unmounting here and not by the end of the thread detaches at once.
	defer func() { _ = unix.Unmount(pins, unix.MNT_DETACH) }()
	defer programs.Close()
	r.opened = true
	sensor, err := programs.Start(bpf.RunConfig{CgroupID: leaf.ID()})
	if err != nil {
		return err
	}
	b.try(leaf, filepath.Join(place, "init"))
	err = sensor.Stop()
	if err == nil {
		err = sensor.Read(func(*bpf.Event) error { r.events++; return nil })
	}
	if err == nil && b.err == nil && r.events == 0 {
		err = errors.New("the programs attach, but report nothing of a process that was born and ended")
	}
	return errors.Join(err, sensor.Close())
}

// coverDir mounts an empty tmpfs over a directory of the private namespace.
func coverDir() (string, error) {
	for _, dir := range []string{filepath.Dir(RuntimeDir), "/tmp", "/mnt"} {
		if !exists(dir) {
			continue
		}
		fs, err := newTmpfs("doctor", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode=0755", "size=4m")
		if err != nil {
			return "", err
		}
		defer fs.Close()
		if err := unix.MoveMount(int(fs.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return "", fmt.Errorf("move_mount: %w", err)
		}
		return dir, nil
	}
	return "", errors.New("no directory to mount over")
}

// try has a PID 1 born as a run has it: into the leaf, with all namespaces, up
// to where it has given up its privileges. Then everything is killed.
func (b *birthFindings) try(leaf *cgroup.Leaf, fallback string) {
	b.tried = true
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.err = err
		return
	}
	defer null.Close()
	cfg := initproc.Config{
		Cgroup: leaf.Dir(), Flags: namespaces, Stdin: null, Stdout: null, Stderr: null,
		Guardian: guardian{uid: GuardianUID, filter: seccomp.InitFilter(), loUp: true}.program(), FallbackExe: fallback,
	}
	b.err = born(cfg, leaf)
	if errors.Is(b.err, initproc.ErrDied) { // as Run.birth does
		b.joined, cfg.Cgroup = true, nil
		cfg.Guardian = guardian{uid: GuardianUID, filter: seccomp.InitFilter(), loUp: true}.program()
		b.err = born(cfg, leaf)
	}
}

func born(cfg initproc.Config, leaf *cgroup.Leaf) error {
	p, err := initproc.Start(cfg)
	if err != nil {
		return err
	}
	err = p.Locked(birthLimit)
	if err == nil && cfg.Cgroup == nil {
		err = leaf.Enter(p.Pid)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	return errors.Join(err, p.Hangup(), leaf.Kill(ctx), p.Reap(), p.Close())
}
