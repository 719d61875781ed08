package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A caller without root may have been given its own cgroup: a service manager
// does that with Delegate=yes, by making the caller the owner of the directory
// (cgroup-v2.rst, "Model of Delegation"). Runs then have their leaves in it:
//
//	OWN/agentguard-ID.run      the leaf of a run
//	OWN/agentguard-PID.own     our own processes, where they had to make room
//
// Controllers can only be switched on for the leaves while no process is in OWN
// itself. Where those there are all ours, they move.

const (
	delegatedPrefix = "agentguard-"
	ownSuffix       = ".own"

	ownLimit = time.Second // for a cgroup that was just left to be empty
)

// ErrNotDelegated says that the caller's cgroup is not its own to divide.
var ErrNotDelegated = fmt.Errorf("the caller's cgroup is not delegated to it: %w", errors.ErrUnsupported)

// Delegated finds the caller's own cgroup, and makes it the parent of leaves.
// self is /proc/self/cgroup, ours are processes besides this one that may be moved
// with it. The error wraps [ErrNotDelegated] where the cgroup is
// not the caller's, and [errors.ErrUnsupported] where there is no v2 tree.
// The caller must call [Parent.Leave] when its last leaf is removed.
func (l Layout) Delegated(self []byte, ours ...int) (*Parent, error) {
	if l.Unified == "" {
		return nil, fmt.Errorf("no cgroup v2 hierarchy is mounted: %w", errors.ErrUnsupported)
	}
	path, ok := unifiedPath(self)
	if !ok {
		return nil, fmt.Errorf("the caller's cgroup is outside of what is mounted at %s: %w", l.Unified, ErrNotDelegated)
	}
	dir := filepath.Join(l.Unified, path)
	if filepath.Base(dir) == ownName() { // we moved before
		dir = filepath.Dir(dir)
	}
	if err := owned(dir); err != nil {
		return nil, err
	}
	p := &Parent{Path: dir, V1: map[string]string{}, prefix: delegatedPrefix}
	removeOld(dir)
	on, err := p.divide(append([]int{os.Getpid()}, ours...))
	if err != nil {
		return nil, errors.Join(err, p.Leave())
	}
	for _, c := range []string{Memory, Pids} {
		if !slices.Contains(on, c) {
			p.Missing = append(p.Missing, c)
		}
	}
	return p, nil
}

// unifiedPath finds the v2 cgroup in /proc/PID/cgroup (cgroups(7)). One that is
// outside of the reader's cgroup namespace begins with "/..".
func unifiedPath(self []byte) (string, bool) {
	for line := range bytes.Lines(self) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(string(line), "\n"), "0::"); ok {
			return path, strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/..") && !strings.HasSuffix(path, " (deleted)")
		}
	}
	return "", false
}

// owned reports as an error that the caller may not divide the cgroup. The owner
// of the directory may make cgroups in it; who may write cgroup.procs may move
// processes between these (cgroup-v2.rst, "Delegation Containment").
func owned(dir string) error {
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		path := filepath.Join(dir, name)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		if int(st.Uid) != os.Geteuid() || unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) != nil {
			return fmt.Errorf("%s: %w", path, ErrNotDelegated)
		}
	}
	return nil
}

// divide switches on the controllers that can be had, and moves our processes where
// that takes it. It returns those that leaves have.
func (p *Parent) divide(ours []int) ([]string, error) {
	have, err := words(p.Path, "cgroup.controllers")
	if err != nil {
		return nil, err
	}
	on, err := words(p.Path, "cgroup.subtree_control")
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(wanted, func(c string) bool { return slices.Contains(have, c) && !slices.Contains(on, c) }) {
		return on, p.hold()
	}
	if err := p.makeRoom(ours); err != nil {
		return nil, err
	}
	return enableIn(p.Path, false)
}

// makeRoom moves our processes out of the parent, where nobody else is in it.
func (p *Parent) makeRoom(ours []int) error {
	procs, err := words(p.Path, "cgroup.procs")
	if err != nil || len(procs) == 0 {
		return err
	}
	if p.Shared = slices.ContainsFunc(procs, func(pid string) bool {
		n, err := strconv.Atoi(pid)
		return err != nil || !slices.Contains(ours, n)
	}); p.Shared {
		return nil
	}
	own := filepath.Join(p.Path, ownName())
	if err := place(procs, own, os.Mkdir); err != nil {
		return err
	}
	return p.hold()
}

// place moves processes to the cgroup own, which mkdir makes. While it is empty another
// supervisor that starts may take it for a dead one's (removeOld): then it is made again.
func place(procs []string, own string, mkdir func(string, os.FileMode) error) (err error) {
	for range 2 {
		if err = mkdir(own, 0o755); err != nil {
			return err
		}
		if err = move(procs, own); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		err = errors.Join(err, move(procs, filepath.Dir(own)))
		if e := unix.Rmdir(own); e != unix.ENOENT {
			err = errors.Join(err, e)
		}
	}
	return err
}

// move moves processes to the cgroup dir; those that have ended do not matter.
func move(procs []string, dir string) error {
	var errs []error
	for _, pid := range procs {
		if err := write(dir, "cgroup.procs", pid); !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hold notes that this process has moved, for as long as the parent is in use:
// another run of this process may use the same one. The lock is on a file that
// only the owner can open.
func (p *Parent) hold() error {
	own := filepath.Join(p.Path, ownName())
	f, err := os.OpenFile(filepath.Join(own, "cgroup.kill"), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return errors.Join(os.NewSyscallError("flock", err), f.Close())
	}
	p.Own, p.held = own, f
	return nil
}

// Leave moves our processes back to where they were, when they have moved and no leaf is
// left, and removes their place. It may be called twice.
func (p *Parent) Leave() error {
	f := p.held
	if f == nil {
		return nil
	}
	p.held = nil
	defer f.Close()
	if p.Ends {
		return nil
	}
	ids, err := p.ids()
	if err != nil || len(ids) > 0 || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil { // another run of this process
		return err
	}
	on, err := words(p.Path, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	for _, c := range on { // the kernel has no process in a cgroup that has divided its controllers
		if err := write(p.Path, "cgroup.subtree_control", "-"+c); err != nil {
			return err
		}
	}
	procs, err := words(p.Own, "cgroup.procs")
	if err == nil {
		err = move(procs, p.Path)
	}
	if err != nil {
		return err
	}
	return removeAll([]string{p.Own}, ownLimit)
}

// ownName is the cgroup that this process moves to.
func ownName() string { return delegatedPrefix + strconv.Itoa(os.Getpid()) + ownSuffix }

// removeOld removes the places of dead processes; one that is alive keeps its own (EBUSY).
func removeOld(dir string) {
	old, _ := filepath.Glob(filepath.Join(dir, delegatedPrefix+"*"+ownSuffix)) // the pattern is well-formed
	for _, path := range old {
		if filepath.Base(path) != ownName() {
			_ = unix.Rmdir(path)
		}
	}
}
