package tally

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A process whose first thread has ended is a zombie in /proc/PID while its other threads go on: there it
// has neither memory nor descriptors. They are read by a thread that lives, as /proc/TID.

// threadTries bounds how often another thread is looked for when one has ended before it was read.
const threadTries = 16

// ended reports that the thread of the status has given up its memory, and gets no other.
func (p *status) ended() bool { return p.state == 'Z' || p.state == 'X' || !p.mapped }

// threadOf is what /proc/PID/task/TID/stat says of one thread.
func threadOf(pid, tid int) (status, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return status{}, err
	}
	return parseStat(b)
}

// through calls read with the directory of a thread that lives, and with that of another one where the thread
// has ended meanwhile. It reports false where the process had ended before it was read. One that changes its threads faster than
// they are read hides.
func (t *Tally) through(p *status, read func(dir string) error) bool {
	dead := map[int]bool{}
	for range threadTries {
		if p.tid != 0 {
			err := read(fmt.Sprintf("/proc/%d/", p.tid))
			if err == nil || t.fails(err) || t.late() {
				return true
			}
			if s, gone := threadOf(p.pid, p.tid); gone == nil && !s.ended() {
				t.refused(p.process, p.tid, err)
				return true
			}
		}
		if more, err := p.another(dead); !more {
			return t.fails(err)
		}
	}
	t.brief = true
	t.hide(p.process)
	return true
}

// another looks for a thread that lives, and reports false when there is none. That takes a list of threads in
// which all were seen to have ended before: of a list that is as old as the look one may have begun another. With an error,
// which none is that tells of an end, it is not known.
func (p *status) another(dead map[int]bool) (more bool, err error) {
	p.tid = 0
	if now, err := statusOf(p.pid); err != nil || now.process != p.process {
		return false, unlessGone(err)
	}
	list, err := numbered(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil && !isGone(err) {
		return false, err
	}
	for _, tid := range list {
		if dead[tid] {
			continue
		}
		more = true
		s, err := threadOf(p.pid, tid)
		switch {
		case err == nil && !s.ended():
			p.tid = tid
			return true, nil
		case err == nil:
			dead[tid] = true
		case !isGone(err):
			return false, err
		}
	}
	return more, nil
}

func unlessGone(err error) error {
	if err != nil && isGone(err) {
		return nil
	}
	return err
}

// refused notes a process of which something could not be read by a thread for want of a permission. A thread that
// has given up its memory is root's as well, but only ends: so its state is read afterwards.
func (t *Tally) refused(p process, tid int, err error) {
	if t.fails(err); !errors.Is(err, os.ErrPermission) {
		return
	}
	if s, err := threadOf(p.pid, tid); err != nil || s.ended() {
		return
	}
	if now, err := statusOf(p.pid); err == nil && now.process == p {
		t.hide(p)
	}
}

// unseen notes a child that /proc does not show, or not to us, and that lives: with hidepid there one that is not
// dumpable is shown to nobody of its user's (proc(5)). Its parent's list of children has it all the same. It reports false of one that has ended.
func (t *Tally) unseen(pid int, err error) bool {
	if t.fails(err) {
		return true
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return false
	}
	if err := unix.Kill(pid, 0); err != nil && err != unix.EPERM {
		return false
	}
	t.hide(process{pid: pid})
	return true
}

func (t *Tally) hide(p process) {
	if len(t.hiding) == 0 || t.hiding[len(t.hiding)-1] != p {
		t.hiding = append(t.hiding, p)
	}
}

// What kcmp(2) compares: do two processes have one memory, two threads one table of descriptors?
const (
	kcmpVM    = 1 // KCMP_VM
	kcmpFiles = 2 // KCMP_FILES
)

// same asks the kernel, which says it to whom it lets read smaps_rollup: nothing that a process may choose
// does. Where it does not (CONFIG_KCMP, a filter around us) they are two.
func same(a, b, what int) bool {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(what), 0, 0, 0)
	return errno == 0 && order == 0
}

// sameMemory reports whether two processes have one memory (CLONE_VM, as vfork(2) and posix_spawn(3) have
// it until the execve).
func sameMemory(a, b *status) bool {
	if a.tid == 0 || b.tid == 0 || !same(a.tid, b.tid, kcmpVM) {
		return false
	}
	s, err := threadOf(b.pid, b.tid) // threads that have ended are alike as well
	return err == nil && !s.ended()
}
