//go:build linux

package notify

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is read of an execve, those of the kernel's own record (bpf/c).
const (
	maxPath     = unix.PathMax
	maxArgs     = 128 << 10 // bytes of all arguments
	maxEnv      = 64 << 10  // bytes of all names of the environment
	maxPointers = 16384     // of either
)

// pending is an execve that was told to go on. It is told when its outcome is
// known: at the next call of its thread, at the end of its process, when a child of
// it is seen, or after a while when another image is found in its place.
type pending struct {
	ev     Event
	before snapshot
	size   int
	due    time.Time
}

// snapshot is by what an image is told from the one that follows it. The addresses are
// set by execve, and by PR_SET_MM, which the filter refuses.
type snapshot struct {
	stat
	dev, ino uint64
	thread   uint32 // by which it was seen
	fixed    bool   // its execve is given addresses without randomization
	ok       bool
	hidden   bool              // we may not see it: its program cannot be read, or it has said so (PR_SET_DUMPABLE)
	argv     [sha256.Size]byte // argumentsOf one that hides
}

// snap looks at a process; caller is a thread of it that waits, or 0.
func snap(p *process, caller uint32) (s snapshot) {
	var err error
	if s.stat, err = readStat(p.PID); err != nil {
		return s
	}
	s.thread = p.PID
	if s.zombie && !s.byOther(p.PID, caller) {
		return s
	}
	var file unix.Stat_t
	err = unix.Stat(procPath(s.thread, "exe"), &file)
	s.dev, s.ino = file.Dev, file.Ino
	s.judge(err, caller != 0)
	return s
}

// judge says what can be seen of a process, by its stat and what became of a look at its
// program. Where it has a program and no stack, it has come to hide between the two looks, or is
// in the midst of an execve: the new memory has no stack at first (setup_arg_pages in
// fs/exec.c). Then there is nothing to be seen yet, unless a thread of it waits in a call.
func (s *snapshot) judge(program error, waits bool) {
	underWay := program == nil && s.stack == 0
	s.hidden = program == unix.EACCES || program == unix.EPERM || underWay && waits
	s.ok = program == nil && !underWay
}

// byOther looks at a process whose first thread has ended by another of its threads. Only the
// first one tells whether the process has executed something: each thread begins without.
func (s *snapshot) byOther(pid, caller uint32) bool {
	if s.thread = caller; caller == 0 {
		s.thread = livingThread(pid)
	}
	other, err := readStat(s.thread)
	if err != nil || other.zombie {
		return false
	}
	other.forked = s.forked
	s.stat = other
	return true
}

const addrNoRandomize = 0x0040000 // ADDR_NO_RANDOMIZE, include/uapi/linux/personality.h

// fixedAddresses reports whether the program that a thread executes lies where the
// one before it did: the addresses are not drawn (personality(2), proc_sys_kernel(5)). What
// cannot be read is believed to be so. The thread waits, and nobody else can change it.
func fixedAddresses(tid uint32) bool {
	var room [32]byte
	b, err := readProc(procPath(tid, "personality"), room[:])
	if err != nil {
		return true
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 16, 32)
	return err != nil || n&addrNoRandomize != 0 || !hostRandomizes()
}

// hostRandomizes reports whether stacks lie at random, as root has set it for all.
var hostRandomizes = sync.OnceValue(func() bool {
	var room [32]byte
	b, err := readProc("/proc/sys/kernel/randomize_va_space", room[:])
	return err == nil && len(b) > 0 && b[0] != '0'
})

// same reports whether no execve lies between. One of the same program that gets the
// same addresses (fixed) is not seen.
func (s *snapshot) same(o *snapshot) bool {
	return s.forked == o.forked && s.stack == o.stack && s.args == o.args && s.dev == o.dev && s.ino == o.ino
}

// held bounds the execves that wait for their outcome: beyond, the oldest is told without.
type held struct {
	queues [2][]*process // looked at after firstLook, and every laterLook; by when
	size   int           // bytes of all
	count  int
}

const (
	maxHeld      = 8 << 20
	maxHeldCount = 4096
	firstLook    = 20 * tick
	laterLook    = time.Second
	looksAtOnce  = 64
)

// readExec reads what an execve or execveat was given.
func (l *Listener) readExec(e *Event, path, argv, env uint64) {
	m := l.memory(e.TID)
	l.readPath(e, m, path)
	var whole bool
	if e.Argv, whole = m.list(argv, 0, maxArgs); !whole {
		e.ArgvCut, e.Argc = true, uint32(len(e.Argv))+1
	}
	e.Env, whole = m.list(env, '=', maxEnv)
	e.EnvCut = !whole
}

func (l *Listener) memory(tid uint32) *memory { return &memory{tid: int(tid), page: &l.page} }

// list reads the strings of argv or envp, each up to its NUL or the byte stop.
func (m *memory) list(addr uint64, stop byte, limit int) (list [][]byte, whole bool) {
	if addr == 0 { // the kernel takes it for an empty one
		return nil, true
	}
	pointers := &memory{tid: m.tid, page: new([pageSize]byte)}
	for len(list) < maxPointers {
		b := pointers.bytes(addr)
		if len(b) < 8 {
			return list, false
		}
		at := binary.LittleEndian.Uint64(b)
		if at == 0 {
			return list, true
		}
		text, ended, _ := m.text(nil, at, stop, limit)
		if limit -= len(text) + 1; !ended || limit <= 0 {
			return list, false
		}
		list, addr = append(list, text), addr+8
	}
	return list, false
}

// readPath reads a path and where it begins, when that is not the root.
func (l *Listener) readPath(e *Event, m *memory, addr uint64) {
	path, whole, ok := m.text(nil, addr, 0, maxPath)
	e.Path, e.Cut, e.Unreadable = path, !whole && ok, !ok
}

// begin reads the directory of a relative path: dir is a descriptor or AT_FDCWD.
func (e *Event) begin(dir int32) {
	if e.Unreadable || len(e.Path) > 0 && e.Path[0] == '/' {
		return
	}
	name := "cwd"
	if dir != unix.AT_FDCWD {
		name = "fd/" + strconv.Itoa(int(dir))
	}
	e.Dir, e.DirDeleted = readDir(e.TID, name)
}

// hold keeps an execve that goes on. before was taken while it waited.
func (l *Listener) hold(p *process, e *Event, before snapshot) {
	l.give(p, Unknown) // of another thread, which may be under way
	h := &l.execs
	if p.fd < 0 || !before.ok && !before.hidden || h.count >= maxHeldCount || h.size >= maxHeld {
		e.Launcher = false
		l.unsettled(e)
		return
	}
	p.exec = &pending{ev: *e, before: before, size: e.size(), due: time.Now().Add(firstLook)}
	h.size += p.exec.size
	h.count++
	h.queues[0] = append(h.queues[0], p)
}

func (l *Listener) unsettled(e *Event) {
	l.stats.Unsettled++
	l.emit(e)
}

func (e *Event) size() int {
	n := len(e.Path) + len(e.Dir)
	for _, list := range [][][]byte{e.Argv, e.Env} {
		for _, s := range list {
			n += len(s) + 24
		}
	}
	return n
}

// settle tells a pending execve of p if its outcome can be seen now. caller is the
// thread that makes a call, or 0: when the one of the execve does, and nothing has
// changed, the execve has failed, if a success would have changed something.
func (l *Listener) settle(p *process, caller uint32) {
	x := p.exec
	if x == nil {
		return
	}
	now := snap(p, caller)
	never := x.before.forked && now.forked // whoever else hides cannot hide this
	switch {
	case !now.ok && !now.hidden || !p.alive():
	case now.forked && !x.before.forked: // a thread that has taken the first one's place, and has the old program yet
	case never && caller != x.ev.TID:
	case x.before.hidden && !never:
		l.surface(p, &now, caller)
	case now.hidden && !never:
		l.give(p, Unknown)
	case !never && !now.same(&x.before):
		image, err := readImage(now.thread)
		if err != nil || !p.alive() {
			return
		}
		x.ev.Image = image
		l.give(p, Done)
	case caller == x.ev.TID && x.before.fixed && !never:
		l.give(p, Unknown)
	case caller == x.ev.TID:
		if x.ev.Errno = missing(&x.ev); x.before.hidden && x.ev.Unreadable { // by us; the kernel could read it
			x.ev.Errno = 0
		}
		l.give(p, Failed)
	}
}

// give tells the pending execve of p, if there is one.
func (l *Listener) give(p *process, o Outcome) {
	x := p.exec
	if x == nil {
		return
	}
	p.exec = nil
	l.execs.size -= x.size
	l.execs.count--
	if x.ev.Image.Inode != 0 {
		p.dev, p.ino = x.ev.Image.Dev, x.ev.Image.Inode
	}
	if o != Failed && p.PID == l.first { // one that failed is followed by a call of its
		l.began, x.ev.Launcher = true, false
	}
	if o == Unknown {
		l.unsettled(&x.ev)
		return
	}
	x.ev.Outcome = o
	l.emit(&x.ev)
}

// next is how long nothing is due, in ms for poll(2); -1: until something happens.
func (h *held) next() int {
	wait := -1
	for _, q := range h.queues {
		if len(q) > 0 {
			ms := 0
			if x := q[0].exec; x != nil {
				ms = max(0, int(time.Until(x.due)/tick)+1)
			}
			if wait < 0 || ms < wait {
				wait = ms
			}
		}
	}
	return wait
}

// settleDue looks at execves that have waited for a while: their process may
// never make another call that is told.
func (l *Listener) settleDue() {
	h := &l.execs
	for i := range h.queues {
		q := &h.queues[i]
		for looks := 0; len(*q) > 0 && looks < looksAtOnce; {
			p := (*q)[0]
			if p.exec == nil { // settled meanwhile
				*q = (*q)[1:]
				continue
			}
			if time.Until(p.exec.due) > 0 {
				break
			}
			*q = (*q)[1:]
			looks++
			if l.settle(p, 0); p.exec != nil {
				p.exec.due = time.Now().Add(laterLook)
				h.queues[1] = append(h.queues[1], p)
			}
		}
	}
}

func (l *Listener) sorted() []*process {
	var all []*process
	for _, p := range l.procs {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *process) int { return int(a.PID) - int(b.PID) })
	return all
}
