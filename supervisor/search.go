package supervisor

import (
	"bytes"
	"path"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// searches holds what a process tried in vain while it looks for a program in a
// list of directories, as execvp(3) does. A place that is outside the view would
// be a denial; when a later place has the program, nothing was refused that
// mattered: the tries are recorded as what they are, an execve without a file.
type searches struct {
	held  map[uint32]*search // by process
	tries int                // in all
}

// search is a run of tries for one program.
type search struct {
	name  []byte // last component
	tries []trace.Event
}

// maxTries bounds the tries that are held; beyond, they are denials at once.
const maxTries = 512

// hold keeps the denial of an execve that found no file until it is known how
// the search ends; false if that is no matter for a search.
func (s *searches) hold(e *trace.Event) bool {
	if !e.Denied() || s.tries >= maxTries || !trace.Advisable(e.Path) {
		return false
	}
	x := s.held[e.Proc.Pid]
	if x == nil {
		if s.held == nil {
			s.held = map[uint32]*search{}
		}
		x = &search{name: bytes.Clone(lastName(e.Path))}
		s.held[e.Proc.Pid] = x
	}
	keep := *e
	keep.Path, keep.PathGiven = bytes.Clone(e.Path), bytes.Clone(e.PathGiven)
	x.tries = append(x.tries, keep)
	s.tries++
	return true
}

func lastName(p []byte) []byte { return []byte(path.Base(string(p))) }

// settleSearch writes what the process of b tried, when b shows how its search
// ended: an exec of that name is what it looked for. Files that a thread used
// meanwhile, and processes that it made, say nothing.
func (r *recorder) settleSearch(b *bpf.Event) {
	x := r.searches.held[b.TGID]
	if x == nil {
		return
	}
	switch b.Type {
	case bpf.File, bpf.Repeat, bpf.FD, bpf.Fork:
	case bpf.ExecFail:
		if !bytes.Equal(lastName(b.Call.Path), x.name) {
			r.endSearch(b.TGID, false)
		}
	case bpf.Exec:
		r.endSearch(b.TGID, bytes.Equal(lastName(b.Exec.File), x.name))
	default:
		r.endSearch(b.TGID, false)
	}
}

// endSearch writes the tries of a process: as denials, unless the program was found.
func (r *recorder) endSearch(pid uint32, found bool) {
	x := r.searches.held[pid]
	delete(r.searches.held, pid)
	r.searches.tries -= len(x.tries)
	for i := range x.tries {
		e := &x.tries[i]
		if found {
			e.Verdict, e.Layer, e.Certainty, e.Rule, e.RuleSource, e.Remedy = "", "", "", "", "", ""
		}
		r.write(e)
	}
}
