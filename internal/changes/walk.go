package changes

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// walk is a depth-first walk of two trees at once. The frames nearest to the
// top hold their directories open; those far below gave theirs up and come back
// by "..", so that depth costs memory and no descriptors. The tree is dead: ".."
// leads where it did, which is checked.
type walk struct {
	frames []*frame
}

// held is how many levels keep their directories open.
const held = 64

// side is one of the two trees in a frame.
type side struct {
	fd   int // -1: not there, or given up
	have bool
	pin  bool // never given up: the child's parent is another directory (a rename)
	id   place
	mnt  uint64
}

type frame struct {
	name   string
	n      int // entry; 0: none yet
	up, lo side
	redo   string // a name that comes again: what it was in the lower is dealt with
	opaque bool   // of the lower only what the names say is there
	from   []byte // of a renamed directory: its old path
	names  []string
}

func newSide(fd int) (side, error) {
	if fd < 0 {
		return side{fd: -1}, nil
	}
	m, err := statAt(fd, "")
	return side{fd: fd, have: true, id: place{m.dev, m.ino}, mnt: m.mnt}, err
}

// newFrame takes both descriptors; -1 is a side that is not there.
func newFrame(up, lo int) (*frame, error) {
	f := &frame{}
	var err, lerr error
	f.up, err = newSide(up)
	f.lo, lerr = newSide(lo)
	if err = errors.Join(err, lerr); err != nil {
		closeFD(up)
		closeFD(lo)
		return nil, err
	}
	return f, nil
}

// list reads the names to compare: the upper's, and the lower's where the
// upper does not let them through or is not there.
func (f *frame) list(upperOnly bool) error {
	if f.up.have {
		var err error
		if f.names, err = sortedNames(f.up.fd); err != nil {
			return err
		}
	}
	if !f.lo.have || upperOnly || f.up.have && !f.opaque {
		return nil
	}
	lower, err := sortedNames(f.lo.fd)
	if err != nil {
		return err
	}
	f.names = slices.Compact(slices.Sorted(slices.Values(append(f.names, lower...))))
	return nil
}

func (f *frame) close() error {
	closeFD(f.up.fd)
	closeFD(f.lo.fd)
	f.up.fd, f.lo.fd = -1, -1
	return nil
}

func (w *walk) top() *frame {
	if len(w.frames) == 0 {
		return nil
	}
	return w.frames[len(w.frames)-1]
}

func (w *walk) push(f *frame) {
	w.frames = append(w.frames, f)
	if i := len(w.frames) - 1 - held; i > 0 { // the root stays
		w.frames[i].up.giveUp()
		w.frames[i].lo.giveUp()
	}
}

func (s *side) giveUp() {
	if s.have && !s.pin {
		closeFD(s.fd)
		s.fd = -1
	}
}

// pop leaves the top directory and makes the one below usable again.
func (w *walk) pop() error {
	f := w.top()
	w.frames = w.frames[:len(w.frames)-1]
	defer f.close()
	below := w.top()
	if below == nil {
		return nil
	}
	if err := below.up.comeBack(&f.up); err != nil {
		return fmt.Errorf("leaving %q: %w", f.name, err)
	}
	if err := below.lo.comeBack(&f.lo); err != nil {
		return fmt.Errorf("leaving %q: the host's tree was changed while it was read: %w", f.name, err)
	}
	return nil
}

var errMoved = errors.New("\"..\" leads elsewhere")

// comeBack opens a directory that was given up from its child.
func (s *side) comeBack(child *side) error {
	if !s.have || s.fd >= 0 {
		return nil
	}
	if !child.have {
		return errMoved // cannot be: whoever has no child on this side is pinned
	}
	fd, err := unix.Openat(child.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	got, err := newSide(fd)
	if err == nil && got.id != s.id {
		err = errMoved
	}
	if err != nil {
		closeFD(fd)
		return err
	}
	s.fd = fd
	return nil
}

// pinFor keeps the directory on top open when its child, about to be pushed,
// has another parent on that side or none.
func (w *walk) pinFor(up, lo bool) {
	f := w.top()
	f.up.pin = f.up.pin || up
	f.lo.pin = f.lo.pin || lo
}

func (w *walk) close() {
	for _, f := range w.frames {
		f.close()
	}
	w.frames = nil
}
