package changes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// name compares both sides of one name.
func (p *packer) name(f *frame, name string) error {
	if p.stop {
		return p.look(f, name)
	}
	lo, err := p.lowerMeta(f, name)
	if err != nil {
		return &goneError{name, err}
	}
	if f.redo == name {
		lo, f.redo = nil, "" // its deletion is in the index already
	}
	if f.up.fd < 0 { // only the lower is there: all of it was deleted
		return p.deleted(f, name, lo)
	}
	up, err := statAt(f.up.fd, name)
	switch {
	case err == unix.ENOENT && f.opaque:
		return p.deleted(f, name, lo)
	case err != nil:
		return &goneError{name, err}
	case up.whiteout():
		return p.deleted(f, name, lo)
	case up.typ() == Dir:
		return p.dir(f, name, &up, lo)
	}
	return p.leaf(f, name, &up, lo)
}

// look is pass 1: only directories of the upper can be renamed ones.
func (p *packer) look(f *frame, name string) error {
	up, err := statAt(f.up.fd, name)
	if err != nil {
		return &goneError{name, err}
	}
	if up.typ() != Dir {
		return nil
	}
	lo, err := p.lowerMeta(f, name)
	if err != nil {
		return &goneError{name, err}
	}
	return p.dir(f, name, &up, lo)
}

// lowerMeta is the other side of name; nil when there is none.
func (p *packer) lowerMeta(f *frame, name string) (*meta, error) {
	if f.lo.fd < 0 {
		return nil, nil
	}
	m, err := statAt(f.lo.fd, name)
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.mnt != f.lo.mnt {
		return nil, nil // mounted over on the host: the overlay shows what is below
	}
	return &m, nil
}

// deleted emits a name of the lower and, for a directory, goes into it. What
// was renamed away is no deletion.
func (p *packer) deleted(f *frame, name string, lo *meta) error {
	if lo == nil || lo.typ() == Dir && p.claim[place{lo.dev, lo.ino}] {
		return nil
	}
	old, err := p.lowerNode(f.lo.fd, name, lo)
	if err != nil {
		return &goneError{name, err}
	}
	e, err := p.entry(name)
	if err != nil {
		return err
	}
	e.Old = old
	if err := p.emit(e); err != nil || old.Type != Dir {
		return err
	}
	return p.enterLower(f, name, e.N)
}

// enterLower goes into a directory that exists on the old side only.
func (p *packer) enterLower(f *frame, name string, n int) error {
	fd, err := openBeneath(f.lo.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return &goneError{name, err}
	}
	return p.enter(name, n, -1, fd, false)
}

// enter pushes a directory; the descriptors are its own from here on.
func (p *packer) enter(name string, n, up, lo int, opaque bool) error {
	f, err := newFrame(up, lo)
	if err != nil {
		return err
	}
	f.name, f.n, f.opaque = name, n, opaque
	if err := f.list(p.stop); err != nil {
		return &goneError{name, errors.Join(err, f.close())}
	}
	if len(p.walk.frames) > maxDepth {
		return &goneError{name, errors.Join(fmt.Errorf("deeper than %d levels", maxDepth), f.close())}
	}
	p.walk.pinFor(up < 0, lo < 0)
	p.walk.push(f)
	return nil
}

// entry begins an entry for a name in the directory on top. Directories on the
// way that have none yet, because nothing about them changed, get one.
func (p *packer) entry(name string) (*Entry, error) {
	known := len(p.walk.frames) - 1
	for p.walk.frames[known].n == 0 { // the root has one
		known--
	}
	parent := p.walk.frames[known].n
	for _, f := range p.walk.frames[known+1:] {
		e := &Entry{Parent: parent, Name: []byte(f.name)}
		if err := p.emit(e); err != nil {
			return nil, err
		}
		f.n, parent = e.N, e.N
	}
	return &Entry{Parent: parent, Name: []byte(name)}, nil
}

// dir compares a directory of the upper.
func (p *packer) dir(f *frame, name string, up *meta, lo *meta) error {
	fd, err := openBeneath(f.up.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return &goneError{name, err}
	}
	mark, err := readMarks(fd, p.t.User)
	if err == nil && len(mark.redirect) > 0 {
		return p.renamed(f, name, fd, up, lo, mark.redirect)
	}
	if err != nil {
		return &goneError{name, errors.Join(err, unix.Close(fd))}
	}
	lower := -1
	if lo != nil && lo.typ() == Dir && !p.claim[place{lo.dev, lo.ino}] {
		if lower, err = openBeneath(f.lo.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return &goneError{name, errors.Join(err, unix.Close(fd))}
		}
	}
	if p.stop {
		return p.enter(name, 0, fd, lower, mark.opaque || f.opaque)
	}
	if lo != nil && lo.typ() == Dir && lower < 0 {
		lo = nil // it was renamed, and another is in its place
	}
	n, err := p.dirEntry(f, name, up, lo)
	if err != nil {
		unix.Close(fd)
		closeFD(lower)
		return err
	}
	return p.enter(name, n, fd, lower, mark.opaque || f.opaque)
}

// dirEntry emits what changed about a directory itself; 0 when nothing did.
func (p *packer) dirEntry(f *frame, name string, up, lo *meta) (int, error) {
	now, fd, err := p.ids.read(f.up.fd, name, up)
	if err != nil {
		return 0, &goneError{name, err}
	}
	unix.Close(fd)
	var old *Node
	if lo != nil {
		if old, err = p.lowerNode(f.lo.fd, name, lo); err != nil {
			return 0, &goneError{name, err}
		}
	}
	p.carry(old, now)
	if old != nil && sameState(old, now) {
		return 0, nil
	}
	e, err := p.entry(name)
	if err != nil {
		return 0, err
	}
	e.Old, e.New = old, now
	err = p.emit(e)
	return e.N, err
}

// leaf compares everything but directories.
func (p *packer) leaf(f *frame, name string, up, lo *meta) error {
	now, err := p.upperNode(f.up.fd, name, up)
	if err != nil {
		return &goneError{name, err}
	}
	var old *Node
	if lo != nil && (lo.typ() != Dir || !p.claim[place{lo.dev, lo.ino}]) {
		if old, err = p.lowerNode(f.lo.fd, name, lo); err != nil {
			return &goneError{name, err}
		}
	}
	p.carry(old, now)
	now.Shared = up.nlink > 1 && now.Type == File
	if old != nil && sameState(old, now) && (old.MTime == now.MTime || now.Type != File) && !now.Shared {
		return nil // copied up, and not changed
	}
	e, err := p.entry(name)
	if err != nil {
		return err
	}
	e.Old, e.New = old, now
	if now.Shared {
		now.Link = p.links[up.ino]
	}
	if err := p.emit(e); err != nil {
		return err
	}
	if now.Shared && now.Link == 0 {
		p.links[up.ino] = e.N
	}
	if old != nil && old.Type == Dir {
		return p.enterLower(f, name, e.N)
	}
	return nil
}

// upperNode describes and keeps an object of the upper.
func (p *packer) upperNode(dir int, name string, m *meta) (*Node, error) {
	n, fd, err := p.ids.read(dir, name, m)
	if err != nil || n.Type != File {
		closeFD(fd)
		return n, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if !n.readable(p.t.UID, p.t.GID) {
		n.Xattrs = nil
		p.finding("%q: the run's user may not read it, so its content is not kept", name)
		return n, nil
	}
	if p.left.Bytes -= n.Size; p.left.Bytes < 0 {
		p.finding("%q and what follows is more than a change set holds", name)
		return nil, errBound
	}
	n.SHA256, n.Size, err = p.keep(f)
	return n, err
}

// lowerNode describes an object of the lower. Contents are digested, and kept
// for patches where they are small.
func (p *packer) lowerNode(dir int, name string, m *meta) (*Node, error) {
	if m == nil {
		got, err := statAt(dir, "")
		if err != nil {
			return nil, err
		}
		m = &got
	}
	n, fd, err := ids{}.read(dir, name, m)
	if err != nil {
		return nil, err
	}
	n.identify(m)
	if n.Type != File {
		closeFD(fd)
		return n, nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if !n.readable(p.t.UID, p.t.GID) {
		n.Xattrs = nil
		return n, nil // known by its identity alone
	}
	if p.left.Bytes -= n.Size; p.left.Bytes < 0 {
		p.left.Bytes = 0
		return n, nil
	}
	if n.Size <= p.left.OldFile && n.Size <= p.left.OldBytes && p.left.OldFiles > 0 {
		p.left.OldBytes -= n.Size
		p.left.OldFiles--
		n.SHA256, n.Size, err = p.keep(f)
	} else {
		n.SHA256, n.Size, err = p.digest(f)
	}
	return n, err
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// sortedNames reads the names of a directory.
func sortedNames(fd int) ([]string, error) {
	dup, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	d := os.NewFile(uintptr(dup), "directory")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.SortFunc(names, strings.Compare)
	return names, err
}
