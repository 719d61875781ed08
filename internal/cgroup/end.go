package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Condemn kills everything in the leaf and does not wait: a task in there may
// still be inside a system call, and does not come out of it. cgroup.kill (5.14)
// reaches what forks meanwhile. Nothing can be born into the leaf afterwards. A
// leaf that is gone is an empty one.
func (l *Leaf) Condemn() error {
	if l == nil {
		return nil
	}
	if empty, err := l.empty(); empty || err != nil {
		return err
	}
	if err := write(l.Path, "cgroup.kill", "1"); err != nil && !gone(err) {
		return err
	}
	return nil
}

// empty reports whether no process is left.
func (l *Leaf) empty() (bool, error) {
	populated, err := first(keyed(l.Path, "cgroup.events", "populated"))
	if gone(err) {
		return true, nil
	}
	return populated == 0, err
}

// Kill condemns the leaf and waits until the kernel says that it is empty, which
// needs no reaping.
func (l *Leaf) Kill(ctx context.Context) error {
	if l == nil {
		return nil
	}
	if err := l.Condemn(); err != nil {
		return err
	}
	// Polled, not waited for with poll(2): the kernel holds its notices back for 10 ms.
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		if empty, err := l.empty(); empty || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s still has processes after cgroup.kill: %w", l.Path, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// gone reports whether err says that the cgroup was removed, before its file
// was opened or after.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// Remove removes the leaf's directories, which must be empty; those that are
// gone do not matter. A directory is busy for a moment after its last task
// died, so it is tried again for as long as limit.
func (l *Leaf) Remove(limit time.Duration) error {
	if l == nil {
		return nil
	}
	var err error
	for _, f := range []**os.File{&l.dir, &l.freezer, &l.lock} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(err, removeAll(l.dirs(), limit))
}

func removeAll(dirs []string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeDir(dir, deadline))
	}
	return errors.Join(errs...)
}

func removeDir(dir string, deadline time.Time) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil || err == unix.ENOENT:
			return nil
		case err != unix.EBUSY && err != unix.EINTR || time.Now().After(deadline):
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		time.Sleep(wait)
	}
}

// Sweep kills and removes the leaves whose supervisor is dead: those for whose
// id alive says no. It returns the ids of those that are gone. One that cannot
// be killed before ctx ends (a task in an uninterruptible wait) is in the error
// and does not keep the others.
//
// A supervisor must be alive before it makes its leaf and until it has removed it.
func (p *Parent) Sweep(ctx context.Context, alive func(id string) bool) ([]string, error) {
	return p.sweep(ctx, sweeper{alive: alive})
}

// sweeper says of ids whose leaves stay, and whose go although they are held (nil: none).
type sweeper struct{ alive, spare func(id string) bool }

func (p *Parent) sweep(ctx context.Context, s sweeper) ([]string, error) {
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	var swept []string
	var errs []error
	for _, id := range ids {
		if s.alive(id) {
			continue
		}
		gone, err := p.sweepLeaf(ctx, id, s.spare != nil && s.spare(id))
		if gone {
			swept = append(swept, id)
		}
		errs = append(errs, err)
	}
	return swept, errors.Join(errs...)
}

// sweepLeaf removes a leaf, unless somebody holds it and it is not spare. One of which only directories
// in v1 hierarchies are left is nobody's; a delegated parent has none.
func (p *Parent) sweepLeaf(ctx context.Context, id string, spare bool) (bool, error) {
	l := p.leaf(id)
	f, err := l.take()
	if err != nil && !spare && (p.prefix != "" || !gone(err)) {
		return false, nil // held, or gone meanwhile
	}
	if err == nil {
		defer f.Close()
	}
	if err := l.Kill(ctx); err != nil {
		return false, err
	}
	err = l.Remove(time.Second)
	return err == nil, err
}

// ids returns the runs that have a leaf in any hierarchy.
func (p *Parent) ids() ([]string, error) {
	var ids []string
	seen := map[string]bool{}
	for _, dir := range []string{p.Path, p.V1[Memory], p.V1[Pids]} {
		if dir == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed in part, see parents
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			id, ok := strings.CutSuffix(e.Name(), suffix)
			id, ours := strings.CutPrefix(id, p.prefix)
			if ok && ours && e.IsDir() && !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}
