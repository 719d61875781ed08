package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// A brake keeps a run from outrunning its reader, in three steps:
//
//	a quarter of the ring   the run is frozen; its tasks stop at their next return to user space
//	half of it              a task that writes one event more waits first (wait_for_room in c/run.h)
//	a twentieth             the run goes on
//
// The reader looks after each event. A second thread is woken by the same ring,
// for the time in which the reader waits for the disk: it does nothing else, and
// it is preferred by the scheduler. Neither is a real-time thread: a ring's
// reader spins while the event at its head is being written, and where
// tracepoints are preemptible (7.0) it would then keep the writer off the CPU.
type brake struct {
	reader    *ringbuf.Reader
	freeze    func(bool) error
	high, low int // unread bytes

	mu     sync.Mutex // the reader's memory is unmapped when it is closed
	frozen bool
	off    bool // no more: it failed, or the run is over
	since  time.Time
	times  uint64
	total  time.Duration
	err    error // the last failure
}

// newBrake is nil where freeze is: a nil brake does nothing.
func newBrake(reader *ringbuf.Reader, freeze func(bool) error) *brake {
	if freeze == nil {
		return nil
	}
	size := reader.BufferSize()
	return &brake{reader: reader, freeze: freeze, high: size / 4, low: size / 20}
}

// look freezes the run or lets it go on, as the ring demands.
func (b *brake) look() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off {
		return
	}
	if n := b.reader.AvailableBytes(); !b.frozen && n > b.high || b.frozen && n < b.low {
		b.set(!b.frozen)
	}
}

// set is called with the lock held.
func (b *brake) set(on bool) {
	if err := b.freeze(on); err != nil {
		b.off = on // letting go is tried again
		b.err = fmt.Errorf("freeze %t: %w", on, err)
		return
	}
	b.frozen = on
	if on {
		b.times++
		b.since = time.Now()
	} else {
		b.total += time.Since(b.since)
	}
}

// release lets the run go on for good.
func (b *brake) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		b.set(false)
	}
	b.off = true
}

// report tells how often the run was frozen and for how long in all.
func (b *brake) report() (times uint64, total time.Duration, err error) {
	if b == nil {
		return 0, 0, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	total = b.total
	if b.frozen {
		total += time.Since(b.since)
	}
	return b.times, total, b.err
}

// watch starts the second thread on the ring's descriptor and returns what ends
// it and lets the run go on.
func (b *brake) watch(ring int) (stop func() error, err error) {
	if b == nil {
		return func() error { return nil }, nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(epoll))
	}
	for fd, events := range map[int]uint32{ring: unix.EPOLLIN | unix.EPOLLET, wake: unix.EPOLLIN} {
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
			return nil, errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(epoll), unix.Close(wake))
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = lostthread.Run(func() error { b.wait(epoll, wake); return nil })
	}()
	return func() error {
		_, err := unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-done
		b.release()
		return errors.Join(os.NewSyscallError("eventfd", err), unix.Close(epoll), unix.Close(wake))
	}, nil
}

// wait looks at each wake-up of the ring's, which comes when it holds more than
// the watermark. It runs on a thread of its own: its priority is no other goroutine's.
func (b *brake) wait(epoll, wake int) {
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // only quicker: the wait in BPF covers the rest
	var events [2]unix.EpollEvent
	for {
		n, err := unix.EpollWait(epoll, events[:], -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == wake {
				return
			}
		}
		b.look()
	}
}
