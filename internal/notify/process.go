//go:build linux

package notify

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// process is one that is followed to its end by a pidfd: as long as that lives, the
// pid is this process's and no other's.
type process struct {
	Process
	fd      int      // pidfd; -1: one too many, nothing is kept of it
	exec    *pending // an execve whose outcome is not known yet
	again   repeat
	asked   unix.WaitStatus // of its exit_group(2)
	exiting bool
	fresh   bool   // it had executed nothing when it was met
	user    uint64 // CPU time until then, ns
	system  uint64
	ended   uint64 // when it was seen to be a zombie; 0: it was not
	dev     uint64 // of the program that it runs, where that was told
	ino     uint64
}

// sight returns the process of a thread that waits; nil: it is gone, or hidden.
func (l *Listener) sight(tid uint32, now uint64) *process {
	if p := l.procs[tid]; p != nil { // the leader of a process that lives: its pid is taken
		return p
	}
	who, err := readStatus(tid)
	if err != nil {
		return nil
	}
	if p := l.procs[who.PID]; p != nil {
		return p
	}
	return l.meet(who, now, maxAncestors, 0)
}

// maxAncestors bounds how many processes are told of because a descendant of
// theirs made a call.
const maxAncestors = 64

// meet begins to follow a process, after its parents, which have made no call yet,
// and tells of it: nothing is told when it is made. child is by whom it was found;
// 0: by itself, which waits.
func (l *Listener) meet(who Process, now uint64, depth int, child uint32) *process {
	st, err := readStat(who.PID)
	if err != nil {
		return nil
	}
	p := &process{Process: who, fd: -1}
	p.Start, p.fresh = st.start, st.forked
	l.follow(p)
	if child != 0 {
		// Its pid is its own as long as it is the parent: of one that dies the child gets another.
		if c, err := readStatus(child); err != nil || c.PPID != p.PID {
			l.forget(p)
			return nil
		}
	}
	if l.first == 0 {
		l.first, l.above = p.PID, p.PPID
		p.ParentStart = l.startOf(p.PPID)
		return p
	}
	parent := l.parent(p, now, depth)
	p.ParentStart = parent.Start
	l.settle(parent, 0) // what it has become is told before its children
	l.concede(parent)
	if p.fd >= 0 {
		l.emit(&Event{Type: Fork, Time: now, Process: parent.Process, TID: parent.PID, NR: -1, Child: p.Process, Launcher: l.launcher(parent)})
	}
	return p
}

// parent is that of p, which is met too if it is one of the command's.
func (l *Listener) parent(p *process, now uint64, depth int) *process {
	if parent := l.procs[p.PPID]; parent != nil {
		return parent
	}
	if p.PPID != l.above && p.PPID > 1 && int(p.PPID) != os.Getpid() && depth > 0 {
		if who, err := readStatus(p.PPID); err == nil {
			if parent := l.meet(who, now, depth-1, p.PID); parent != nil {
				return parent
			}
		}
	}
	return &process{Process: Process{PID: p.PPID, Start: l.startOf(p.PPID)}, fd: -1}
}

// startOf is when a process began; 0: unknown.
func (l *Listener) startOf(pid uint32) uint64 {
	if p := l.procs[pid]; p != nil {
		return p.Start
	}
	st, err := readStat(pid)
	if err != nil {
		return 0
	}
	return st.start
}

// follow keeps p until it ends, if there is room for it.
func (l *Listener) follow(p *process) {
	if len(l.procs) >= l.cfg.MaxProcesses {
		l.oneTooMany()
		return
	}
	fd, err := unix.PidfdOpen(int(p.PID), 0)
	if err == nil {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.PID)}
		if err = unix.EpollCtl(l.ends, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			_ = unix.Close(fd) // nothing was written to it
		}
	}
	if err != nil { // no room for descriptors
		l.oneTooMany()
		return
	}
	p.fd = fd
	l.procs[p.PID] = p
}

func (l *Listener) oneTooMany() {
	l.stats.Untracked++
	l.many.Store(true)
}

// forget ends what follow began.
func (l *Listener) forget(p *process) {
	if p.fd >= 0 {
		delete(l.procs, p.PID)
		_ = unix.Close(p.fd) // a pidfd has nothing to write
	}
}

// takeEnds tells of every process that has ended by now.
func (l *Listener) takeEnds() error {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(l.ends, events[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("notify: epoll_wait: %w", err)
		}
		for _, e := range events[:n] {
			if err := l.ending(l.procs[uint32(e.Fd)]); err != nil {
				return err
			}
		}
		if n < len(events) {
			return nil
		}
	}
}

// ending tells the end of a process, or waits for its status: a zombie's is known
// when its parent has taken it.
func (l *Listener) ending(p *process) error {
	if p == nil {
		return nil
	}
	if p.ended == 0 {
		p.ended = bootTime()
	}
	status, known, later := exitInfo(p.fd)
	if later {
		hup := unix.EpollEvent{Fd: int32(p.PID)} // no events: the hang-up alone
		if err := unix.EpollCtl(l.ends, unix.EPOLL_CTL_MOD, p.fd, &hup); err != nil {
			return fmt.Errorf("notify: epoll_ctl: %w", err)
		}
		return nil
	}
	l.leave(p, status, known)
	return nil
}

// leave tells the end of p. What its exit_group asked for is its status unless it
// was killed: what the kernel keeps is that of the first thread, which may
// have ended by itself before.
func (l *Listener) leave(p *process, status unix.WaitStatus, known bool) {
	l.settle(p, 0)
	l.give(p, Unknown)
	l.flush(p)
	if p.exiting && !(known && status.Signaled()) {
		status, known = p.asked, true
	}
	launcher := l.launcher(p)
	l.forget(p)
	l.emit(&Event{
		Type: Exit, Time: p.ended, Process: p.Process, TID: p.PID, NR: -1, Launcher: launcher,
		Status: status, StatusKnown: known, User: p.user, System: p.system,
	})
}

// finish tells what is left when nothing waits any more.
func (l *Listener) finish() {
	for _, p := range l.sorted() {
		if p.ended == 0 && !dead(p.fd) {
			l.settle(p, 0)
			l.give(p, Unknown)
			l.flush(p)
			continue // it lives: Stop came too early
		}
		if p.ended == 0 {
			p.ended = bootTime()
		}
		status, known, _ := exitInfo(p.fd)
		l.leave(p, status, known)
	}
}

// dead reports whether the process of a pidfd has ended.
func dead(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// alive reports whether a followed process is not reaped: what was read in /proc
// before was its own.
func (p *process) alive() bool {
	err := unix.PidfdSendSignal(p.fd, 0, nil, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// launcher reports whether p is still the launcher. That it has executed a program is
// seen of everybody: it may hide all else before anything of its execve was seen.
func (l *Listener) launcher(p *process) bool {
	if l.began || p.PID != l.first {
		return false
	}
	if st, err := readStat(p.PID); err == nil && p.fresh && !st.forked && p.alive() {
		l.began = true
	}
	return !l.began
}
