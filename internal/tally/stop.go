package tally

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Stopped is processes that were stopped and can be let go on.
type Stopped struct{ list []process }

// stopRounds bounds how often new processes are looked for: each that is found was
// born of one that was not stopped yet. stopPause is between two rounds that find none, as long as some are still to
// take their signal: a fork that was under way when it came is not broken off by it (copy_process in kernel/fork.c).
// That ends after stopPauses, since one whom another lets go on at once would never be seen to stand; they are counted and
// not timed, so that each gives the others a turn on a machine that stands still for a while, too.
const (
	stopRounds = 1000
	stopPause  = time.Millisecond
	stopPauses = 500
)

// Stop stops the processes by SIGSTOP, which their parents see, and any of them may undo for
// another: what there is without a freezer. Those that are stopped already stay so afterwards.
// With an error it has let all others go on.
func (t *Tally) Stop() (*Stopped, error) {
	var spare [2]int // descriptors for Continue, where a lack of them is the error
	if err := unix.Pipe2(spare[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	s := &Stopped{}
	err := s.stop(t)
	_, _ = unix.Close(spare[0]), unix.Close(spare[1])
	if err != nil {
		return nil, errors.Join(err, s.Continue())
	}
	return s, nil
}

// list is all that walk finds.
func (t *Tally) list() (list []status, err error) {
	_, err = t.walk(func(p *status) bool {
		list = append(list, *p)
		return true
	})
	return list, err
}

func (s *Stopped) stop(t *Tally) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ours := map[process]bool{}
	pauses := 0
	for range stopRounds {
		list, err := t.list()
		if err != nil {
			return err
		}
		running, pending := 0, false
		for i := range list {
			p := &list[i]
			if ours[p.process] {
				pending = pending || t.goes(p)
				continue
			}
			if p.stopped() {
				continue
			}
			running++
			if err := p.signal(unix.SIGSTOP); err != nil {
				return err
			}
			ours[p.process] = true
			s.list = append(s.list, p.process)
		}
		if running > 0 {
			continue
		}
		if pauses++; !pending || pauses > stopPauses {
			break
		}
		time.Sleep(stopPause)
	}
	return nil
}

// goes reports whether a thread of a process that was told to stop has not come to it yet. One that waits where no signal
// wakes it (D) does not until then: for the child of a vfork(2), which is stopped, or for us, who answer its call.
func (t *Tally) goes(p *status) bool {
	for _, tid := range t.tids(p.pid, p.threads) {
		if s, err := threadOf(p.pid, tid); err == nil && (s.state == 'R' || s.state == 'S') {
			return true
		}
	}
	return false
}

// stopped reports that there is nothing to stop: it is stopped already, or ends.
func (p *status) stopped() bool {
	state := p.state
	if dead := map[int]bool{}; state == 'Z' {
		state = 'X'
		for range threadTries {
			if more, err := p.another(dead); err != nil {
				return false // signal will tell
			} else if !more {
				break
			}
			if s, err := threadOf(p.pid, p.tid); p.tid != 0 && err == nil {
				state = s.state
				break
			}
			state = 'R' // it changes its threads
		}
	}
	return state == 'T' || state == 't' || state == 'X'
}

// Continue lets them go on. Those that have ended do not matter; those that could not
// be reached are tried again by the next call.
func (s *Stopped) Continue() error {
	var errs []error
	var left []process
	for _, p := range slices.Backward(s.list) {
		if err := p.signal(unix.SIGCONT); err != nil {
			errs, left = append(errs, err), append(left, p)
		}
	}
	s.list = left
	return errors.Join(errs...)
}

// signal reaches the process itself and no later one with its number.
func (p process) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ESRCH || err == unix.EINVAL { // it is gone; the number may be a thread's by now
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	now, err := statusOf(p.pid)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && now.process != p {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}
