//go:build linux

package notify

import (
	"bytes"
	"crypto/sha256"

	"golang.org/x/sys/unix"
)

// A process that is not dumpable is closed to others of its user (__ptrace_may_access in kernel/ptrace.c), and
// so are the arguments of its calls. CAP_SYS_PTRACE over the user namespace that its memory
// belongs to opens it. That is the one in which its program was executed: the run's own, where the supervisor
// has one; but where a program may not be read, and belongs to somebody who has no name there, it is
// one further up (would_dump in fs/exec.c), over which only real root has rights. A listener gives none either.
//
// What anybody may see remains: that it has executed something (PF_FORKNOEXEC), its arguments once it has,
// and, when the next program hides nothing, which one that is.

// maxCmdline bounds what is read of them.
const maxCmdline = maxArgs

// before looks at a process whose execve waits.
func before(p *process, caller uint32) snapshot {
	s := snap(p, caller)
	if s.fixed = fixedAddresses(caller); s.hidden {
		s.argv = argumentsOf(p.PID)
	}
	return s
}

// argumentsOf is a digest: they may be long, and are only compared.
func argumentsOf(pid uint32) [sha256.Size]byte { return sha256.Sum256(cmdline(pid)) }

func cmdline(pid uint32) []byte {
	fd, err := unix.Open(procPath(pid, "cmdline"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var all []byte
	for room := make([]byte, pageSize); len(all) < maxCmdline; {
		n, err := unix.Read(fd, room)
		if err != nil || n <= 0 {
			break
		}
		all = append(all, room[:n]...)
	}
	return all
}

// unread marks an event of a process that does not let its memory be read.
func (l *Listener) unread(s *seen) *seen {
	e := &s.e
	if !e.Unreadable || len(e.Argv) > 0 {
		return s
	}
	if e.Hidden = s.before.hidden; e.Type != Exec {
		now := snap(s.p, e.TID)
		e.Hidden = now.hidden
	}
	if e.Hidden {
		l.stats.Hidden++
	}
	return s
}

// surface tells an execve of a process that hid, when something can be seen of it. Whether it succeeded is known of one that
// had executed nothing before, and where the program that runs now is not the one that did.
func (l *Listener) surface(p *process, now *snapshot, caller uint32) {
	x := p.exec
	done := x.before.forked && !now.forked || now.ok && p.ino != 0 && (now.ino != p.ino || now.dev != p.dev)
	if now.hidden && !done && caller == 0 {
		return // it may be under way
	}
	args := cmdline(p.PID)
	var image Image
	var err error
	if now.ok {
		image, err = readImage(now.thread)
	}
	if err != nil || !p.alive() {
		return
	}
	if e := &x.ev; e.Hidden && len(args) > 0 && (done || sha256.Sum256(args) != x.before.argv) {
		e.Argv, e.ArgvCut, e.ArgvLater = bytes.Split(bytes.TrimSuffix(args, []byte{0}), []byte{0}), len(args) >= maxCmdline, true
		e.Argc = uint32(len(e.Argv))
	}
	x.ev.Image = image
	if done && now.ok {
		l.give(p, Done)
		return
	}
	l.give(p, Unknown)
}

// concede tells an execve of a process that hides before what follows it.
func (l *Listener) concede(p *process) {
	if x := p.exec; x != nil && x.before.hidden && !x.before.forked {
		l.give(p, Unknown)
	}
}
