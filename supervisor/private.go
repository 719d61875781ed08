package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// private is the directory of a run without mounts of its own, in the state directory: what
// its HOME and TMPDIR are. It goes when the run has ended.
type private struct {
	top       string
	home, tmp Opened
	probe     *os.File // O_PATH: a file beside them that everybody may read and no rule grants
	lock      *os.File // of top: the run lives. Other starts of the user may have another runtime directory
}

const privateName = "private" // in the state directory; below it one for each run

// makePrivate makes it where the run has no mounts, and what these would have protected is looked at.
func (r *Run) makePrivate() error {
	if !r.host.Info.shared() {
		return nil
	}
	r.grants.watchGuards()
	p := &private{top: filepath.Join(r.state.Path(), privateName, r.id)}
	if err := os.MkdirAll(filepath.Dir(p.top), 0o700); err != nil {
		return r.recordError(err)
	}
	if err := os.Mkdir(p.top, 0o700); err != nil {
		return r.recordError(err)
	}
	r.release.push("private directory", p.remove)
	r.private = p
	var err error
	if p.lock, err = lockPrivate(p.top); err != nil {
		return r.recordError(err)
	}
	for name, o := range map[string]*Opened{"home": &p.home, "tmp": &p.tmp} {
		o.Path = filepath.Join(p.top, name)
		if err := os.Mkdir(o.Path, 0o700); err != nil {
			return r.recordError(err)
		}
		if o.File, err = os.OpenFile(o.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
			err = unix.Fstat(int(o.File.Fd()), &o.Stat)
		}
		if err != nil {
			return err
		}
	}
	name := filepath.Join(p.top, "probe")
	if err = os.WriteFile(name, nil, 0o644); err == nil {
		p.probe, err = os.OpenFile(p.top, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	return err
}

// lockPrivate locks the directory of a run for as long as this process has it open. The error is
// EWOULDBLOCK where somebody else has locked it.
func lockPrivate(top string) (*os.File, error) {
	f, err := os.OpenFile(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&os.PathError{Op: "flock", Path: top, Err: err}, f.Close())
	}
	return f, nil
}

// dirs are what the command may write.
func (p *private) dirs() []Opened { return []Opened{p.home, p.tmp} }

// remove closes and removes it: nobody of the run is left by then.
func (p *private) remove() error {
	var errs []error
	for _, f := range []*os.File{p.home.File, p.tmp.File, p.probe} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	errs = append(errs, removeTree(p.top))
	if p.lock != nil {
		errs = append(errs, p.lock.Close())
	}
	return errors.Join(errs...)
}

// sweepPrivate removes what runs left whose supervisor was killed. One that is being born
// may not have its lock yet.
func (r *Run) sweepPrivate() error {
	top := filepath.Join(r.state.Path(), privateName)
	list, err := os.ReadDir(top)
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, e := range list {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > time.Minute && !alive(r.runtime, e.Name()) {
			errs = append(errs, removeDead(filepath.Join(top, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeDead removes the directory of a run, unless that lives.
func removeDead(name string) error {
	lock, err := lockPrivate(name)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return ignoreMissing(removeTree(name))
}

// removeTree removes a directory that a hostile command of our own user has filled: however
// deep, whatever its modes, with few descriptors. What a directory holds is moved up
// before it is removed, so that nothing is ever deeper than two levels.
func removeTree(name string) error {
	top, err := os.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer top.Close()
	moved := 0
	for {
		list, err := top.ReadDir(-1)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return os.Remove(name)
		}
		for _, e := range list {
			if err := removeEntry(int(top.Fd()), e, &moved); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if _, err := top.Seek(0, 0); err != nil {
			return err
		}
	}
}

// removeEntry removes a file of top, or a directory after its own directories were moved to top.
func removeEntry(top int, e os.DirEntry, moved *int) error {
	if !e.IsDir() {
		return os.NewSyscallError("unlinkat", unix.Unlinkat(top, e.Name(), 0))
	}
	fd, err := openUp(top, e.Name())
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), e.Name())
	defer dir.Close()
	list, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, c := range list {
		if !c.IsDir() {
			err = unix.Unlinkat(fd, c.Name(), 0)
		} else {
			err = moveUp(fd, c.Name(), top, moved)
		}
		if err != nil {
			return &os.PathError{Op: "remove", Path: c.Name(), Err: err}
		}
	}
	return os.NewSyscallError("unlinkat", unix.Unlinkat(top, e.Name(), unix.AT_REMOVEDIR))
}

// moveUp moves a directory to top, under a name that nothing has. What moves is written to.
func moveUp(from int, name string, top int, moved *int) error {
	fd, err := openUp(from, name)
	if err != nil {
		return err
	}
	unix.Close(fd)
	for err = unix.EEXIST; err == unix.EEXIST; {
		*moved++
		err = unix.Renameat2(from, name, top, fmt.Sprintf("moved-%d", *moved), unix.RENAME_NOREPLACE)
	}
	return err
}

// openUp opens a directory for reading, whatever its mode, and makes it writable. The mode is set
// by descriptor: the command may live, and put a link to any file of the user's in its place.
func openUp(dir int, name string) (int, error) {
	const flags = unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|flags, 0)
	if err == unix.EACCES {
		fd, err = openClosed(dir, name, unix.O_NOFOLLOW|flags)
	}
	if err != nil {
		return -1, &os.PathError{Op: "openat", Path: name, Err: err}
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fchmod", err)
	}
	return fd, nil
}

// openClosed is openUp of what its mode closes to us. fchmod(2) refuses a descriptor of O_PATH, and
// fchmodat2(2) is of Linux 6.6.
func openClosed(dir int, name string, flags int) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|flags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	link := "/proc/self/fd/" + strconv.Itoa(fd)
	if err := unix.Chmod(link, 0o700); err != nil {
		return -1, err
	}
	return unix.Open(link, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}
