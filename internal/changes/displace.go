package changes

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Nothing of the host is destroyed under its own name. A file that is replaced is
// exchanged with the new one (renameat2(2), RENAME_EXCHANGE), one that is deleted is
// moved into the staging directory; only then is it compared for the last time, out
// of reach of who edits by name, and who has it open for writing is asked for (a
// lease, fcntl(2)). An edit that came between the look before and the act is so seen
// and goes back to its place.
//
// In the staging directory an entry N has the names
//
//	N      its new side; after the exchange what the host had
//	N.new  a second name of the new side, by which a crash on either side of the exchange is told apart
//	N.old  what the host had, of a deletion
//
// File systems without hard links or exchanges (NFS, some of FUSE) keep a window of
// some microseconds between the look and the rename.

func twin(e *Entry) string  { return staged(e) + ".new" }
func taken(e *Entry) string { return staged(e) + ".old" }

// moveIn gives a staged object its name.
func (c *committer) moveIn(dir int, e *Entry, name string) error {
	over, err := c.wasExchanged(e)
	switch {
	case err == unix.ENOENT: // done before
		return ignoreNotExist(unix.Unlinkat(c.stage, twin(e), 0))
	case err != nil:
		return err
	case over:
		return c.exchanged(dir, e, name)
	}
	if err := c.regroup(dir, e); err != nil {
		return err
	}
	m, err := statAt(dir, name)
	switch {
	case err == unix.ENOENT && e.Old != nil && e.Old.Type == e.New.Type && !c.o.Force:
		return conflictNow("it is gone")
	case err == unix.ENOENT:
		return c.fill(dir, e, name)
	case err != nil:
		return err
	}
	if why, err := differs(dir, &Entry{Name: e.Name, Old: expected(e)}, &m); err != nil || why != "" && !c.o.Force {
		return errors.Join(err, conflictNow(why))
	}
	return c.exchange(dir, e, name)
}

// wasExchanged reports that a commit was killed between an exchange and the judgement.
func (c *committer) wasExchanged(e *Entry) (bool, error) {
	if c.fresh {
		return false, nil
	}
	now, err := statAt(c.stage, staged(e))
	if err != nil {
		return false, err
	}
	second, err := statAt(c.stage, twin(e))
	if err == unix.ENOENT {
		return false, nil
	}
	return second.ino != now.ino || second.dev != now.dev, err
}

// expected is what the host should have where e's new side goes.
func expected(e *Entry) *Node {
	if e.Old == nil || e.Old.Type != e.New.Type {
		return e.New // the same was made on the host
	}
	return e.Old
}

// fill moves a staged object to a name that is free.
func (c *committer) fill(dir int, e *Entry, name string) error {
	if err := c.give(e); err != nil {
		return err
	}
	c.step("move in " + staged(e))
	err := c.write(dir, e, func() error { return renameFree(c.stage, staged(e), dir, name) })
	if err == unix.EEXIST {
		err = conflictNow("it was made on the host too")
	}
	if c.fresh {
		return err
	}
	return errors.Join(err, ignoreNotExist(unix.Unlinkat(c.stage, twin(e), 0)))
}

// exchange puts a staged object in the place of what the host has.
func (c *committer) exchange(dir int, e *Entry, name string) error {
	c.step("link " + staged(e))
	err := unix.Linkat(c.stage, staged(e), c.stage, twin(e), 0)
	two := err == nil || err == unix.EEXIST
	if err := c.give(e); err != nil {
		return err
	}
	c.step("exchange " + staged(e))
	if two {
		err = c.swap(dir, e, name)
	}
	switch {
	case !two || err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP:
		err = c.write(dir, e, func() error { return unix.Renameat(c.stage, staged(e), dir, name) })
		return errors.Join(err, ignoreNotExist(unix.Unlinkat(c.stage, twin(e), 0)))
	case err == unix.ENOENT:
		return conflictNow("it is gone")
	case err != nil:
		return err
	}
	return c.exchanged(dir, e, name)
}

func (c *committer) swap(dir int, e *Entry, name string) error {
	return c.write(dir, e, func() error { return unix.Renameat2(c.stage, staged(e), dir, name, unix.RENAME_EXCHANGE) })
}

// exchanged judges what came out of an exchange: it is removed, or put back.
func (c *committer) exchanged(dir int, e *Entry, name string) error {
	c.step("judge " + staged(e))
	ok, err := c.judge(staged(e), expected(e))
	if ok {
		c.step("remove the old " + staged(e))
		return errors.Join(unix.Unlinkat(c.stage, staged(e), 0), unix.Unlinkat(c.stage, twin(e), 0))
	}
	if back := c.swap(dir, e, name); back != nil {
		err = fmt.Errorf("%w; what the host had lies at %s/%s: %w", err, Stage(c.o.ID), staged(e), back)
	}
	return err
}

// judge looks for the last time at what was taken from the host, and reports
// whether it may go. The error says why not.
func (c *committer) judge(name string, old *Node) (bool, error) {
	m, err := statAt(c.stage, name)
	if err != nil {
		return false, err
	}
	why, err := c.differsStill(name, old, &m)
	if err != nil {
		return false, err
	}
	if why == "" || c.o.Force && m.typ() != Dir { // a tree that the run did not see is never removed
		return true, nil
	}
	return false, conflictNow(why)
}

// differsStill is differs for something whose time of change is that of a rename:
// its content is read.
func (c *committer) differsStill(name string, old *Node, m *meta) (string, error) {
	entry := Entry{Name: []byte(name), Old: old}
	if m.typ() != File || old.Type != File {
		return differs(c.stage, &entry, m)
	}
	fd, err := openBeneath(c.stage, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == unix.EACCES || old.SHA256 == "" { // not the owner's to read: it is known by its identity
		closeFD(fd)
		if m.ino == old.Ino && m.dev == old.Dev && m.size == old.Size && m.mtime == old.MTime {
			return "", nil
		}
		return "it was changed, and its content cannot be read", nil
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if writtenTo(fd) {
		return beingWritten, nil
	}
	digest, err := digestOf(f)
	if err == nil && digest != old.SHA256 {
		return "its content was changed", nil
	}
	return "", err
}

const beingWritten = "a process has it open for writing"

// writtenTo reports that somebody has the file open for writing, or mapped so: no
// lease for reading is given then. Where none is given to anybody (NFS), or the
// file is another user's, it cannot be told.
func writtenTo(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	return err == unix.EAGAIN
}

// openForWriting looks before anything is done.
func openForWriting(dir int, name string) bool {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return writtenTo(fd)
}

// unlink removes a name whose object is what the run saw.
func (c *committer) unlink(dir int, e *Entry) error {
	if !c.fresh {
		if _, err := statAt(c.stage, taken(e)); err == nil { // killed before it was judged
			return c.removeTaken(dir, e)
		}
	}
	name := string(e.Name)
	m, err := statAt(dir, name)
	if err != nil {
		return ignoreNotExist(err)
	}
	if why, err := differs(dir, e, &m); err != nil || why != "" && !c.o.Force {
		return errors.Join(err, conflictNow(why))
	}
	switch m.typ() {
	case Dir:
		return nil // only with Force, which does not remove trees that the run did not see
	case File, Symlink:
	default: // no content that could be lost, and Landlock lets nobody move a device
		c.step("unlink " + staged(e))
		return ignoreNotExist(c.write(dir, e, func() error { return unix.Unlinkat(dir, name, 0) }))
	}
	c.step("take out " + staged(e))
	err = c.write(dir, e, func() error { return renameFree(dir, name, c.stage, taken(e)) })
	if err != nil {
		return ignoreNotExist(err)
	}
	return c.removeTaken(dir, e)
}

func (c *committer) removeTaken(dir int, e *Entry) error {
	c.step("judge " + taken(e))
	ok, err := c.judge(taken(e), e.Old)
	if ok {
		c.step("unlink " + taken(e))
		return unix.Unlinkat(c.stage, taken(e), 0)
	}
	back := c.write(dir, e, func() error { return renameFree(c.stage, taken(e), dir, string(e.Name)) })
	if back != nil {
		err = fmt.Errorf("%w; it lies at %s/%s: %w", err, Stage(c.o.ID), taken(e), back)
	}
	return err
}

// renameFree renames to a name that must be free. File systems without
// RENAME_NOREPLACE have it looked at before.
func renameFree(from int, old string, to int, name string) error {
	err := unix.Renameat2(from, old, to, name, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	switch _, err := statAt(to, name); err {
	case unix.ENOENT:
		return unix.Renameat(from, old, to, name)
	case nil:
		return unix.EEXIST
	default:
		return err
	}
}

// give gives a staged object the owner that the old one had, where the committer
// may. Nobody can change it afterwards, so it is the last thing before its move.
func (c *committer) give(e *Entry) error {
	if e.Old == nil || c.linked(e) || int(e.Old.UID) == os.Geteuid() {
		return nil
	}
	err := unix.Fchownat(c.stage, staged(e), int(e.Old.UID), -1, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.EPERM || err == unix.EINVAL {
		return nil // it belongs to whom it was committed by
	}
	return err
}

// linked reports an entry whose staged object is another name of an earlier one's.
func (c *committer) linked(e *Entry) bool {
	n := e.New.Link
	return n > 0 && c.picks[n-1] && needsStage(c.set.at(n))
}

// regroup gives a staged file the group of the directory that it goes to, where
// that one hands its group down (set-group-id). The committer need be no member
// of it, as nobody who makes a file there need be: it is made there once more,
// without a name. Files of several names keep the group that they have.
func (c *committer) regroup(dir int, e *Entry) error {
	if c.fresh && !c.foreign[e.N] || e.New.Type != File || e.New.Shared {
		return nil
	}
	if _, err := statAt(c.stage, twin(e)); err == nil {
		return nil // it was, before a crash
	}
	now, err := statAt(c.stage, staged(e))
	if err != nil || now.gid == e.New.GID {
		return err
	}
	d, err := statAt(dir, "")
	if err != nil || d.mode&unix.S_ISGID == 0 || d.gid != e.New.GID {
		return err
	}
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil // not writable, or a file system without such files: it keeps the committer's group
	}
	defer unix.Close(fd)
	from, err := openBeneath(c.stage, staged(e), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if _, err := c.copy(fd, from); err != nil {
		return err
	}
	if err := errors.Join(dress(fd, e.New), unix.Fsync(fd)); err != nil {
		return err
	}
	grouped := staged(e) + ".group"
	if err := ignoreNotExist(unix.Unlinkat(c.stage, grouped, 0)); err != nil {
		return err
	}
	c.step("regroup " + staged(e))
	if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), c.stage, grouped, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	return unix.Renameat(c.stage, grouped, c.stage, staged(e))
}
