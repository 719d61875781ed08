package changes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// moveOut moves renamed directories into the staging directory, the deepest
// first, so that each still has its old path.
func (c *committer) moveOut() error {
	var moves []*Entry
	for i := range c.set.Entries {
		if e := &c.set.Entries[i]; len(e.From) > 0 && c.picked(e) && c.set.RootOf(e) == c.root {
			moves = append(moves, e)
		}
	}
	depth := func(e *Entry) int { return strings.Count(string(e.From), "/") }
	slices.SortStableFunc(moves, func(a, b *Entry) int { return depth(b) - depth(a) })
	for _, e := range moves {
		if _, err := statAt(c.stage, staged(e)); err == nil {
			continue
		}
		c.step("move out " + staged(e))
		if err := c.moveOne(e); err != nil {
			return fmt.Errorf("rename of %q: %w", e.From, err)
		}
	}
	return nil
}

func (c *committer) moveOne(e *Entry) error {
	parts := splitPath(e.From)
	dir, err := unix.Openat(c.top, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if n := len(e.From) - len(parts[len(parts)-1]); n > 0 {
		unix.Close(dir)
		if dir, err = openPath(c.top, e.From[:n-1]); err != nil {
			return err
		}
	}
	if dir < 0 {
		return c.forced()
	}
	defer unix.Close(dir)
	name := string(parts[len(parts)-1])
	m, err := statAt(dir, name)
	if err == unix.ENOENT || err == nil && m.typ() != Dir {
		return c.forced()
	}
	if err != nil {
		return err
	}
	return renameFree(dir, name, c.stage, staged(e))
}

// forced is the answer to something that is not there: with Force its place
// is filled as far as can be.
func (c *committer) forced() error {
	if c.o.Force {
		return nil
	}
	return unix.ENOENT
}

// between is where a directory lies when the renamed ones are in the staging directory.
func (c *committer) between(dir int, e *Entry) (int, bool, error) {
	if len(e.From) > 0 && c.picked(e) {
		fd, err := openDir(c.stage, []byte(staged(e)))
		return fd, true, err
	}
	if e.Old == nil && e.New != nil && c.picked(e) {
		return -1, false, nil
	}
	fd, err := openDir(dir, e.Name)
	return fd, false, err
}

// remove makes the deletions, each directory after what is in it.
func (c *committer) remove() error {
	gone := func(e *Entry) bool {
		return c.picked(e) && e.Old != nil && (e.New == nil || e.New.Type != e.Old.Type)
	}
	t := &tour{set: c.set, root: c.top, open: c.between}
	t.visit = func(dir int, e *Entry) error {
		if dir < 0 || !gone(e) || e.Old.Type == Dir {
			return nil
		}
		return c.wrap(e, c.unlink(dir, e))
	}
	t.leave = func(dir int, e *Entry) error {
		if dir < 0 || !gone(e) || e.Old.Type != Dir {
			return nil
		}
		c.step("rmdir " + staged(e))
		err := c.write(dir, e, func() error { return unix.Unlinkat(dir, string(e.Name), unix.AT_REMOVEDIR) })
		if err == unix.ENOENT || c.o.Force && (err == unix.ENOTEMPTY || err == unix.ENOTDIR) {
			return nil
		}
		return c.wrap(e, err)
	}
	return t.run(c.root)
}

func (c *committer) wrap(e *Entry, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", c.set.Path(e), err)
}

// conflictNow is a change of the host between the check and the act.
func conflictNow(why string) error {
	if why == "" {
		return nil
	}
	return errors.New("changed while it was committed: " + why + " (--force goes over it)")
}

// place moves what is staged into place, parents first, and sets the modes of
// directories last.
func (c *committer) place() error {
	t := &tour{set: c.set, root: c.top, open: c.after, visit: c.placeOne}
	t.leave = func(dir int, e *Entry) error {
		if dir < 0 || !c.picked(e) || e.New == nil || e.New.Type != Dir {
			return c.wrap(e, c.restore(dir, string(e.Name), e))
		}
		old := e.Old
		if len(e.From) > 0 {
			old = e.Base
		}
		return c.wrap(e, c.settle(dir, string(e.Name), old, e.New))
	}
	if err := t.run(c.root); err != nil {
		return err
	}
	if c.picked(c.root) && c.root.New != nil {
		return c.wrap(c.root, c.settle(c.top, ".", c.root.Old, c.root.New))
	}
	return c.restore(c.top, ".", c.root)
}

// write does something in the directory dir, that of e. A run may have made a
// directory writable, changed what is in it and taken the right away again, or
// deleted it: the owner can do the same.
func (c *committer) write(dir int, e *Entry, act func() error) error {
	err := act()
	if err != unix.EACCES {
		return err
	}
	m, serr := statAt(dir, "")
	if serr != nil || int(m.uid) != os.Geteuid() || m.mode&0o300 == 0o300 {
		return err
	}
	if _, known := c.opened[e.Parent]; !known {
		c.opened[e.Parent] = m.mode & 0o7777
		if err := appendRecord(c.o.Journal, record{State: stateOpened, Root: c.root.N, Dir: e.Parent, Mode: m.mode & 0o7777}); err != nil {
			return err
		}
	}
	c.step("open " + strconv.Itoa(e.Parent))
	if err := unix.Fchmod(dir, m.mode&0o7777|0o700); err != nil {
		return err
	}
	return act()
}

// restore gives a directory that write has opened the mode back that it had.
func (c *committer) restore(dir int, name string, e *Entry) error {
	mode, ok := c.opened[e.N]
	if !ok || dir < 0 {
		return nil
	}
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == unix.ENOENT { // deleted
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, mode)
}

func (c *committer) after(dir int, e *Entry) (int, bool, error) {
	if e.New == nil && e.Old != nil && c.picked(e) {
		return -1, false, nil
	}
	fd, err := openDir(dir, e.Name)
	return fd, false, err
}

func (c *committer) placeOne(dir int, e *Entry) error {
	if !c.picked(e) || e.New == nil {
		return nil
	}
	if dir < 0 {
		return c.wrap(e, errors.New("its directory is not there"))
	}
	name := string(e.Name)
	switch {
	case len(e.From) > 0:
		c.step("move in " + staged(e))
		err := c.write(dir, e, func() error { return renameFree(c.stage, staged(e), dir, name) })
		if err == unix.ENOENT { // done before
			err = nil
		}
		return c.wrap(e, err)
	case e.New.Type == Dir:
		if e.Old != nil && e.Old.Type == Dir {
			return nil
		}
		c.step("mkdir " + staged(e))
		if err := c.write(dir, e, func() error { return unix.Mkdirat(dir, name, e.New.Mode&0o777|0o700) }); err != nil && err != unix.EEXIST {
			return c.wrap(e, err)
		}
		return nil
	case needsStage(e):
		return c.wrap(e, c.moveIn(dir, e, name))
	case e.New.Type == File && e.Old != nil:
		c.step("settle " + staged(e))
		return c.wrap(e, c.settleFile(dir, name, e))
	}
	return nil
}

// settleFile settles a file that stays. Only what the run saw gets its new mode:
// whoever may write the directory could have put another file of the owner's there.
func (c *committer) settleFile(dir int, name string, e *Entry) error {
	m, err := statAt(dir, name)
	if err != nil {
		return err
	}
	why, err := differs(dir, &Entry{Name: e.Name, Old: e.Old}, &m)
	if err != nil || why != "" && !c.o.Force {
		return errors.Join(err, conflictNow(why))
	}
	c.only = place{m.dev, m.ino}
	defer func() { c.only = place{} }()
	return c.settle(dir, name, e.Old, e.New)
}

// settle sets mode, group and attributes of an object that stays.
func (c *committer) settle(dir int, name string, old, now *Node) error {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|onlyDir(now), 0)
	if err == unix.EACCES { // a mode without reading: only the mode can be set
		return c.chmodPath(dir, name, now)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := c.sameAs(fd); err != nil {
		return err
	}
	if old == nil || old.GID != now.GID {
		if err := unix.Fchown(fd, -1, int(now.GID)); err != nil && err != unix.EPERM && err != unix.EINVAL {
			return err
		}
	}
	var have map[string][]byte
	if old != nil {
		have = old.Xattrs
	}
	if err := setXattrs(fd, now.Xattrs, have); err != nil {
		return err
	}
	// What is right is left alone: the set-group-id bit of a directory that inherited it is lost in a chmod by
	// who is not in that group (fs/attr.c, setattr_prepare).
	m, err := statAt(fd, "")
	if mode := now.Mode & modeBits(now); err == nil && m.mode&0o7777 != mode {
		err = unix.Fchmod(fd, mode)
	}
	if err == unix.EPERM && now.Type == Dir && old != nil && old.UID != now.UID {
		return nil // another user's directory, which was replaced by one of its name: it stays that user's, as it is
	}
	if err != nil {
		return err
	}
	if now.Type != File {
		return nil
	}
	t := unix.NsecToTimespec(now.MTime)
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH)
}

// sameAs refuses another object than settleFile has looked at.
func (c *committer) sameAs(fd int) error {
	if c.only == (place{}) {
		return nil
	}
	m, err := statAt(fd, "")
	if err == nil && c.only != (place{m.dev, m.ino}) {
		err = conflictNow("it was replaced")
	}
	return err
}

// onlyDir has a directory's mode and attributes given to nothing else that has its name by now.
func onlyDir(n *Node) int {
	if n.Type == Dir {
		return unix.O_DIRECTORY
	}
	return 0
}

// modeBits are the bits of a mode that are committed: a directory may pass on
// its group and be sticky, nothing may change ids on execution.
func modeBits(n *Node) uint32 {
	if n.Type == Dir {
		return 0o777 | unix.S_ISGID | unix.S_ISVTX
	}
	return 0o777
}

func (c *committer) chmodPath(dir int, name string, now *Node) error {
	fd, err := openBeneath(dir, name, unix.O_PATH|onlyDir(now), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := c.sameAs(fd); err != nil {
		return err
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), now.Mode&modeBits(now))
}
