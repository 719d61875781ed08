package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SweepOthers does for every other parent (prefix and 8 hexadecimal digits) what
// [Parent.Sweep] does for its own, and removes those that have been empty for an
// hour. Each build of the programs has a parent of its own, so that an upgrade
// need not wait for the runs of the build before it. Where two builds are in use
// side by side, neither takes the other's parent away between two runs.
func (l Layout) SweepOthers(ctx context.Context, prefix, own string, alive func(id string) bool) ([]string, error) {
	return l.sweepParents(ctx, prefix, own, keepEmpty, sweeper{alive: alive})
}

// Release does it for all parents, and removes each that is empty. Leaves for whose id spare says
// yes go although somebody holds them.
func (l Layout) Release(ctx context.Context, prefix string, alive, spare func(id string) bool) ([]string, error) {
	return l.sweepParents(ctx, prefix, "", 0, sweeper{alive, spare})
}

func (l Layout) sweepParents(ctx context.Context, prefix, own string, keep time.Duration, s sweeper) ([]string, error) {
	names, err := l.parents(prefix)
	if err != nil {
		return nil, err
	}
	var swept []string
	var errs []error
	for _, name := range names {
		if name == own {
			continue
		}
		p := l.existing(name)
		ids, err := p.sweep(ctx, s)
		swept, errs = append(swept, ids...), append(errs, err)
		if p.unused() >= keep {
			p.removeEmpty()
		}
	}
	return swept, errors.Join(errs...)
}

// parents lists the parents of all builds. One whose removal was interrupted may
// be left in a v1 hierarchy alone.
func (l Layout) parents(prefix string) ([]string, error) {
	var names []string
	for _, root := range []string{l.Unified, l.V1[Memory], l.V1[Pids]} {
		if root == "" {
			continue
		}
		entries, err := os.ReadDir(root)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && isBuild(strings.CutPrefix(e.Name(), prefix)) && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// existing is a parent of the v2 tree, which may be gone, and in the v1 hierarchies that have it.
func (l Layout) existing(name string) *Parent {
	p := &Parent{Path: filepath.Join(l.Unified, name), V1: map[string]string{}}
	for _, c := range []string{Memory, Pids} {
		if dir := filepath.Join(l.V1[c], name); l.V1[c] != "" && isDir(dir) {
			p.V1[c] = dir
		}
	}
	return p
}

// NetSuffix ends the name of the parent of the processes that dial for the runs of
// a build. They are outside of the runs' own parent, whose programs refuse what no run owns.
const NetSuffix = "-net"

// isBuild reports whether a name ends as a parent's does: in the 8 digits of a
// build, with [NetSuffix] or without.
func isBuild(rest string, found bool) bool {
	rest = strings.TrimSuffix(rest, NetSuffix)
	return found && len(rest) == 8 && strings.Trim(rest, "0123456789abcdef") == ""
}

// keepEmpty is how long another build's parent stays without leaves.
const keepEmpty = time.Hour

// unused is how long ago the parent had a leaf made or removed: see keepTimes.
// What is not in the v2 tree is in use by nobody.
func (p *Parent) unused() time.Duration {
	st, err := os.Lstat(p.Path)
	if errors.Is(err, os.ErrNotExist) {
		return keepEmpty
	}
	if err != nil {
		return 0
	}
	return time.Since(st.ModTime())
}

// keepTimes makes the kernel keep a modification time for the directory: kernfs
// does so from the first change of an attribute on (kernfs_add_one, fs/kernfs/dir.c).
func keepTimes(dir string) error { return os.Chmod(dir, 0o755) }

// removeEmpty removes the parent's directories; one that still has leaves stays.
func (p *Parent) removeEmpty() {
	for _, dir := range []string{p.Path, p.V1[Memory], p.V1[Pids]} {
		if dir != "" {
			_ = unix.Rmdir(dir) // EBUSY: runs of that build live
		}
	}
}
