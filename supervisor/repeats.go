package supervisor

import (
	"bytes"
	"hash/maphash"
	"slices"

	"github.com/agentguard/agentguard/trace"
)

// repeats remembers acts that may come again and are then only counted: what a
// thread has in the slots of the sensor, which counts by itself, and failed
// calls, which are counted here. The table is bounded: when it is full, the one
// that came first goes, after its count was written.
type repeats struct {
	seed  maphash.Seed
	at    map[uint64]int32 // by hash of the key: index in list
	list  []repeat
	first map[uint32]int32 // by process: its acts, linked
	free  []int32
	hand  int32 // the next one to go
	ended []life
}

const maxRepeats = 8192

// maxEnded bounds the processes whose slots are remembered past their end.
const maxEnded = 64

// life is a process that had a number until it ended.
type life struct {
	pid   uint32
	start uint64
}

// repeat is an act that was recorded.
type repeat struct {
	key        []byte
	hash       uint64
	prev, next int32 // of the same process; none: -1
	live       bool

	count uint64 // times after it was recorded
	mono  uint64 // of the last one
	proc  trace.Proc
	texts []byte // path, to
	split int    // where to begins

	kind                     trace.Kind
	source                   trace.PathSource
	syscall, access          string
	nr, errno                int32
	pathLen, toLen, mode     uint32
	devMajor, devMinor       uint32
	flags, resolve, ino      uint64
	memfd, deleted, anon     bool
	filtered                 bool // a failed call
	verdict                  trace.Verdict
	layer                    trace.Layer
	certainty                trace.Certainty
	rule, ruleSource, remedy string
	blockers                 string
	newUID, newGID           int64
}

// find returns the act of this key, or nil.
func (t *repeats) find(key []byte) *repeat {
	if t.at == nil {
		return nil
	}
	if i, ok := t.at[maphash.Bytes(t.seed, key)]; ok && bytes.Equal(t.list[i].key, key) {
		return &t.list[i]
	}
	return nil
}

// put remembers the act of e in place of what the key stood for. Where two keys
// have one hash, the second is not remembered: each of its acts has a record.
func (t *repeats) put(key []byte, e *trace.Event, write func(*repeat)) {
	if t.at == nil {
		t.seed, t.at, t.first = maphash.MakeSeed(), map[uint64]int32{}, map[uint32]int32{}
	}
	hash := maphash.Bytes(t.seed, key)
	i, ok := t.at[hash]
	if ok && !bytes.Equal(t.list[i].key, key) {
		return
	}
	if ok { // of a thread whose number another process has now, perhaps
		t.unlink(i)
	} else {
		i = t.take(write)
		t.at[hash] = i
	}
	t.link(i, e.Proc.Pid)
	m := &t.list[i]
	m.key, m.hash, m.live = append(m.key[:0], key...), hash, true
	m.remember(e)
}

// take finds room.
func (t *repeats) take(write func(*repeat)) int32 {
	for len(t.free) == 0 && len(t.list) >= maxRepeats && len(t.ended) > 0 {
		t.forgetEnded(write)
	}
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i
	}
	if len(t.list) < maxRepeats {
		t.list = append(t.list, repeat{})
		return int32(len(t.list) - 1)
	}
	i := t.hand
	t.hand = (t.hand + 1) % maxRepeats
	t.drop(i, write)
	t.free = t.free[:len(t.free)-1]
	return i
}

func (t *repeats) link(i int32, pid uint32) {
	m := &t.list[i]
	m.prev, m.next = -1, -1
	if head, ok := t.first[pid]; ok {
		m.next = head
		t.list[head].prev = i
	}
	t.first[pid] = i
}

func (t *repeats) unlink(i int32) {
	m := &t.list[i]
	switch {
	case m.prev >= 0:
		t.list[m.prev].next = m.next
	case m.next >= 0:
		t.first[m.proc.Pid] = m.next
	default:
		delete(t.first, m.proc.Pid)
	}
	if m.next >= 0 {
		t.list[m.next].prev = m.prev
	}
}

// drop forgets an act after its count was written.
func (t *repeats) drop(i int32, write func(*repeat)) {
	m := &t.list[i]
	if m.count > 0 {
		write(m)
	}
	t.unlink(i)
	delete(t.at, m.hash)
	m.live, m.count = false, 0
	if cap(m.texts) > 1024 {
		m.texts = nil
	}
	t.free = append(t.free, i)
}

// leave writes the counts of a process and forgets its acts: it has ended, or
// is another program from now on.
func (t *repeats) leave(pid uint32, write func(*repeat)) {
	for {
		i, ok := t.first[pid]
		if !ok {
			return
		}
		t.drop(i, write)
	}
}

// end writes the counts of a process that has ended. What its threads had in
// their slots is kept for a while: the kernel takes the threads out one by one,
// and one that it interrupts after it has left tells its counts after the
// process's end (do_exit in kernel/exit.c, on_exit in bpf/c/task.h).
func (t *repeats) end(pid uint32, start uint64, write func(*repeat)) {
	kept := false
	for i, ok := t.first[pid]; ok && i >= 0; {
		m := &t.list[i]
		at := i
		i = m.next
		if m.key[0] == slotted {
			kept = true
			continue
		}
		t.drop(at, write)
	}
	if !kept {
		return
	}
	if len(t.ended) >= maxEnded {
		t.forgetEnded(write)
	}
	t.ended = append(t.ended, life{pid, start})
}

// forgetEnded forgets the acts of the process that ended first.
func (t *repeats) forgetEnded(write func(*repeat)) {
	l := t.ended[0]
	t.ended = slices.Delete(t.ended, 0, 1)
	for i, ok := t.first[l.pid]; ok && i >= 0; {
		at := i
		i = t.list[i].next
		if t.list[at].proc.Start == l.start { // another process may have its number now
			t.drop(at, write)
		}
	}
}

func (t *repeats) leaveAll(write func(*repeat)) {
	for i := range t.list {
		if t.list[i].live {
			t.drop(int32(i), write)
		}
	}
}

// remember copies what the record of an act says, but when it was.
func (m *repeat) remember(e *trace.Event) {
	m.count, m.proc = 0, e.Proc
	m.texts = append(append(m.texts[:0], e.Path...), e.To...)
	m.split = len(e.Path)
	m.kind, m.source, m.syscall, m.access = e.Kind, e.PathSource, e.Syscall, e.Access
	m.nr, m.errno, m.pathLen, m.toLen, m.mode = e.SyscallNr, e.Errno, e.PathLen, e.ToLen, e.Mode
	m.devMajor, m.devMinor, m.flags, m.resolve, m.ino = e.DevMajor, e.DevMinor, e.Flags, e.Resolve, e.Ino
	m.memfd, m.deleted, m.anon, m.filtered = e.Memfd, e.Deleted, e.Anon, e.Filtered
	m.verdict, m.layer, m.certainty = e.Verdict, e.Layer, e.Certainty
	m.rule, m.ruleSource, m.remedy, m.blockers = e.Rule, e.RuleSource, e.Remedy, e.Blockers
	m.newUID, m.newGID = e.NewUID, e.NewGID
}

// fill makes e a record of the same act.
func (m *repeat) fill(e *trace.Event) {
	e.Path, e.To = m.texts[:m.split:m.split], m.texts[m.split:]
	e.Kind, e.PathSource, e.Syscall, e.Access = m.kind, m.source, m.syscall, m.access
	e.SyscallNr, e.Errno, e.PathLen, e.ToLen, e.Mode = m.nr, m.errno, m.pathLen, m.toLen, m.mode
	e.DevMajor, e.DevMinor, e.Flags, e.Resolve, e.Ino = m.devMajor, m.devMinor, m.flags, m.resolve, m.ino
	e.Memfd, e.Deleted, e.Anon = m.memfd, m.deleted, m.anon
	e.Verdict, e.Layer, e.Certainty = m.verdict, m.layer, m.certainty
	e.Rule, e.RuleSource, e.Remedy, e.Blockers = m.rule, m.ruleSource, m.remedy, m.blockers
	e.NewUID, e.NewGID = m.newUID, m.newGID
}
