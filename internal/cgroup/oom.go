package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// OOMWatch waits for the kernel to kill for the memory limit of a leaf on v1,
// where it kills one task and lets the rest go on. On v2 memory.oom.group kills
// all of the leaf, PID 1 included, and no watch is needed.
type OOMWatch struct {
	leaf           *Leaf
	seen           int64 // kills that were reported
	event, control *os.File
}

// WatchOOM returns nil where no watch is needed.
func (l *Leaf) WatchOOM() (*OOMWatch, error) {
	if l == nil {
		return nil, nil
	}
	dir := l.V1[Memory]
	if dir == "" {
		return nil, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	w := &OOMWatch{leaf: l, event: os.NewFile(uintptr(fd), "oom eventfd")}
	if w.control, err = os.Open(filepath.Join(dir, "memory.oom_control")); err != nil {
		return nil, errors.Join(err, w.event.Close())
	}
	// cgroup-v1/memory.rst, section 10: "<event_fd> <fd of memory.oom_control>"
	control, err := descriptor(w.control)
	if err == nil {
		err = write(dir, "cgroup.event_control", fmt.Sprintf("%d %d", fd, control))
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// descriptor is the number of f without making it blocking, as Fd does.
func descriptor(f syscall.Conn) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	return n, rc.Control(func(fd uintptr) { n = int(fd) })
}

// Wait blocks until the kernel has killed a task of the leaf for its memory
// limit since the last Wait (the first: ever). It ends with an error after
// Close, and when the leaf is removed.
func (w *OOMWatch) Wait() error {
	for {
		if grew, err := w.grew(); grew || err != nil {
			return err
		}
		if err := w.read(0); err != nil {
			return err
		}
		// The event comes when the limit is met, before the kernel chooses whom to kill
		// and counts that.
		for wait := 100 * time.Microsecond; wait < 500*time.Millisecond; wait *= 2 {
			if grew, err := w.grew(); grew || err != nil {
				return err
			}
			if err := w.read(wait); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
		}
	}
}

// read waits for an event, for as long as limit unless that is 0.
func (w *OOMWatch) read(limit time.Duration) error {
	deadline := time.Time{}
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := w.event.SetReadDeadline(deadline); err != nil {
		return err
	}
	var b [8]byte
	_, err := w.event.Read(b[:])
	return err
}

// grew reports whether there are kills that it has not reported yet.
func (w *OOMWatch) grew() (bool, error) {
	n, err := first(keyed(w.leaf.V1[Memory], "memory.oom_control", "oom_kill"))
	if err != nil || n <= w.seen {
		return false, err
	}
	w.seen = n
	return true, nil
}

// Close ends Wait.
func (w *OOMWatch) Close() error { return errors.Join(w.event.Close(), w.control.Close()) }
