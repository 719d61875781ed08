package changes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"

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
// has only another mode or attributes, the object stays; one that has another
// owner was replaced, and the committer could not change the old one's mode.
func needsStage(e *Entry) bool {
	if e.New == nil || e.New.Type == Dir || e.New.Type == Socket || e.New.Type == Device {
		return false
	}
	return e.Old == nil || e.Old.Type != e.New.Type || e.New.Shared || e.Old.UID != e.New.UID || !sameContent(e.Old, e.New)
}

func (c *committer) stageOne(e *Entry) error {
	name := staged(e)
	switch e.New.Type {
	case Symlink:
		return errors.Join(unix.Symlinkat(string(e.New.Target), c.stage, name), c.group(e, name))
	case Fifo:
		return errors.Join(unix.Mkfifoat(c.stage, name, 0o600), unix.Fchmodat(c.stage, name, e.New.Mode&0o777, 0))
	}
	if c.linked(e) {
		return unix.Linkat(c.stage, strconv.Itoa(e.New.Link), c.stage, name, 0)
	}
	return c.stageFile(e, name)
}

func (c *committer) stageFile(e *Entry, name string) error {
	from, err := c.set.openBlob(e.New.SHA256)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := unix.Openat(c.stage, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	// The index is what was recorded and shown, and nothing else vouches for a content.
	digest, err := c.copy(to, from)
	if err == nil && digest != e.New.SHA256 {
		err = errors.New("its content in the change set is not the one that was recorded")
	}
	if err != nil {
		return err
	}
	return errors.Join(dress(to, e.New), c.group(e, name))
}

// copy copies a content and returns the digest of what was written. Blocks of zeros
// become holes, as in the change set. It is called for each of many small files:
// plain descriptors spare four system calls of the poller's.
func (c *committer) copy(to, from int) (string, error) {
	if c.buf == nil {
		c.buf, c.hash = make([]byte, 128<<10), sha256.New()
	}
	c.hash.Reset()
	size, end := int64(0), int64(0) // read so far; where the last block that was written ends
	for {
		n, err := unix.Read(from, c.buf)
		if err != nil {
			return "", os.NewSyscallError("read", err)
		}
		c.hash.Write(c.buf[:n])
		if n > 0 && !zeros(c.buf[:n]) { // the end is no block
			if err := writeAt(to, c.buf[:n], size); err != nil {
				return "", err
			}
			end = size + int64(n)
		}
		if size += int64(n); n < len(c.buf) { // a regular file's end; the digest would tell
			break
		}
	}
	if end < size {
		if err := unix.Ftruncate(to, size); err != nil {
			return "", os.NewSyscallError("ftruncate", err)
		}
	}
	return hex.EncodeToString(c.hash.Sum(nil)), nil
}

func writeAt(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if err != nil {
			return os.NewSyscallError("pwrite", err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// dress gives a new file its attributes, mode and time.
func dress(fd int, n *Node) error {
	if err := setXattrs(fd, n.Xattrs, nil); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, n.Mode&0o777); err != nil { // no set-id bit is ever committed
		return err
	}
	t := unix.NsecToTimespec(n.MTime)
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH)
}

// group gives a staged object the group that the run gave it, where the committer may.
func (c *committer) group(e *Entry, name string) error {
	err := unix.Fchownat(c.stage, name, -1, int(e.New.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.EPERM || err == unix.EINVAL {
		c.foreign[e.N] = true // see regroup
		return nil
	}
	return err
}

// setXattrs makes the attributes of fd those of want; have is what it has, as
// far as a change set knows.
func setXattrs(fd int, want, have map[string][]byte) error {
	for name := range have {
		if _, ok := want[name]; !ok && kept(name) {
			if err := unix.Fremovexattr(fd, name); err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP {
				return fmt.Errorf("attribute %q: %w", name, err)
			}
		}
	}
	for name, v := range want {
		if !kept(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, v, 0); err != nil && err != unix.EOPNOTSUPP {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	return nil
}
