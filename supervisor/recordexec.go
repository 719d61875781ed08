package supervisor

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// execs are the executions whose arguments and environment come in parts.
// Events of other processes may lie between the parts; they are written first.
type execs struct {
	pending map[uint32]*pendingExec // by process
	idle    []*pendingExec          // for use again
	list    [][]byte
	names   [][]byte
}

type pendingExec struct {
	ev        trace.Event
	texts     []byte // what ev points to
	args, env []byte
	envLen    uint64
}

// maxPending bounds the execs that wait for their parts; a part that was lost
// would otherwise keep its exec until the next event of the process.
const maxPending = 256

// startExec begins the record of an exec: its environment follows.
func (r *recorder) startExec(b *bpf.Event) {
	e, x := &r.ev, &b.Exec
	e.Kind = trace.KindExec
	e.Proc.PPid, e.Proc.PStart, e.Proc.NSPid = x.PPID, x.ParentTime, x.NSPID
	r.kernelPath(&x.Image, x.Mode, x.Inode)
	e.PathSource = trace.PathKernel
	e.DevMajor, e.DevMinor, e.Ino = unix.Major(x.Dev), unix.Minor(x.Dev), x.Inode
	e.Ctime = x.Ctime
	e.Argc, e.ArgvLen = x.Argc, uint64(x.ArgsLen)
	switch {
	case x.Interp != nil:
		e.Script, e.Interp = x.File, x.Interp
	case !bytes.Equal(x.File, e.Path):
		e.PathGiven = x.File
	}
	p := r.execs.add(e, b)
	if p.whole() {
		r.flushExec(b.TGID)
	}
}

// add keeps a copy of e until the parts are there.
func (x *execs) add(e *trace.Event, b *bpf.Event) *pendingExec {
	if x.pending == nil {
		x.pending = map[uint32]*pendingExec{}
	}
	var p *pendingExec
	if n := len(x.idle); n > 0 {
		p, x.idle = x.idle[n-1], x.idle[:n-1]
	} else {
		p = &pendingExec{}
	}
	p.ev, p.envLen = *e, uint64(b.Exec.EnvLen)
	p.args, p.env, p.texts = append(p.args[:0], b.Exec.Args...), p.env[:0], p.texts[:0]
	for _, text := range []*[]byte{&p.ev.Path, &p.ev.PathGiven, &p.ev.Script, &p.ev.Interp} {
		from := len(p.texts)
		p.texts = append(p.texts, *text...)
		*text = p.texts[from:len(p.texts):len(p.texts)]
	}
	x.pending[b.TGID] = p
	return p
}

func (p *pendingExec) whole() bool {
	return uint64(len(p.args)) >= p.ev.ArgvLen && uint64(len(p.env)) >= p.envLen
}

// moreExec adds a part to the process's exec, and writes it when it is whole.
func (r *recorder) moreExec(b *bpf.Event) {
	p := r.execs.pending[b.TGID]
	if p == nil {
		return
	}
	// A part after one that was lost would stand in its place.
	if b.Type == bpf.ExecArgs && int(b.Exec.Offset) == len(p.args) {
		p.args = append(p.args, b.Exec.Args...)
	}
	if b.Type == bpf.ExecEnv && int(b.Exec.Offset) == len(p.env) {
		p.env = append(p.env, b.Exec.Env...)
	}
	if p.whole() || len(r.execs.pending) > maxPending {
		r.flushExec(b.TGID)
	}
}

// flushExec writes the exec that a process has pending, if any: before its next
// event, or at the end of the run.
func (r *recorder) flushExec(pid uint32) {
	if p := r.execs.pending[pid]; p != nil {
		delete(r.execs.pending, pid)
		r.writeExec(p)
		if cap(p.args)+cap(p.env) < 64<<10 && len(r.execs.idle) < maxPending {
			r.execs.idle = append(r.execs.idle, p)
		}
	}
}

// flushAll writes what is pending at the end.
func (r *recorder) flushAll() {
	for pid := range r.execs.pending {
		r.flushExec(pid)
	}
	for pid := range r.searches.held {
		r.endSearch(pid, false)
	}
	r.dropUnnamed(^uint64(0))
	r.repeats.leaveAll(r.writeRepeat)
}

func (r *recorder) writeExec(p *pendingExec) {
	e := &p.ev
	x := &r.execs
	x.list = strz(x.list[:0], p.args, uint64(len(p.args)) >= e.ArgvLen)
	e.Argv = x.list
	if uint64(len(p.args)) >= e.ArgvLen {
		e.ArgvLen = 0
	}
	x.names = strz(x.names[:0], p.env, uint64(len(p.env)) >= p.envLen)
	kept := x.names[:0]
	for _, v := range x.names {
		if i := bytes.IndexByte(v, '='); i >= 0 {
			kept = append(kept, v[:i])
		}
	}
	e.Env = kept
	if uint64(len(p.env)) < p.envLen {
		e.EnvLen = p.envLen
	}
	r.write(e)
}

// strz cuts strings that a zero byte ends each; the last may lack its own if
// it is not whole, and is all the rest.
func strz(list [][]byte, b []byte, whole bool) [][]byte {
	for len(b) > 0 {
		s, tail, ended := bytes.Cut(b, []byte{0})
		if !ended && whole {
			s = b
		}
		list = append(list, s)
		b = tail
	}
	return list
}
