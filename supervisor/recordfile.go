package supervisor

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// file fills in a file that was opened or mapped, and remembers it for the
// counts that may follow.
func (r *recorder) file(b *bpf.Event) {
	e, f := &r.ev, &b.File
	info := callOf(b.NR)
	switch b.Type {
	case bpf.FD:
		e.Kind, e.FD = trace.KindInherit, int32(b.Ret)
	case bpf.Receive:
		e.Kind, e.FD = trace.KindReceive, int32(b.Ret)
		e.Syscall, e.SyscallNr = info.name, int32(b.NR)
	default:
		e.Kind = fileKind(f)
		r.numbers(info, b.NR, &f.Args, f.Resolve)
	}
	if e.Kind == trace.KindOpen && e.Flags&unix.O_TMPFILE == unix.O_TMPFILE {
		e.Kind = trace.KindCreate // the kernel does not mark it as one
	}
	if f.How == bpf.Opened {
		e.Access = accessOf(f.FMode)
	} else {
		e.Flags = f.Args[2] // PROT_*
	}
	if b.Type == bpf.File && f.How == bpf.Opened {
		e.Ret = b.Ret
	}
	if e.Anon = f.How == bpf.MappedAnon || f.How == bpf.MappedCopy; f.How == bpf.MappedAnon {
		r.anonymous(b)
		return
	}
	r.kernelPath(&f.Path, f.Mode, f.Inode)
	e.PathSource = trace.PathFDExit
	if f.Object || b.Type == bpf.FD {
		e.PathSource = trace.PathKernel
	}
	if !bytes.Equal(f.Given, e.Path) {
		e.PathGiven = f.Given
	}
	e.DevMajor, e.DevMinor, e.Ino, e.Ctime = unix.Major(f.Dev), unix.Minor(f.Dev), f.Inode, f.Ctime
	if f.Slot != noSlot {
		r.repeats.put(r.slotKey(b), e, r.writeRepeat)
	}
}

// anonymous is for memory of no file that is to be executed: there is no path,
// and how often the thread does it again is counted.
func (r *recorder) anonymous(b *bpf.Event) {
	if b.File.Slot != noSlot {
		r.repeats.put(r.slotKey(b), &r.ev, r.writeRepeat)
	}
}

const noSlot = 255 // bpf.FileInfo.Slot of a file that is not counted again

const slotted = 's' // begins the keys of what threads have in their slots

// slotKey names what a thread has in one of its slots.
func (r *recorder) slotKey(b *bpf.Event) []byte {
	r.key = append(r.key[:0], slotted, b.File.Slot)
	r.key = binary.LittleEndian.AppendUint32(r.key, b.TID)
	return r.key
}

// repeat fills in how often a thread did again what an earlier record says.
// Where that is not remembered any more, the file has no path.
func (r *recorder) repeat(b *bpf.Event) {
	e, f := &r.ev, &b.File
	e.Kind, e.Count = fileKind(f), f.Count
	if f.How == bpf.Opened {
		e.Access = accessOf(f.FMode)
	}
	e.DevMajor, e.DevMinor, e.Ino, e.Ctime = unix.Major(f.Dev), unix.Minor(f.Dev), f.Inode, f.Ctime
	e.Anon = f.How == bpf.MappedAnon || f.How == bpf.MappedCopy
	if m := r.repeats.find(r.slotKey(b)); m != nil && m.ino == f.Inode {
		m.fill(e)
	}
}

func fileKind(f *bpf.FileInfo) trace.Kind {
	switch {
	case f.How == bpf.MappedExec, f.How == bpf.MappedAnon, f.How == bpf.MappedCopy:
		return trace.KindMmapExec
	case f.How == bpf.MappedWrite:
		return trace.KindMmapWrite
	case f.FMode&bpf.FModeCreated != 0:
		return trace.KindCreate
	}
	return trace.KindOpen
}

// accessOf goes by what the kernel granted, not by the flags of the call.
func accessOf(mode uint32) string {
	switch {
	case mode&bpf.FModePath != 0:
		return "path"
	case mode&(bpf.FModeRead|bpf.FModeWrite) == bpf.FModeRead|bpf.FModeWrite:
		return "rw"
	case mode&bpf.FModeWrite != 0:
		return "w"
	}
	return "r"
}

// kernelPath fills in the path of an object. What has no name in any directory
// is called as /proc/PID/fd calls it.
func (r *recorder) kernelPath(p *bpf.Path, mode uint16, ino uint64) {
	e := &r.ev
	e.Path, e.PathLen = p.Text, cutLen(p)
	e.Deleted, e.Memfd = p.Deleted, isMemfd(p)
	if len(p.Text) > 0 {
		return
	}
	r.text = r.text[:0]
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		r.text = append(r.text, "pipe:["...)
	case unix.S_IFSOCK:
		r.text = append(r.text, "socket:["...)
	default:
		r.text = append(r.text, "anon:["...)
	}
	r.text = append(strconv.AppendUint(r.text, ino, 10), ']')
	e.Path = r.text
}

// isMemfd goes by the kernel's own name for such a file: a file of a directory
// that is called so is rooted.
func isMemfd(p *bpf.Path) bool {
	return !p.Rooted && bytes.HasPrefix(p.Text, []byte("memfd:"))
}

// change fills in a call on files that succeeded, or failed in some other way
// than by a refusal; false if it is only counted.
func (r *recorder) change(b *bpf.Event) bool {
	r.call(b, callOf(b.NR).kind)
	e := &r.ev
	if e.Errno == 0 {
		return true
	}
	if e.Kind == trace.KindConnect || e.Kind == trace.KindBind || e.Kind == trace.KindSend {
		return r.unreached(b)
	}
	if b.Call.Refused.By != 0 { // as a rename between directories, which ends with EXDEV
		r.judge(b)
	}
	m := r.repeats.find(r.failKey())
	if m != nil {
		m.count++
		m.mono = e.Mono
		r.fold(b)
		return false
	}
	if e.Verdict == "" {
		r.judgeMissing()
	}
	if r.changes && e.Verdict == "" && e.Kind == trace.KindOpen && e.Access == "r" {
		r.fold(b)
		return false
	}
	r.repeats.put(r.key, e, r.writeRepeat)
	return true
}

// unreached is the end of a call that a cgroup program has let pass, and told,
// and that failed all the same; false where it named nobody.
func (r *recorder) unreached(b *bpf.Event) bool {
	e := &r.ev
	if e.Family == "" {
		r.fold(b)
		return false
	}
	e.Name = r.names[e.Addr.Unmap()]
	return true
}

// failKey names a failed call of a process by all that its record says.
func (r *recorder) failKey() []byte {
	e := &r.ev
	k := append(r.key[:0], 'f')
	if e.Filtered {
		k[0] = 'F'
	}
	for _, n := range [...]uint64{uint64(e.Proc.Pid), e.Proc.Start, uint64(e.SyscallNr), uint64(e.Errno), e.Flags, uint64(e.Mode), uint64(len(e.Path))} {
		k = binary.LittleEndian.AppendUint64(k, n)
	}
	r.key = append(append(k, e.Path...), e.To...)
	return r.key
}

// writeRepeat writes how often a failure was seen again.
func (r *recorder) writeRepeat(m *repeat) {
	e := trace.Event{
		Mono: m.mono, Phase: trace.PhaseCommand, Proc: m.proc, Count: m.count, Filtered: m.filtered,
	}
	m.fill(&e)
	r.write(&e)
}
