package changes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// marks are the overlay's own attributes of an upper directory
// (kernel: Documentation/filesystems/overlayfs.rst).
type marks struct {
	opaque   bool
	redirect string // where in the lower it comes from: absolute, or a name in the same directory
}

// readMarks reads the marks of the sort that the mount wrote. The other sort is the
// command's own: whoever believed user.overlay.* of an overlay with trusted marks would let
// it hide what is below.
func readMarks(fd int, user bool) (marks, error) {
	var m marks
	prefix := "trusted.overlay."
	if user {
		prefix = "user.overlay."
	}
	v, err := getXattr(fd, prefix+"opaque")
	if err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP {
		return m, err
	}
	m.opaque = string(v) == "y" // "x" says that whiteouts lie in it as attributes, which no upper of ours has
	v, err = getXattr(fd, prefix+"redirect")
	if err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP {
		return m, err
	}
	m.redirect = string(v)
	return m, nil
}

// renamed handles a directory that has another one of the lower beneath it.
func (p *packer) renamed(f *frame, name string, fd int, up, lo *meta, redirect string) error {
	if !p.stop && lo != nil && (lo.typ() != Dir || !p.claim[place{lo.dev, lo.ino}]) {
		closeFD(fd)
		f.names, f.redo = append([]string{name}, f.names...), name
		return p.deleted(f, name, lo) // what had the name first; then this directory again
	}
	src, base, err := p.source(f, redirect)
	if err != nil {
		return &goneError{name, errors.Join(fmt.Errorf("renamed from %q: %w", redirect, err), unix.Close(fd))}
	}
	from, n := p.fromPath(redirect), 0
	switch at := (place{base.dev, base.ino}); {
	case len(from) > maxFrom:
		err = &goneError{name, fmt.Errorf("its old path has more than %d bytes", maxFrom)}
	case p.stop && p.claim[at]:
		err = &goneError{name, fmt.Errorf("%q was renamed twice", redirect)}
	case p.stop:
		p.claim[at] = true
	default:
		n, err = p.renameEntry(f, name, up, from, src)
	}
	if err != nil {
		closeFD(src)
		closeFD(fd)
		return err
	}
	p.walk.pinFor(false, true)
	if err := p.enter(name, n, fd, src, false); err != nil {
		return err
	}
	p.walk.top().from = from
	return nil
}

// maxFrom bounds the old path of a renamed directory, in bytes.
const maxFrom = 64 << 10

// renameEntry emits a rename; src is the old directory.
func (p *packer) renameEntry(f *frame, name string, up *meta, from []byte, src int) (int, error) {
	now, fd, err := p.ids.read(f.up.fd, name, up)
	if err != nil {
		return 0, &goneError{name, err}
	}
	closeFD(fd)
	base, err := p.lowerNode(src, ".", nil)
	if err != nil {
		return 0, &goneError{name, err}
	}
	p.carry(base, now)
	e, err := p.entry(name)
	if err != nil {
		return 0, err
	}
	e.New, e.Base, e.From = now, base, from
	err = p.emit(e)
	return e.N, err
}

// fromPath is the path, below the root, of the lower directory that a redirect
// in the directory on top names.
func (p *packer) fromPath(redirect string) []byte {
	if strings.HasPrefix(redirect, "/") {
		return []byte(redirect[1:])
	}
	parts := []string{redirect}
	size := len(redirect)
	for i := len(p.walk.frames) - 1; i > 0 && size <= maxFrom; i-- {
		f := p.walk.frames[i]
		if f.from != nil {
			parts = append(parts, string(f.from))
			break
		}
		parts = append(parts, f.name)
		size += len(f.name) + 1
	}
	slices.Reverse(parts)
	return []byte(strings.Join(parts, "/"))
}

// source opens the lower directory that a redirect names.
func (p *packer) source(f *frame, redirect string) (int, meta, error) {
	dir, rest := f.lo.fd, redirect
	if strings.HasPrefix(redirect, "/") {
		dir, rest = p.walk.frames[0].lo.fd, redirect[1:]
	}
	if dir < 0 {
		return -1, meta{}, unix.ENOENT
	}
	fd := dir
	for _, part := range strings.Split(rest, "/") {
		if !validName([]byte(part)) {
			return -1, meta{}, unix.EINVAL
		}
		next, err := openBeneath(fd, part, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if fd != dir {
			closeFD(fd)
		}
		if err != nil {
			return -1, meta{}, err
		}
		fd = next
	}
	m, err := statAt(fd, "")
	return fd, m, err
}
