package changes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// staged is the name of an entry's new side in the staging directory.
func staged(e *Entry) string { return strconv.Itoa(e.N) }

// prepare writes everything that is new into the staging directory.
func (c *committer) prepare() error {
	c.step("make the staging directory")
	err := unix.Mkdirat(c.top, Stage(c.o.ID), 0o700)
	if err == unix.EACCES || err == unix.EPERM {
		return fmt.Errorf("the top directory %q is not writable for user %d: %w", c.root.Name, os.Geteuid(), err)
	}
	if err != nil {
		return fmt.Errorf("staging directory: %w", err)
	}
	if c.stage, err = openBeneath(c.top, Stage(c.o.ID), unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("staging directory: %w", err)
	}
	for i := range c.set.Entries {
		e := &c.set.Entries[i]
		if c.picked(e) && c.set.RootOf(e) == c.root && needsStage(e) {
			c.step("stage " + staged(e))
			if err := c.stageOne(e); err != nil {
				return fmt.Errorf("%q: %w", c.set.Path(e), err)
			}
		}
	}
	return c.sync()
}

// needsStage reports an entry whose new side is a new object. Of a file that
// has only another mode or attributes, the object stays.
func needsStage(e *Entry) bool {
	if e.New == nil || e.New.Type == Dir || e.New.Type == Socket || e.New.Type == Device {
		return false
	}
	return e.Old == nil || e.Old.Type != e.New.Type || e.New.Shared || !sameContent(e.Old, e.New)
}

func (c *committer) stageOne(e *Entry) error {
	name := staged(e)
	switch e.New.Type {
	case Symlink:
		return errors.Join(unix.Symlinkat(string(e.New.Target), c.stage, name), c.own(e, name))
	case Fifo:
		return errors.Join(unix.Mkfifoat(c.stage, name, 0o600), unix.Fchmodat(c.stage, name, e.New.Mode&0o777, 0))
	}
	if n := e.New.Link; n > 0 && c.picks[n-1] && needsStage(c.set.at(n)) {
		return unix.Linkat(c.stage, strconv.Itoa(n), c.stage, name, 0)
	}
	return c.stageFile(e, name)
}

func (c *committer) stageFile(e *Entry, name string) error {
	from, err := c.set.Blob(e.New.SHA256)
	if err != nil {
		return err
	}
	defer from.Close()
	fd, err := unix.Openat(c.stage, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), name)
	defer to.Close()
	if err := copySparse(to, from, e.New.Size); err != nil {
		return err
	}
	if err := setXattrs(fd, e.New.Xattrs, nil); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, e.New.Mode&0o777); err != nil { // no set-id bit is ever committed
		return err
	}
	t := unix.NsecToTimespec(e.New.MTime)
	if err := unix.UtimesNanoAt(c.stage, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return c.own(e, name) // last: a file that was given away can no longer be changed
}

// copySparse copies size bytes and leaves holes where the source has them.
func copySparse(to, from *os.File, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // only a hole is left
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if hole = min(hole, size); data >= hole {
			break
		}
		if _, err := from.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, hole-data); err != nil {
			return err
		}
		at = hole
	}
	return to.Truncate(size)
}

// own gives a staged object the group that the run gave it, where the committer
// may, and the owner that the old one had, where it may do that.
func (c *committer) own(e *Entry, name string) error {
	uid := -1
	if e.Old != nil {
		uid = int(e.Old.UID)
	}
	for _, ids := range [][2]int{{uid, int(e.New.GID)}, {-1, int(e.New.GID)}} {
		err := unix.Fchownat(c.stage, name, ids[0], ids[1], unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			return nil
		}
		if err != unix.EPERM && err != unix.EINVAL {
			return err
		}
	}
	return nil // it belongs to whom it was committed by
}

// setXattrs makes the attributes of fd those of want; have is what it has, as
// far as a change set knows.
func setXattrs(fd int, want, have map[string][]byte) error {
	for name := range have {
		if _, ok := want[name]; !ok && kept(name) {
			if err := unix.Fremovexattr(fd, name); err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	for name, v := range want {
		if !kept(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, v, 0); err != nil && err != unix.EOPNOTSUPP {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

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
	return unix.Renameat2(dir, name, c.stage, staged(e), unix.RENAME_NOREPLACE)
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
		return c.unlink(dir, e)
	}
	t.leave = func(dir int, e *Entry) error {
		if dir < 0 || !gone(e) || e.Old.Type != Dir {
			return nil
		}
		c.step("rmdir " + staged(e))
		err := unix.Unlinkat(dir, string(e.Name), unix.AT_REMOVEDIR)
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

// unlink removes a name whose object is what the run saw.
func (c *committer) unlink(dir int, e *Entry) error {
	m, err := statAt(dir, string(e.Name))
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return c.wrap(e, err)
	}
	if why, err := differs(dir, e, &m); err != nil || why != "" && !c.o.Force {
		return c.wrap(e, errors.Join(err, conflictNow(why)))
	}
	if m.typ() == Dir {
		return nil // only with Force, which does not remove trees that the run did not see
	}
	c.step("unlink " + staged(e))
	return c.wrap(e, unix.Unlinkat(dir, string(e.Name), 0))
}

// conflictNow is a change of the host between the check and the act.
func conflictNow(why string) error {
	if why == "" {
		return nil
	}
	return errors.New("changed while it was committed: " + why)
}

// place moves what is staged into place, parents first, and sets the modes of
// directories last.
func (c *committer) place() error {
	t := &tour{set: c.set, root: c.top, open: c.after, visit: c.placeOne}
	t.leave = func(dir int, e *Entry) error {
		if dir < 0 || !c.picked(e) || e.New == nil || e.New.Type != Dir {
			return nil
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
	return nil
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
		err := unix.Renameat2(c.stage, staged(e), dir, name, unix.RENAME_NOREPLACE)
		if err == unix.ENOENT { // done before
			err = nil
		}
		return c.wrap(e, err)
	case e.New.Type == Dir:
		if e.Old != nil && e.Old.Type == Dir {
			return nil
		}
		c.step("mkdir " + staged(e))
		if err := unix.Mkdirat(dir, name, 0o700); err != nil && err != unix.EEXIST {
			return c.wrap(e, err)
		}
		return nil
	case needsStage(e):
		return c.wrap(e, c.moveIn(dir, e, name))
	case e.New.Type == File && e.Old != nil:
		c.step("settle " + staged(e))
		return c.wrap(e, c.settle(dir, name, e.Old, e.New))
	}
	return nil
}

// moveIn renames a staged object over what was there.
func (c *committer) moveIn(dir int, e *Entry, name string) error {
	if _, err := statAt(c.stage, staged(e)); err == unix.ENOENT {
		return nil // done before
	}
	flags := uint(unix.RENAME_NOREPLACE)
	m, err := statAt(dir, name)
	if err != nil && err != unix.ENOENT {
		return err
	}
	if err == nil {
		old := e.Old
		if old == nil || old.Type != e.New.Type {
			old = e.New // the same was made on the host
		}
		if why, err := differs(dir, &Entry{Name: e.Name, Old: old}, &m); err != nil || why != "" && !c.o.Force {
			return errors.Join(err, conflictNow(why))
		}
		flags = 0
	}
	c.step("move in " + staged(e))
	if err := unix.Renameat2(c.stage, staged(e), dir, name, flags); err != nil {
		return err
	}
	// Between two names of one file rename(2) does nothing.
	return ignoreNotExist(unix.Unlinkat(c.stage, staged(e), 0))
}

// settle sets mode, group and attributes of an object that stays.
func (c *committer) settle(dir int, name string, old, now *Node) error {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == unix.EACCES { // a mode without reading: only the mode can be set
		return c.chmodPath(dir, name, now)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
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
	if err := unix.Fchmod(fd, now.Mode&modeBits(now)); err != nil {
		return err
	}
	if now.Type != File {
		return nil
	}
	t := unix.NsecToTimespec(now.MTime)
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
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
	fd, err := openBeneath(dir, name, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), now.Mode&modeBits(now))
}
