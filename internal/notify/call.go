//go:build linux

package notify

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// look makes an event of a call that waits; nil: it gets none now.
func (l *Listener) look(n *notif, now uint64, errno unix.Errno) *seen {
	p := l.sight(n.pid, now)
	if p == nil { // its event has a thread and nothing else
		p = &process{Process: Process{PID: n.pid}, fd: -1}
	}
	l.settle(p, n.pid)
	l.concede(p)
	s := &seen{p: p, e: Event{Time: now, Process: p.Process, TID: n.pid, NR: int(n.nr), Args: n.args, Errno: errno, Launcher: l.launcher(p)}}
	e := &s.e
	if errno != 0 {
		e.Type = Refused
		if at, ok := l.cfg.Paths[int(n.nr)]; ok {
			l.readPath(e, l.memory(e.TID), n.args[at.Path])
			e.begin(dirOf(n, at.Dir))
		}
		return l.unread(s)
	}
	if !l.lookAllowed(n, s) {
		return nil
	}
	return l.unread(s)
}

// lookAllowed reads what a call is about that goes on; false: the filter tells of
// something that this version does not know.
func (l *Listener) lookAllowed(n *notif, s *seen) bool {
	p, e := s.p, &s.e
	switch n.nr {
	case unix.SYS_EXECVE:
		e.Type, s.before = Exec, before(p, e.TID)
		l.readExec(e, n.args[0], n.args[1], n.args[2])
		e.begin(unix.AT_FDCWD)
	case unix.SYS_EXECVEAT:
		e.Type, s.before = Exec, before(p, e.TID)
		l.readExec(e, n.args[1], n.args[2], n.args[3])
		e.begin(int32(n.args[0]))
	case unix.SYS_CONNECT:
		e.Type = Connect
		l.readAddr(e, n.args[1], n.args[2])
	case unix.SYS_BIND:
		e.Type = Bind
		l.readAddr(e, n.args[1], n.args[2])
	case unix.SYS_SENDTO:
		e.Type = Send
		l.readAddr(e, n.args[4], n.args[5])
	case unix.SYS_EXIT_GROUP:
		e.Type = Exit
		e.Status, e.StatusKnown = unix.WaitStatus(n.args[0]&0xff<<8), true
		if st, err := readStat(p.PID); err == nil {
			e.User, e.System = st.user, st.system
		}
	default:
		return false
	}
	return true
}

func dirOf(n *notif, arg int) int32 {
	if arg < 0 {
		return unix.AT_FDCWD
	}
	return int32(n.args[arg])
}

const maxAddr = 128 // sizeof(struct sockaddr_storage)

func (l *Listener) readAddr(e *Event, addr, size uint64) {
	var b [maxAddr]byte
	want := int(min(uint32(size), maxAddr))
	if want == 0 {
		return
	}
	n := readMemory(int(e.TID), addr, b[:want])
	e.Addr, e.Unreadable = bytes.Clone(b[:n]), n < want
}

// seen is an event and whose it is.
type seen struct {
	p      *process
	e      Event
	before snapshot // Exec
}

// tell tells a call that was answered.
func (l *Listener) tell(s *seen) {
	p, e := s.p, &s.e
	switch {
	case e.Type == Exec:
		l.flush(p)
		l.hold(p, e, s.before)
	case e.Type == Exit && p.fd >= 0: // told when it has ended
		p.asked, p.exiting, p.user, p.system = e.Status, true, e.User, e.System
	case e.Type == Refused || e.Type == Send:
		if !p.again.is(e) {
			l.flush(p)
			p.again.begin(e, p.fd >= 0)
			l.emit(e)
		}
	default:
		l.flush(p)
		l.emit(e)
	}
}

// repeat counts calls of a process that differ in nothing from its last one.
type repeat struct {
	last Event
	more uint64
}

// maxRepeat bounds what is kept of the last call of each process.
const maxRepeat = 512

func (r *repeat) begin(e *Event, kept bool) {
	*r = repeat{}
	if kept && len(e.Path)+len(e.Dir) <= maxRepeat {
		r.last = *e
	}
}

// is reports whether e is the last one again, which is then counted.
func (r *repeat) is(e *Event) bool {
	l := &r.last
	if l.Type != e.Type || l.NR != e.NR || l.TID != e.TID || l.Args != e.Args || l.Unreadable != e.Unreadable ||
		!bytes.Equal(l.Path, e.Path) || !bytes.Equal(l.Dir, e.Dir) || !bytes.Equal(l.Addr, e.Addr) {
		return false
	}
	r.more++
	l.Time = e.Time
	return true
}

// flush tells how often the last call of p came again.
func (l *Listener) flush(p *process) {
	if n := p.again.more; n > 0 {
		p.again.last.Count = n
		l.emit(&p.again.last)
	}
	p.again = repeat{}
}
