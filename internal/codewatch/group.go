package codewatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// group is a fanotify group (fanotify_init(2)).
type group struct {
	file     *os.File
	fd       int          // of file: os.File.Fd would make it blocking
	unmarked atomic.Int64 // when the marks were removed, ns since the epoch; 0: not yet
}

// newGroup makes a group whose events come before the file is read by anybody
// (FAN_CLASS_CONTENT), and whose queue has no bound: a permission event that
// did not fit would be allowed unseen. Each event is a task of the run that
// waits, so the run's own limit on tasks bounds the queue.
func newGroup() (*group, error) {
	const flags = unix.FAN_CLASS_CONTENT | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK | unix.FAN_UNLIMITED_QUEUE | unix.FAN_UNLIMITED_MARKS
	const eventFlags = unix.O_RDONLY | unix.O_LARGEFILE | unix.O_CLOEXEC | unix.O_NOATIME
	if err := Probe(); err != nil {
		return nil, err
	}
	fd, err := unix.FanotifyInit(flags, eventFlags)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	return &group{file: os.NewFile(uintptr(fd), "fanotify"), fd: fd}, nil
}

// Probe reports whether this kernel knows permission events: it judges the mask
// before it looks at the descriptor (fs/notify/fanotify/fanotify_user.c,
// do_fanotify_mark). Whether the caller may use them only [New] finds out.
func Probe() error {
	err := unix.FanotifyMark(-1, uint(MarkMount), MarkMask, unix.AT_FDCWD, "/")
	switch {
	case errors.Is(err, unix.EBADF):
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel has no permission events (CONFIG_FANOTIFY_ACCESS_PERMISSIONS): %w", errors.ErrUnsupported)
	}
	return fmt.Errorf("fanotify_mark: %w", err)
}

// mark marks the mount that fd lies on. It may be detached; O_PATH will do.
func (g *group) mark(fd int) error {
	err := unix.FanotifyMark(g.fd, uint(MarkMount), MarkMask, unix.AT_FDCWD, fdPath(fd))
	if err != nil {
		return fmt.Errorf("fanotify_mark: %w", err)
	}
	return nil
}

// ignore asks for no more events of one file until it is written to: without
// FAN_MARK_IGNORED_SURV_MODIFY the kernel then forgets it (fanotify_mark(2)). The
// mark does not keep the inode in memory (FAN_MARK_EVICTABLE, 5.19).
func (g *group) ignore(fd int) error {
	err := unix.FanotifyMark(g.fd, unix.FAN_MARK_ADD|unix.FAN_MARK_IGNORED_MASK|unix.FAN_MARK_EVICTABLE, MarkMask, fd, "")
	return os.NewSyscallError("fanotify_mark", err)
}

// unmark removes all marks, once. What is held already stays held until it is
// answered or the group is closed.
func (g *group) unmark() error {
	if !g.unmarked.CompareAndSwap(0, time.Now().UnixNano()) {
		return nil
	}
	var errs []error
	for _, kind := range []uint{unix.FAN_MARK_INODE, unix.FAN_MARK_MOUNT, unix.FAN_MARK_FILESYSTEM} {
		if err := unix.FanotifyMark(g.fd, unix.FAN_MARK_FLUSH|kind, 0, unix.AT_FDCWD, "/"); err != nil {
			errs = append(errs, fmt.Errorf("fanotify_mark(FLUSH): %w", err))
		}
	}
	return errors.Join(errs...)
}

func (g *group) close() error {
	if left := settleTime - time.Duration(time.Now().UnixNano()-g.unmarked.Load()); left > 0 {
		time.Sleep(min(left, settleTime))
	}
	return g.file.Close()
}

// event is one execve that waits.
type event struct {
	fd  int // of the file that it opened, ours to close
	pid uint32
}

const eventSize = 24 // struct fanotify_event_metadata

// decode reads one event off b and returns the rest.
func decode(b []byte) (event, []byte, error) {
	if len(b) < eventSize || b[4] != unix.FANOTIFY_METADATA_VERSION {
		return event{fd: -1}, nil, fmt.Errorf("fanotify: event of %d bytes, not of version %d", len(b), unix.FANOTIFY_METADATA_VERSION)
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < eventSize || n > len(b) {
		return event{fd: -1}, nil, fmt.Errorf("fanotify: event says %d of %d bytes", n, len(b))
	}
	e := event{fd: int(int32(binary.NativeEndian.Uint32(b[16:]))), pid: binary.NativeEndian.Uint32(b[20:])}
	if binary.NativeEndian.Uint64(b[8:])&unix.FAN_OPEN_EXEC_PERM == 0 && e.fd >= 0 {
		return event{fd: -1}, b[n:], unix.Close(e.fd)
	}
	return e, b[n:], nil
}

// allow lets the execve go on and closes the descriptor.
func (g *group) allow(fd int) error {
	var b [8]byte // struct fanotify_response
	binary.NativeEndian.PutUint32(b[:], uint32(fd))
	binary.NativeEndian.PutUint32(b[4:], unix.FAN_ALLOW)
	_, err := g.file.Write(b[:])
	if errors.Is(err, unix.ENOENT) { // the task was killed meanwhile
		err = nil
	}
	return errors.Join(err, unix.Close(fd))
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
