package changes

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// tour visits the entries of one tree in the order of the index, each with the
// host directory that it lies in. Depth costs no descriptors, see walk.
type tour struct {
	set  *Set
	root int // descriptor of the tree's top directory

	// open returns the host directory that a directory entry stands for at this
	// point; dir is its parent's, or -1. -1 says that there is none. far says
	// that ".." of it is not dir.
	open func(dir int, e *Entry) (fd int, far bool, err error)
	// visit is called for each entry but the root; dir is -1 where its directory is not there.
	visit func(dir int, e *Entry) error
	// leave is called for a directory entry whose entries have all been visited; may be nil.
	leave func(dir int, e *Entry) error

	walk walk
}

// run makes the tour of the tree whose root entry is given.
func (t *tour) run(root *Entry) error {
	defer t.walk.close()
	fd, err := unix.Openat(t.root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", root.Name, err)
	}
	if err := t.push(fd, root); err != nil {
		return err
	}
	for n := root.N; n < len(t.set.Entries) && !t.set.Entries[n].Root(); n++ {
		if err := t.one(&t.set.Entries[n]); err != nil {
			return err
		}
	}
	for len(t.walk.frames) > 1 {
		if err := t.pop(); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) one(e *Entry) error {
	for t.walk.top().n != e.Parent {
		if err := t.pop(); err != nil {
			return err
		}
	}
	dir := t.walk.top().up.fd
	if err := t.visit(dir, e); err != nil {
		return err
	}
	if !t.set.hasChild(e) && !t.leaves(e) {
		return nil
	}
	fd, far, err := t.open(dir, e)
	if err != nil {
		return err
	}
	t.walk.pinFor(fd < 0 || far, false)
	return t.push(fd, e)
}

// leaves reports a directory without entries that leave has to see.
func (t *tour) leaves(e *Entry) bool {
	return t.leave != nil && (e.Old != nil && e.Old.Type == Dir || e.New != nil && e.New.Type == Dir)
}

func (t *tour) push(fd int, e *Entry) error {
	f, err := newFrame(fd, -1)
	if err != nil {
		return err
	}
	f.n = e.N
	t.walk.push(f)
	return nil
}

func (t *tour) pop() error {
	e := t.set.at(t.walk.top().n)
	if err := t.walk.pop(); err != nil {
		return err
	}
	if t.leave == nil {
		return nil
	}
	return t.leave(t.walk.top().up.fd, e)
}

// openDir opens a directory by name; one that is not there is -1.
func openDir(dir int, name []byte) (int, error) {
	if dir < 0 {
		return -1, nil
	}
	fd, err := openBeneath(dir, string(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV:
		return -1, nil
	}
	return fd, err
}

// openPath opens a directory by its path below dir.
func openPath(dir int, path []byte) (int, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for _, part := range splitPath(path) {
		if err != nil || fd < 0 {
			return fd, err
		}
		var next int
		next, err = openDir(fd, part)
		unix.Close(fd)
		fd = next
	}
	return fd, err
}
