package changes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxConflicts bounds a report.
const maxConflicts = 1000

// check compares the old side of every picked entry with the host.
func (c *committer) check() error {
	c.conflicts, c.moving = nil, map[place]bool{}
	m, err := statAt(c.top, "")
	if err != nil {
		return err
	}
	c.device, c.near = m.dev, 0
	if err := c.checkStage(); err != nil {
		return err
	}
	if err := c.checkMoves(); err != nil {
		return err
	}
	t := &tour{set: c.set, root: c.top, open: c.before, visit: c.checkOne}
	if err := t.run(c.root); err != nil {
		return err
	}
	if len(c.conflicts) > 0 && !c.o.Force {
		return &ConflictError{c.conflicts}
	}
	return nil
}

// checkStage refuses a tree in which the run made what has the name of the staging
// directory: new contents would mix with the ones that are committed.
func (c *committer) checkStage() error {
	for i := range c.set.Entries {
		if e := &c.set.Entries[i]; e.Parent == c.root.N && string(e.Name) == Stage(c.o.ID) && c.picked(e) {
			return fmt.Errorf("the run made %q, which has the name of commit's own directory: commit other paths by name", e.Name)
		}
	}
	return nil
}

func (c *committer) conflict(e *Entry, format string, a ...any) {
	if len(c.conflicts) < maxConflicts {
		c.conflicts = append(c.conflicts, Conflict{e.N, c.set.Path(e), fmt.Sprintf(format, a...)})
	}
}

// before is where a directory lies before anything was changed.
func (c *committer) before(dir int, e *Entry) (int, bool, error) {
	if len(e.From) > 0 && c.picked(e) {
		fd, err := openPath(c.top, e.From)
		return fd, true, err
	}
	fd, err := openDir(dir, e.Name)
	if err != nil || fd < 0 || e.Old != nil || e.New == nil {
		return fd, false, err
	}
	m, err := statAt(fd, "") // a directory that was made: what has its name now must go first
	if err != nil || c.moving[place{m.dev, m.ino}] || c.vacated(e) {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, false, nil
}

// checkMoves looks at the directories that are renamed: each must be there.
func (c *committer) checkMoves() error {
	for i := range c.set.Entries {
		e := &c.set.Entries[i]
		if !c.picked(e) || len(e.From) == 0 || c.set.RootOf(e) != c.root {
			continue
		}
		fd, err := openPath(c.top, e.From)
		if err != nil {
			return err
		}
		if fd < 0 {
			c.conflict(e, "%s, which was renamed, is gone", e.From)
			continue
		}
		m, err := statAt(fd, "")
		if err == nil {
			err = c.onDevice(fd, e)
		}
		unix.Close(fd)
		if err != nil {
			return err
		}
		c.moving[place{m.dev, m.ino}] = true
	}
	return nil
}

func (c *committer) checkOne(dir int, e *Entry) error {
	if !c.picked(e) {
		return nil
	}
	if dir < 0 && e.New != nil && !c.made(c.set.at(e.Parent)) {
		return c.inTheWay(e, "its directory is not there")
	}
	if dir < 0 && e.Old == nil {
		return nil
	}
	if err := c.reached(dir, e); err != nil {
		return err
	}
	var m meta
	err := unix.ENOENT
	if dir >= 0 {
		var serr error
		if m, serr = statAt(dir, string(e.Name)); serr != nil && serr != unix.ENOENT {
			return fmt.Errorf("%q: %w", c.set.Path(e), serr)
		} else if serr == nil {
			err = 0
		}
	}
	there := err == 0
	switch {
	case e.Old == nil && there:
		return c.checkFree(dir, e, &m)
	case e.Old == nil:
		return nil
	case !there && e.New == nil:
		return nil // deleted on both sides
	case !there:
		c.conflict(e, "it is gone")
		return nil
	}
	why, err2 := differs(dir, e, &m)
	if why == "" && m.nlink > 1 && e.New != nil && e.New.Type == File && !needsStage(e) && e.Op() != Touched {
		why = fmt.Sprintf("it has %d names (hard links), and its mode or attributes would change for all of them", m.nlink)
	}
	if why == "" && e.Old.Type == File && (e.New == nil || needsStage(e)) && openForWriting(dir, string(e.Name)) {
		why = beingWritten
	}
	if why != "" {
		c.conflict(e, "%s", why)
	}
	if err2 == nil && e.Old.Type == Dir && (e.New == nil || e.New.Type != Dir) {
		err2 = c.checkEmptied(dir, e)
	}
	if err2 == nil && m.typ() == Dir && e.Old.Type != Dir && e.New != nil {
		err2 = c.inTheWay(e, "a directory is in its place")
	}
	return err2
}

// made reports a directory that the commit makes.
func (c *committer) made(e *Entry) bool {
	return c.picked(e) && len(e.From) == 0 && e.New != nil && e.New.Type == Dir && (e.Old == nil || e.Old.Type != Dir)
}

// inTheWay is a conflict that force does not go over: the commit would come to it when
// others of its acts are done, and never to its end.
func (c *committer) inTheWay(e *Entry, why string) error {
	if c.o.Force {
		return fmt.Errorf("%q: %s: mend that on the host, or name other paths", c.set.Path(e), why)
	}
	c.conflict(e, "%s", why)
	return nil
}

// reached refuses what no rename leads to from the staging directory.
func (c *committer) reached(dir int, e *Entry) error {
	if dir < 0 || e.Parent == c.near || e.New != nil && !needsStage(e) && len(e.From) == 0 {
		return nil
	}
	err := c.onDevice(dir, e)
	if err == nil {
		c.near = e.Parent
	}
	return err
}

func (c *committer) onDevice(dir int, e *Entry) error {
	m, err := statAt(dir, "")
	if err == nil && m.dev != c.device {
		err = fmt.Errorf("%q lies on another file system or subvolume than the top of the tree: name other paths, or stage it by itself: --cow DIR", c.set.Path(e))
	}
	return err
}

// checkFree judges a name that is taken although the run found it free.
func (c *committer) checkFree(dir int, e *Entry, m *meta) error {
	switch {
	case c.moving[place{m.dev, m.ino}]:
		return nil // it is renamed away first
	case c.vacated(e):
		return nil // its old side is an entry of its own
	case e.New.Type == Dir && m.typ() == Dir && len(e.From) == 0:
		return nil // both made it
	}
	if e.New.Type == Dir || m.typ() == Dir {
		return c.inTheWay(e, "it was made on the host too, as a "+string(m.typ()))
	}
	same := Entry{Name: e.Name, Old: e.New}
	why, err := differs(dir, &same, m)
	if why != "" {
		c.conflict(e, "it was made on the host too")
	}
	return err
}

// vacated reports that the entry before e's own tree is a picked deletion of
// the same name.
func (c *committer) vacated(e *Entry) bool {
	for n := e.N - 1; n > e.Parent; n-- {
		o := c.set.at(n)
		if o.Parent == e.Parent {
			return string(o.Name) == string(e.Name) && o.New == nil && o.Old != nil && c.picked(o)
		}
	}
	return false
}

// differs says how the host's object differs from an entry's old side; "" when
// it does not. The content is read only where the identity has changed.
func differs(dir int, e *Entry, m *meta) (string, error) {
	o := e.Old
	if m.typ() != o.Type {
		return "it is a " + string(m.typ()) + " now", nil
	}
	switch o.Type {
	case Symlink:
		t, err := readLink(dir, string(e.Name))
		if err == nil && string(t) != string(o.Target) {
			return "the link leads elsewhere now", nil
		}
		return "", err
	case File:
	default:
		return "", nil
	}
	if o.Ino != 0 && m.ino == o.Ino && m.dev == o.Dev && m.ctime == o.CTime && m.size == o.Size {
		return "", nil
	}
	if m.size != o.Size {
		return fmt.Sprintf("its size is %d now, and was %d", m.size, o.Size), nil
	}
	if o.SHA256 == "" {
		return "it was changed, and the old content is not known", nil
	}
	digest, err := digestAt(dir, string(e.Name))
	if err == nil && digest != o.SHA256 {
		return "its content was changed", nil
	}
	return "", err
}

func digestAt(dir int, name string) (string, error) {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return digestOf(f)
}

func digestOf(f *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// checkEmptied looks for names in a deleted directory that the run did not see.
func (c *committer) checkEmptied(dir int, e *Entry) error {
	fd, err := openDir(dir, e.Name)
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	names, err := sortedNames(fd)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for n := e.N; n < len(c.set.Entries) && c.set.Entries[n].Parent >= e.N; n++ {
		if o := &c.set.Entries[n]; o.Parent == e.N && o.Old != nil {
			known[string(o.Name)] = c.picked(o)
		}
	}
	for _, name := range names {
		goes, seen := known[name]
		if goes {
			continue
		}
		m, err := statAt(fd, name)
		if err != nil || c.moving[place{m.dev, m.ino}] {
			continue
		}
		why := "was made in it"
		if seen {
			why = "stays in it"
		}
		if why = fmt.Sprintf("%q %s", name, why); e.New != nil { // of a deletion force leaves what is not empty
			return c.inTheWay(e, why)
		}
		c.conflict(e, "%s", why)
		return nil
	}
	return nil
}
