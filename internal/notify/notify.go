//go:build linux

// Package notify tells what a command does where nothing of the kernel's can be
// asked: without root there is no BPF. A seccomp filter of the command's
// (internal/seccomp, NotifyFilter) makes some calls wait for an answer, and
// the holder of the filter's listener gives it (seccomp_unotify(2)):
//
//	command           kernel                       Serve
//	  execve -------> waits <--- RECV ------------ who is it, what does it say (its memory, /proc)
//	                        <--- ID_VALID -------- it still waits: what was read is its own
//	                  goes on <- SEND, CONTINUE -- an allowed call: only told
//	  <-- EPERM ------------- <- SEND, errno ----- a refused one: this answer is the refusal
//
// A call that waits is one that is not lost: a storm of them is slow, takes a
// bounded amount of memory here, and every one is told. Signals do not wake a
// caller whose call was received (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 5.19),
// so none is told twice, but for what [InstallFlags] says. If the listener is closed, the calls fail with ENOSYS.
//
// What a call points to was read before the kernel reads it, and another thread may
// change it in between: it is what the caller said, and proves nothing. So whether
// an execve succeeded, and which file runs, is looked up afterwards where there is
// an occasion ([Outcome]). "Continue" permits nothing: calls that another filter, or
// the rest of the kernel, refuses are refused all the same.
package notify

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what is answered, and what is looked up.
type Config struct {
	// Decide says what a call ends with, by its number and registers; 0: it goes on.
	Decide func(nr int, args [6]uint64) unix.Errno
	// Instead makes a call that is refused in its caller's stead, and says what it ends with; done
	// is false for all that stay refused. waits says whether the caller still does, so that tid is
	// its own. No other call is answered meanwhile. nil: none is made.
	Instead func(nr int, tid uint32, args [6]uint64, waits func() bool) (result unix.Errno, done bool)
	// Paths are the calls whose path is read when they are refused, by number.
	Paths map[int]PathArg
	// MaxProcesses bounds how many processes are followed to their end at a time,
	// each with a descriptor; 0: half of what RLIMIT_NOFILE allows, at most 16384.
	MaxProcesses int
}

// PathArg says which arguments of a call are a path and the directory that it
// begins from, counted from 0; Dir -1: the working directory.
type PathArg struct{ Path, Dir int }

// Listener is the reader of one filter's listener.
type Listener struct {
	cfg   Config
	emit  func(*Event)
	fd    *os.File
	ends  int        // epoll, of the pidfds
	wake  int        // eventfd; Stop writes it
	mu    sync.Mutex // of wake, which Close sets to -1
	stop  atomic.Bool
	procs map[uint32]*process // by pid
	first uint32              // pid of the launcher: who is reported first; 0: nobody yet
	above uint32              // pid of its parent, which is none of the command's
	empty chan struct{}       // closed when no task has the filter any more
	began bool                // the launcher has become the command
	execs held
	page  [pageSize]byte
	stats Stats
	many  atomic.Bool // Stats.Untracked is not 0
}

// Stats are counted by Serve, and to be read when it has returned.
type Stats struct {
	Calls     uint64 // that were answered
	Made      uint64 // by Config.Instead, also where the caller was killed before the answer
	Gone      uint64 // others whose caller was killed before the answer: they were not made
	Unsettled uint64 // execves of which nothing more was seen
	Hidden    uint64 // of which nothing could be read in the caller's memory, since it hides that
	Untracked uint64 // looks at a process that was one too many: its end is not told
}

// New takes over the descriptor of a listener.
func New(fd *os.File, cfg Config) (*Listener, error) {
	l := &Listener{cfg: cfg, fd: fd, procs: map[uint32]*process{}, empty: make(chan struct{})}
	var err error
	if l.ends, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("notify: epoll_create1: %w", err), fd.Close())
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("notify: eventfd: %w", err), unix.Close(l.ends), fd.Close())
	}
	if l.cfg.MaxProcesses == 0 {
		l.cfg.MaxProcesses = room()
	}
	return l, nil
}

func room() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 256
	}
	return int(min(lim.Cur/2, 16384))
}

// Serve answers calls and tells emit of them, one at a time, until Stop. The event
// and what it points to are valid during the call only. While Serve does not run, or
// emit does not return, callers wait.
func (l *Listener) Serve(emit func(*Event)) error {
	l.emit = emit
	for {
		last := l.stop.Load()
		asked, err := l.wait(last)
		if err != nil {
			return err
		}
		if err := l.takeEnds(); err != nil {
			return err
		}
		if asked {
			if err := l.answer(); err != nil {
				return err
			}
		}
		l.settleDue()
		if last && !asked {
			l.finish()
			return nil
		}
	}
}

// wait waits until there is something to do, and says whether a call waits. A
// filter that no task has any more hangs up (5.9): from then on only ends come.
func (l *Listener) wait(last bool) (asked bool, err error) {
	fds := []unix.PollFd{
		{Fd: int32(l.fd.Fd()), Events: unix.POLLIN}, {Fd: int32(l.ends), Events: unix.POLLIN}, {Fd: int32(l.wake), Events: unix.POLLIN},
	}
	timeout := l.execs.next()
	if last {
		timeout = 0
	}
	for {
		_, err = unix.Poll(fds, timeout)
		if err == nil && fds[0].Revents == unix.POLLHUP && fds[1].Revents == 0 && fds[2].Revents == 0 {
			fds[0].Fd = -1 // it says so at once, each time
			l.emptied()
			continue
		}
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("notify: poll: %w", err)
	}
	return fds[0].Revents&unix.POLLIN != 0, nil
}

func (l *Listener) emptied() {
	select {
	case <-l.empty:
	default:
		close(l.empty)
	}
}

// Empty is closed while Serve runs, when no task has the filter any more: all have ended
// and, before Linux 6.11, been waited for.
func (l *Listener) Empty() <-chan struct{} { return l.empty }

// Stop makes Serve return when no call waits any more. The processes must be gone,
// or those that are left hang in their next call until the listener is closed. After Close,
// which a Serve that failed may be followed by, there is nothing to do.
func (l *Listener) Stop() error {
	l.stop.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake < 0 {
		return nil
	}
	if _, err := unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil && err != unix.EAGAIN {
		return fmt.Errorf("notify: eventfd: %w", err)
	}
	return nil
}

// Close gives everything back. Serve must have returned.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for pid, p := range l.procs {
		errs = append(errs, unix.Close(p.fd))
		delete(l.procs, pid)
	}
	errs = append(errs, unix.Close(l.ends), unix.Close(l.wake), l.fd.Close())
	l.wake = -1
	return errors.Join(errs...)
}

// Stats returns what was counted.
func (l *Listener) Stats() Stats { return l.stats }

// TooMany reports whether a process was one too many to be followed to its end. It may be asked while Serve runs.
func (l *Listener) TooMany() bool { return l.many.Load() }

// answer receives one call, looks at it, answers it and tells it.
func (l *Listener) answer() error {
	n, err := l.receive()
	if n == nil || err != nil {
		return err
	}
	now := bootTime()
	// Whoever had this pid before is told to have ended before the pid is looked up.
	if err := l.takeEnds(); err != nil {
		return err
	}
	errno := l.cfg.Decide(int(n.nr), n.args)
	if errno != 0 && l.cfg.Instead != nil {
		if result, done := l.cfg.Instead(int(n.nr), n.pid, n.args, func() bool { return l.valid(n) }); done {
			l.made(n, result)
			return nil
		}
	}
	var e *seen
	if l.valid(n) {
		e = l.look(n, now, errno)
	}
	if !l.valid(n) || !l.send(n, errno) {
		l.stats.Gone++
		return nil
	}
	l.stats.Calls++
	if e != nil {
		l.tell(e)
	}
	return nil
}

// made answers a call that was made by us.
func (l *Listener) made(n *notif, result unix.Errno) {
	l.stats.Made++
	if l.reply(notifResp{id: n.id, errno: -int32(result)}) {
		l.stats.Calls++
	}
}

// bootTime is CLOCK_BOOTTIME in ns.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail: the clock exists since 2.6.39
	return uint64(ts.Nano())
}

const tick = time.Millisecond
