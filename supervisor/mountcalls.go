package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// newTmpfs makes a detached tmpfs; name shows in the run's mount table.
func newTmpfs(name string, attrs int, options ...string) (*os.File, error) {
	return newFS("tmpfs", attrs, append(options, "source=agentguard-"+name)...)
}

// newFS makes a detached file system: fsopen(2), fsconfig(2), fsmount(2), all 5.2.
func newFS(kind string, attrs int, options ...string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		key, value, ok := strings.Cut(o, "=")
		set := func() error { return unix.FsconfigSetString(fs, key, value) }
		if !ok {
			set = func() error { return unix.FsconfigSetFlag(fs, key) }
		}
		if err := set(); err != nil {
			return nil, fmt.Errorf("fsconfig %s %s: %w", kind, o, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("fsconfig %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// cloneTree makes a detached copy of the mounts at and below f with attr set
// on all of them: open_tree(2) 5.2, mount_setattr(2) 5.12.
func cloneTree(f *os.File, attr *unix.MountAttr) (*os.File, error) {
	return cloneWith(f, attr, unix.AT_RECURSIVE)
}

// cloneMount is cloneTree without what is mounted below f.
func cloneMount(f *os.File, attr *unix.MountAttr) (*os.File, error) { return cloneWith(f, attr, 0) }

func cloneWith(f *os.File, attr *unix.MountAttr, recursive uint) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|recursive)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|recursive, attr); err != nil {
		return nil, errors.Join(fmt.Errorf("mount_setattr: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "mount of "+f.Name()), nil
}

// mkdirAt makes one directory and opens it; an existing one is opened, a link
// is an error.
func mkdirAt(dir *os.File, name string, mode uint32) (*os.File, error) {
	err := unix.Mkdirat(int(dir.Fd()), name, 0o755)
	made := err == nil
	if err != nil && err != unix.EEXIST {
		return nil, err
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if made {
		if err := unix.Fchmod(fd, mode); err != nil { // mkdir's mode is cut by the umask
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// writeFileAt makes a file that must not exist yet.
func writeFileAt(dir int, name, content string, mode uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if content != "" {
		var n int
		if n, err = unix.Write(fd, []byte(content)); err == nil && n < len(content) {
			err = io.ErrShortWrite
		}
	}
	return errors.Join(err, unix.Fchmod(fd, mode), unix.Close(fd))
}

func mknodAt(dir int, name string, mode uint32, dev uint64) error {
	if err := unix.Mknodat(dir, name, mode, int(dev)); err != nil {
		return fmt.Errorf("mknod %s: %w", name, err)
	}
	return unix.Fchmodat(dir, name, mode&0o7777, 0)
}
