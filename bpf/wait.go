package bpf

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ringWait waits for the ring by the runtime's own poller (decision 0024). A thread that waited
// in epoll_wait(2) by itself would keep its place among Go's threads for 10 ms
// each time, and the runtime's monitor would look every 70 us whether somebody
// else needs the place: a tenth of what it costs a build to be observed.
type ringWait struct {
	file *os.File // another descriptor of the ring
	conn syscall.RawConn
}

func newRingWait(ring int) (*ringWait, error) {
	fd, err := unix.FcntlInt(uintptr(ring), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// Only files that are not blocking are given to the poller. Maps have no use for the flag.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	w := &ringWait{file: os.NewFile(uintptr(fd), "ring")}
	if w.conn, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails where there is no poller
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("poll the ring: %w", err), w.file.Close())
	}
	return w, nil
}

// until returns when a program has woken the reader, or after d, or when end was
// called; false when the file is closed. A wake-up that came before it begins is
// not seen: that of an event beyond the watermark comes again with the next one.
func (w *ringWait) until(d time.Duration, ended func() bool) (bool, error) {
	if err := w.file.SetReadDeadline(time.Now().Add(d)); err != nil {
		return false, w.closed(err)
	}
	if ended() { // before the deadline was set, which put off the one that end has set
		return true, nil
	}
	woken := false
	err := w.conn.Read(func(uintptr) bool {
		was := woken
		woken = true
		return was
	})
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return true, nil
	}
	return false, w.closed(err)
}

func (w *ringWait) closed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return fmt.Errorf("bpf: wait for events: %w", err)
}

// end makes until return at once, now and whenever its ended says true.
func (w *ringWait) end() error { return w.file.SetReadDeadline(time.Now()) }

func (w *ringWait) close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}
