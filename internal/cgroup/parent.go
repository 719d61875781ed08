package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// DefaultParent is the name of the parent of all runs.
const DefaultParent = "agentguard"

// Parent is the cgroup below which all runs live. It stays when they end: BPF
// programs are attached to it.
type Parent struct {
	Path string // directory in the v2 tree

	// Level is the depth of a leaf below the root of the v2 hierarchy, as
	// bpf_get_current_ancestor_cgroup_id counts. It is 0 where it cannot be told:
	// in a cgroup namespace the mount's root is not the hierarchy's.
	Level int

	V1      map[string]string // directories in v1 hierarchies by controller
	Missing []string          // of Memory and Pids, those that cannot limit a run here

	// Own is where this process has moved to make room: see [Layout.Delegated]. "" is nowhere.
	Own string

	// Shared says that processes of others are in a delegated parent, which keeps controllers
	// from being switched on in it.
	Shared bool

	// Ends says that a delegated parent ends with this process, so that [Parent.Leave] puts
	// nothing back: each move of a process waits for all CPUs.
	Ends bool

	prefix string   // of the names of leaves: others may live beside them in a delegated parent
	held   *os.File // locked while Own is needed
}

// Parent makes the parent of all runs, or finds it: NAME.slice where a service
// manager made that below the root of the v2 tree, else NAME, and NAME in the v1
// hierarchies. Controllers are switched on for its children and are in Missing
// where the kernel has them not or refuses, or where processes live in the
// parent itself. The error wraps
// [errors.ErrUnsupported] when there is no v2 tree.
func (l Layout) Parent(name string) (*Parent, error) {
	if l.Unified == "" {
		return nil, fmt.Errorf("no cgroup v2 hierarchy is mounted: %w", errors.ErrUnsupported)
	}
	root, err := cgroupID(l.Unified)
	if err != nil {
		return nil, err
	}
	p := &Parent{Path: filepath.Join(l.Unified, name), V1: map[string]string{}}
	if root == hierarchyRoot {
		p.Level = 2
	}
	if slice := p.Path + ".slice"; isDir(slice) {
		p.Path = slice
	}
	if err := makeDir(p.Path); err != nil {
		return nil, err
	}
	on, err := enable(l.Unified, p.Path)
	if err != nil {
		return nil, err
	}
	for _, c := range []string{Memory, Pids} {
		switch {
		case slices.Contains(on, c):
		case l.V1[c] != "":
			p.V1[c] = filepath.Join(l.V1[c], name)
			if err := makeDir(p.V1[c]); err != nil {
				return nil, err
			}
		default:
			p.Missing = append(p.Missing, c)
		}
	}
	return p, nil
}

// wanted are switched on below the parent. CPU time is counted without the cpu
// controller; with it a run of many tasks competes as one with the rest of the host.
var wanted = []string{Memory, Pids, "cpu"}

// enable switches the wanted controllers on for the children of root and of
// parent, from the top down, and returns those that the children of parent have.
func enable(root, parent string) ([]string, error) {
	if _, err := enableIn(root, true); err != nil {
		return nil, err
	}
	return enableIn(parent, false)
}

// enableIn returns the controllers that the children of dir have. None is
// switched on below a cgroup that holds processes. For memory the kernel refuses
// that; for pids and cpu it does not, but the children then are in "domain
// invalid" and nothing can be born into them. The root is exempt.
func enableIn(dir string, isRoot bool) ([]string, error) {
	have, err := words(dir, "cgroup.controllers")
	if err != nil {
		return nil, err
	}
	on, err := words(dir, "cgroup.subtree_control")
	if err != nil {
		return nil, err
	}
	off := slices.DeleteFunc(slices.Clone(wanted), func(c string) bool {
		return !slices.Contains(have, c) || slices.Contains(on, c)
	})
	if len(off) == 0 {
		return on, nil
	}
	if !isRoot {
		if procs, err := read(dir, "cgroup.procs"); err != nil || len(procs) > 0 {
			return on, ignoreRefusal(err)
		}
	}
	for _, c := range off { // one at a time: a write of several does all or nothing
		switch err := write(dir, "cgroup.subtree_control", "+"+c); {
		case err == nil:
			on = append(on, c)
		case ignoreRefusal(err) != nil:
			return nil, err
		}
	}
	return on, nil
}

// ignoreRefusal returns nil when err is the kernel's way to say that a
// controller cannot be had here: processes live in the cgroup (EBUSY), the
// cgroup is threaded (EOPNOTSUPP), its parent has it not (ENOENT), there are
// realtime tasks without a budget (EINVAL, cpu only).
func ignoreRefusal(err error) error {
	for _, e := range []error{unix.EBUSY, unix.EOPNOTSUPP, unix.ENOENT, unix.EINVAL} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// hierarchyRoot is the id of the root of any hierarchy (fs/kernfs/dir.c counts
// from 1), whatever a cgroup namespace shows as its root.
const hierarchyRoot = 1

// cgroupID returns the id of the v2 cgroup at dir, as BPF programs see it. The
// error wraps [errors.ErrUnsupported] when dir is no cgroup2.
func cgroupID(dir string) (uint64, error) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return idOf(f)
}

func idOf(dir *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "fstatfs", Path: dir.Name(), Err: err}
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("%s is not in a cgroup v2 hierarchy: %w", dir.Name(), errors.ErrUnsupported)
	}
	h, _, err := unix.NameToHandleAt(int(dir.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return 0, &os.PathError{Op: "name_to_handle_at", Path: dir.Name(), Err: err}
	}
	if h.Size() != 8 { // FILEID_KERNFS, 5.5: the 64-bit id
		return 0, fmt.Errorf("%s: a file handle of %d bytes, want 8", dir.Name(), h.Size())
	}
	return binary.NativeEndian.Uint64(h.Bytes()), nil
}

func isDir(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}

// makeDir makes the cgroup at path or takes the one that is there. Others must
// not be able to write to it: they could put processes into a run.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o755)
	if err == nil {
		return keepTimes(path)
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only uid %d can write to", path, os.Geteuid())
	}
	return nil
}
