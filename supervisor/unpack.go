package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/overlay"
	"github.com/agentguard/agentguard/trace"
)

// A run that continues another begins with what that one staged. Its changes are
// committed, not to the host but to the new run's own overlay: the supervisor
// mounts the same layers for a moment, in the mount namespace in which the run's
// process waits, and lets the kernel make the upper of them. A change set knows
// nothing of whiteouts and redirects, and nothing here has to.

// continueFrom fills the uppers with what another run staged.
func (r *Run) continueFrom() error {
	s := r.cfg.Continue
	if s == nil {
		return nil
	}
	picks, err := r.continuable(s)
	if err != nil {
		return err
	}
	return lostthread.Run(func() error { return r.unpack(s, picks) }) // it takes another mount namespace and other ids
}

// continuable judges whether every tree of the change set is granted
// copy-on-write here, and is the one that it was.
func (r *Run) continuable(s *Staged) ([]bool, error) {
	refuse := func(what, remedy string) error {
		return &Refusal{What: "run " + s.run.ID() + " cannot be continued: " + what, Remedy: remedy}
	}
	if s.Open {
		return nil, refuse("a commit of it was interrupted", "finish it first: agentguard commit "+s.run.ID())
	}
	if !s.Ended || len(s.Findings) > 0 {
		return nil, refuse("its change set is not complete", "agentguard diff "+s.run.ID()+" says why")
	}
	picks := make([]bool, len(s.Entries))
	for i := range s.Entries {
		e := &s.Entries[i]
		picks[i] = !s.Settled[i]
		if !e.Root() {
			continue
		}
		g := r.cowEntry(e)
		if g == nil {
			return nil, refuse(trace.Quote(e.Name)+" is not granted copy-on-write to this run", "grant it: -w DIR, or --cow DIR")
		}
		if g.Dev != e.Old.Dev || g.Ino != e.Old.Ino {
			return nil, refuse(trace.Quote(e.Name)+" is another directory now", "commit or discard its changes")
		}
	}
	return picks, nil
}

// cowEntry finds the grant of a tree.
func (r *Run) cowEntry(root *changes.Entry) *Entry {
	for i := range r.plan.View {
		if e := &r.plan.View[i]; e.Op == "cow" && e.From == string(root.Name) {
			return e
		}
	}
	return nil
}

// unpack works on a thread of its own, in the run's mount namespace.
func (r *Run) unpack(s *Staged, picks []bool) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(r.proc.Pid) + "/ns/mnt")
	if err != nil {
		return err
	}
	defer ns.Close()
	place := r.runtime // a directory that every host of ours has; what is in it is hidden in this namespace only
	m := r.materials.mounts
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"unshare", func() error { return unix.Unshare(unix.CLONE_FS) }},
		{"setns", func() error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS) }},
		{"private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"scratch", func() error { return moveTo(m.scratch, place) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("continuing run %s: %s: %w", s.run.ID(), step.what, err)
		}
	}
	for i := range s.Entries {
		if e := &s.Entries[i]; e.Root() {
			if err := r.unpackTree(s, e, picks, place); err != nil {
				return err
			}
		}
	}
	return nil
}

func moveTo(mount *os.File, place string) error {
	return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// unpackTree commits one tree to its overlay, with the ids of the run.
func (r *Run) unpackTree(s *Staged, root *changes.Entry, picks []bool, place string) error {
	e := r.cowEntry(root)
	at := place + "/" + e.Layer
	if err := unix.Mkdir(at+"/lower", 0o700); err != nil {
		return err
	}
	if err := moveTo(r.materials.mounts.mounts[e.At], at+"/lower"); err != nil {
		return fmt.Errorf("lower of %s: %w", e.At, err)
	}
	merged, err := mountOverlay(overlay.Layers{Lower: at + "/lower", Upper: at + "/upper", Work: at + "/work", User: r.plan.Host.Mode == ModeUserNS})
	if err != nil {
		return fmt.Errorf("overlay of %s: %w", e.At, err)
	}
	defer merged.Close()
	journal, err := unix.MemfdCreate("journal", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	j := os.NewFile(uintptr(journal), "journal")
	defer j.Close()
	commit := func() error {
		return s.Set.Commit(merged, root, picks, changes.Options{ID: s.run.ID(), Journal: j})
	}
	if r.plan.Host.Mode == ModeUserNS { // we are that user
		err = commit()
	} else {
		who := Caller{UID: r.plan.Identity.UID, GID: r.plan.Identity.GID}
		err = errors.Join(who.become(commit), setThreadFSIDs(0, 0))
	}
	if errors.Is(err, unix.EOVERFLOW) { // moved on the host, and copied for nobody here: see strangers
		return &Refusal{
			What: "run " + s.run.ID() + " cannot be continued: it deleted what belongs to another user or group, which a user namespace cannot do twice", Err: err,
			Remedy: "commit or discard its changes first",
		}
	}
	var conflict *changes.ConflictError
	if errors.As(err, &conflict) {
		c := conflict.Conflicts[0]
		return &Refusal{
			What:   fmt.Sprintf("run %s cannot be continued: the host changed %s meanwhile: %s", s.run.ID(), trace.Quote(c.Path), trace.Line(c.Why)),
			Remedy: "commit or discard its changes first",
		}
	}
	return err
}

// mountOverlay makes a detached overlay of attached layers.
func mountOverlay(l overlay.Layers) (*os.File, error) {
	options, err := l.Options()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, o := range options {
		if o.Value == "" {
			list = append(list, o.Key)
		} else {
			list = append(list, o.Key+"="+o.Value)
		}
	}
	f, err := newFS("overlay", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, list...)
	if err != nil {
		return nil, err
	}
	defer f.Close() // an fsmount descriptor is O_PATH
	fd, err := unix.Openat(int(f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(fd), "merged"), nil
}
