package action

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/policy"
)

// Load reads the actions of a directory that root owns, such as
// /etc/agentguard/actions: every file *.yaml of it. Nobody but root may be able
// to change the directory or a file; which, and how, is in the error. A
// directory that is not there has none.
func Load(dir string) ([]*File, error) {
	d, err := openDir(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("actions: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("actions: %w", err)
	}
	slices.Sort(names)
	var files []*File
	var errs []error
	for _, name := range names {
		if filepath.Ext(name) != ".yaml" || name[0] == '.' {
			continue
		}
		f, err := loadFile(d, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	return files, errors.Join(errs...)
}

func loadFile(dir *os.File, name string) (*File, error) {
	path := filepath.Join(dir.Name(), name)
	f, err := openTrusted(int(dir.Fd()), name, unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("actions: %s: %w", policy.Quote(path), err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, policy.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("actions: %s: %w", policy.Quote(path), err)
	}
	return Parse(path, src)
}

// openDir opens a directory and judges it and the one that it lies in.
func openDir(dir string) (*os.File, error) {
	parent, err := openTrusted(unix.AT_FDCWD, filepath.Dir(dir), unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	d, err := openTrusted(int(parent.Fd()), filepath.Base(dir), unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.FcntlInt(d.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// openTrusted opens what only root can have written.
func openTrusted(dir int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := outer.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		err = errors.New("it is not a regular file")
	case st.Uid != 0:
		err = fmt.Errorf("%s belongs to uid %d; only root may decide what is sent with the host's credentials", policy.Quote(name), st.Uid)
	case st.Mode&0o022 != 0:
		err = fmt.Errorf("%s has mode 0%o: others than root may change it; chmod go-w it", policy.Quote(name), st.Mode&0o7777)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
