package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// LetRead lets whoever holds a descriptor of the state directory read below it, also
// what later runs add. Files keep their owner, and nobody else may write.
//
// Nobody else must come near by a path: the directory above is to be closed to all but
// its owner, or nothing is changed.
func (s *State) LetRead() error {
	if err := s.apart(); err != nil {
		return err
	}
	s.readable = true
	dir, err := openIn(s.dir, ".", unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return letRead(dir)
}

// Readable reports whether LetRead has opened the directory before. If it has, new runs
// are as it leaves them.
func (s *State) Readable() bool {
	st, err := s.dir.Stat()
	s.readable = err == nil && st.Mode().Perm()&0o055 == 0o055 && s.apart() == nil
	return s.readable
}

// apart fails where somebody else can come to the directory by its path.
func (s *State) apart() error {
	var above unix.Stat_t
	if err := unix.Fstatat(int(s.dir.Fd()), "..", &above, 0); err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	if above.Mode&0o077 != 0 {
		return fmt.Errorf("the directory above %s is open to others (mode %o): chmod go= it", s.path, above.Mode&0o7777)
	}
	return nil
}

// letRead opens a file, or a directory and all below it, for reading, and closes f.
func letRead(f *os.File) error {
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	more := fs.FileMode(0o044)
	if info.IsDir() {
		more = 0o055
	}
	if info.Mode().Perm()&more != more {
		err = f.Chmod(info.Mode().Perm() | more)
	}
	if err != nil || !info.IsDir() {
		return err
	}
	list, err := f.ReadDir(-1)
	for _, d := range list {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			err = letReadIn(f, d)
		}
	}
	return err
}

func letReadIn(dir *os.File, d fs.DirEntry) error {
	flags := unix.O_NONBLOCK
	if d.IsDir() {
		flags = unix.O_DIRECTORY
	}
	f, err := openIn(dir, d.Name(), flags)
	if errors.Is(err, fs.ErrNotExist) { // deleted meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	return letRead(f)
}

// openIn opens one name in a directory for reading, and no link.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
