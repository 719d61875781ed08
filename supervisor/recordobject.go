package supervisor

import (
	"bytes"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/trace"
)

// objects are what calls in progress are about, by thread, as the kernel told it
// from inside them. The call's own event, which comes next of the thread, names
// the one that belongs to it.
type objects map[uint32]*object

type object struct {
	time     uint64
	path, to bpf.Path
	target   []byte // symlink; of an attribute, its name
	dev, ino uint64
	refused  bool // path is what Landlock refused
}

// maxObjects bounds the threads that are remembered: one that dies inside a call leaves its object behind.
const maxObjects = 1024

// keep remembers the object of an event whose slices are the reader's.
func (o *objects) keep(b *bpf.Event) {
	if *o == nil || len(*o) >= maxObjects {
		*o = objects{}
	}
	x := (*o)[b.TID]
	if x == nil {
		x = &object{}
		(*o)[b.TID] = x
	}
	info := &b.Object
	path, to := append(x.path.Text[:0], info.Path.Text...), append(x.to.Text[:0], info.Path2.Text...)
	target := append(x.target[:0], info.Text...)
	*x = object{b.Time, info.Path, info.Path2, target, info.Dev, info.Inode, info.Refused}
	x.path.Text, x.to.Text = path, to
}

// of returns the object of a call, or nil.
func (o objects) of(b *bpf.Event) *object {
	if x := o[b.TID]; x != nil && b.Call.Object != 0 && x.time == b.Call.Object {
		return x
	}
	return nil
}

// resolve puts in place of what the caller's memory said what the kernel has
// looked up: the names that the call acted on, or was refused.
func (r *recorder) resolve(b *bpf.Event) {
	x := r.objects.of(b)
	if x == nil {
		return
	}
	e := &r.ev
	switch {
	case x.refused && landlock.OfDirectory(b.Call.Refused.Access):
		r.inRefused(x)
		return
	case e.Kind == trace.KindSetxattr: // no path is told
		if len(x.target) > 0 {
			e.Name = x.target
		}
		if x.ino != 0 {
			e.DevMajor, e.DevMinor, e.Ino = unix.Major(x.dev), unix.Minor(x.dev), x.ino
		}
		return
	case len(x.target) > 0: // symlink: what it leads to is text, and stays what was given
		e.Path, e.PathGiven, e.PathLen = x.target, nil, 0
	case !x.path.Rooted:
		return
	default:
		e.Path, e.PathGiven, e.PathLen = x.path.Text, asGiven(e.PathGiven, e.Path, x.path.Text), cutLen(&x.path)
	}
	e.PathSource = trace.PathKernel
	if x.to.Rooted {
		e.To, e.ToGiven, e.ToLen = x.to.Text, asGiven(e.ToGiven, e.To, x.to.Text), cutLen(&x.to)
	}
	if x.ino != 0 {
		e.DevMajor, e.DevMinor, e.Ino = unix.Major(x.dev), unix.Minor(x.dev), x.ino
	}
}

// asGiven is what the command wrote, when that is not what it means.
func asGiven(as, was, is []byte) []byte {
	if as == nil {
		as = was
	}
	if bytes.Equal(as, is) {
		return nil
	}
	return as
}

// inRefused is for a name in a directory that Landlock refused to change: the
// kernel tells the directory, the caller's memory the name in it.
func (r *recorder) inRefused(x *object) {
	e := &r.ev
	if !x.path.Rooted || e.PathSource != trace.PathUser {
		return
	}
	full := []byte(path.Join(string(x.path.Text), path.Base(string(e.Path))))
	e.PathGiven = asGiven(e.PathGiven, e.Path, full)
	e.Path, e.PathLen = full, 0
}

// judgeLandlock is judge where Landlock itself has said that it refused the call.
func (r *recorder) judgeLandlock(by *bpf.Refusal) {
	e := &r.ev
	e.Layer, e.Certainty, e.Blockers = trace.LayerLandlock, trace.Certain, blockers(by)
	switch {
	case by.Own: // a sandbox that the command has made for itself
		e.Layer = trace.LayerNone
	case by.By == bpf.RefusedFS || by.By == bpf.RefusedTopology:
		r.blame(e)
	case by.By == bpf.RefusedAbstract:
		e.Rule, e.RuleSource = "network.unix", "default"
	}
}

func blockers(by *bpf.Refusal) string {
	switch by.By {
	case bpf.RefusedFS:
		return landlock.Names("fs", by.Access)
	case bpf.RefusedNet:
		return landlock.Names("net", by.Access)
	case bpf.RefusedPtrace:
		return "ptrace"
	case bpf.RefusedTopology:
		return "fs.change_topology"
	case bpf.RefusedAbstract:
		return "scope.abstract_unix_socket"
	case bpf.RefusedSignal:
		return "scope.signal"
	}
	return ""
}
