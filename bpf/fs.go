package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ownBPFFS makes sure that dir is a bpffs that only root can reach, and mounts
// one there if it is a plain directory.
func ownBPFFS(dir string) error {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	if errors.Is(err, unix.ENOENT) || err == nil && fs.Type != unix.BPF_FS_MAGIC {
		err = mountBPFFS(dir)
	}
	if err != nil {
		return fmt.Errorf("bpffs %s: %w", dir, err)
	}
	return checkPrivate(dir)
}

func mountBPFFS(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(lockPath(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.BPF_FS_MAGIC {
		return err // another process was first
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return &os.SyscallError{Syscall: "mount", Err: err}
	}
	return unix.Mount("", dir, "", unix.MS_PRIVATE, "")
}

// checkPrivate refuses a directory that others could have written to or can reach.
func checkPrivate(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s must be a directory of uid %d with mode 0700", dir, os.Geteuid())
	}
	return nil
}

// lockPath names a lock of the bpffs pinDir. A bpffs holds no regular files,
// so locks are beside it.
func lockPath(pinDir string, elem ...string) string {
	return filepath.Join(append([]string{pinDir + ".lock"}, elem...)...)
}

// lockWait bounds the wait for a lock, which is held for milliseconds: a
// supervisor that was stopped with it must not stop all others.
const lockWait = 30 * time.Second

// A lock is asked for again after lockFirst, and then less and less often, up to lockLast: a
// hundred that wait and ask all the time would leave the one that holds it no CPU.
const (
	lockFirst = 200 * time.Microsecond
	lockLast  = 10 * time.Millisecond
)

// lockFile takes an exclusive flock on path, which it creates, and waits for it.
func lockFile(path string) (unlock func(), err error) {
	end := time.Now().Add(lockWait)
	for wait := lockFirst; ; wait = min(wait*3/2, lockLast) {
		f, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s is held by another process for more than %v", path, lockWait)
		}
		time.Sleep(wait)
	}
}

// tryLock returns nil where another process (or another run of this one) holds path.
func tryLock(path string) (*os.File, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "flock", Path: path, Err: err}
}

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		}
	}
	return f, err
}

// fileidKernfs is FILEID_KERNFS (include/linux/exportfs.h): a handle that is a kernfs node id.
const fileidKernfs = 0xfe

// cgroupID is what bpf_get_current_ancestor_cgroup_id gives for the cgroup directory f.
func cgroupID(f *os.File) (uint64, error) {
	handle, _, err := unix.NameToHandleAt(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return 0, fmt.Errorf("id of cgroup %s: %w", f.Name(), err)
	}
	if handle.Type() != fileidKernfs || handle.Size() != 8 {
		return 0, fmt.Errorf("%s is not a cgroup v2 directory", f.Name())
	}
	return binary.NativeEndian.Uint64(handle.Bytes()), nil
}

// openCgroup opens the cgroup with this id, or returns -1 where it is gone. Any
// descriptor on the hierarchy serves as hierarchy.
func openCgroup(hierarchy *os.File, id uint64) (int, error) {
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(hierarchy.Fd()), handle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open cgroup by id: %w", err)
	}
	return fd, nil
}

func cgroupExists(hierarchy *os.File, id uint64) (bool, error) {
	fd, err := openCgroup(hierarchy, id)
	if fd >= 0 {
		unix.Close(fd)
	}
	return fd >= 0, err
}

// cgroupBusy reports whether the cgroup exists and has processes.
func cgroupBusy(hierarchy *os.File, id uint64) (bool, error) {
	fd, err := openCgroup(hierarchy, id)
	if err != nil || fd < 0 {
		return false, err
	}
	defer unix.Close(fd)
	return populated(fd)
}

func populated(dir int) (bool, error) {
	fd, err := unix.Openat(dir, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return false, nil // removed since it was opened
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: "cgroup.events", Err: err}
	}
	defer unix.Close(fd)
	var buf [256]byte
	n, err := unix.Read(fd, buf[:])
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "read", Path: "cgroup.events", Err: err}
	}
	return strings.Contains(string(buf[:n]), "populated 1"), nil
}

// plain removes advice of the library that is wrong where root lacks
// CAP_SYS_RESOURCE or where a program type is refused.
func plain(err error) error {
	const hint = " (MEMLOCK may be too low, consider rlimit.RemoveMemlock)"
	if err == nil || !strings.Contains(err.Error(), hint) {
		return err
	}
	return &plainError{err, strings.ReplaceAll(err.Error(), hint, "")}
}

type plainError struct {
	err  error
	text string
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }
