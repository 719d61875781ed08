package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
	entries, err := os.ReadDir(l.Unified)
	if err != nil {
		return nil, err
	}
	var swept []string
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || name == own || !isBuild(strings.CutPrefix(name, prefix)) {
			continue
		}
		p := &Parent{Path: filepath.Join(l.Unified, name), V1: map[string]string{}}
		for _, c := range []string{Memory, Pids} {
			if dir := filepath.Join(l.V1[c], name); l.V1[c] != "" && isDir(dir) {
				p.V1[c] = dir
			}
		}
		ids, err := p.Sweep(ctx, alive)
		swept, errs = append(swept, ids...), append(errs, err)
		if p.unused() > keepEmpty {
			p.removeEmpty()
		}
	}
	return swept, errors.Join(errs...)
}

// isBuild reports whether a name ends as a parent's does: in the 8 digits of a build.
func isBuild(rest string, found bool) bool {
	return found && len(rest) == 8 && strings.Trim(rest, "0123456789abcdef") == ""
}

// keepEmpty is how long another build's parent stays without leaves.
const keepEmpty = time.Hour

// unused is how long ago the parent had a leaf made or removed: see keepTimes.
func (p *Parent) unused() time.Duration {
	st, err := os.Lstat(p.Path)
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
