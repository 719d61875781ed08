package trace

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a view keeps in memory, whatever the record holds. What is
// beyond is counted and the count is shown.
const (
	maxProcesses = 50_000
	maxExecs     = 8    // images of one process that are shown
	maxCommand   = 1000 // bytes of one command line that are shown
	maxIndent    = 40   // levels of the tree that are indented
)

// processes is the tree of a run's processes, built from fork, exec and exit.
type processes struct {
	all     map[string]*process // by Proc.ID
	byPid   map[uint32]*process // latest with this pid: for links that have no start
	roots   []*process
	hidden  uint64 // not kept, for want of room
	failed  uint64 // execs that returned an error
	widest  int    // longest id
	bytes   int    // of all rendered images
	scratch []byte
}

type process struct {
	id       string
	parent   *process
	kids     []*process
	execs    []string // rendered images, oldest first
	moreExec int
	threads  int
	launcher bool   // agentguard itself, which made the first process
	begin    uint64 // ns; when it was first seen
	end      *exit
}

type exit struct {
	mono, cpu, rss uint64
	how            string
}

func newProcesses() *processes {
	return &processes{all: map[string]*process{}, byPid: map[uint32]*process{}}
}

// add takes in one event of the command.
func (t *processes) add(e *Event) {
	switch e.Kind {
	case KindFork:
		t.fork(e)
	case KindExec:
		if p := t.get(&e.Proc, e.Mono); p != nil {
			t.exec(p, e)
		}
	case KindExecFail:
		t.failed += e.Times()
	case KindExit:
		if p := t.get(&e.Proc, e.Mono); p != nil {
			p.end = &exit{mono: e.Mono, cpu: e.UTime + e.STime, rss: e.MaxRSS, how: ending(e)}
		}
	}
}

func (t *processes) fork(e *Event) {
	known := len(t.all)
	p := t.get(&e.Proc, e.Mono)
	if p != nil && len(t.all) > known && e.Phase == PhaseEnvelope {
		p.launcher = true // outside of the run: it has no other events
	}
	if e.Child.Pid == e.Proc.Pid {
		if p != nil {
			p.threads++
		}
		return
	}
	child := e.Child
	child.PPid, child.PStart = e.Proc.Pid, e.Proc.Start
	t.get(&child, e.Mono)
}

// pid is the last part of the id.
func (p *process) pid() string { return p.id[strings.LastIndexByte(p.id, '-')+1:] }

// get returns the process, which it adds if it is new; nil when there is no room.
func (t *processes) get(p *Proc, mono uint64) *process {
	if p.Pid == 0 {
		return nil
	}
	t.scratch = p.AppendID(t.scratch[:0])
	if n := t.all[string(t.scratch)]; n != nil {
		return n
	}
	if len(t.all) >= maxProcesses {
		t.hidden++
		return nil
	}
	n := &process{id: string(t.scratch), begin: mono}
	n.parent = t.parent(p)
	if n.parent == nil {
		t.roots = append(t.roots, n)
	} else {
		n.parent.kids = append(n.parent.kids, n)
	}
	t.all[n.id], t.byPid[p.Pid] = n, n
	t.widest = max(t.widest, len(n.id))
	return n
}

// parent finds the parent by its id, or else by its pid, which is right as long
// as the kernel has not given it out again.
func (t *processes) parent(p *Proc) *process {
	if p.PPid == 0 || p.PPid == p.Pid {
		return nil
	}
	if p.PStart != 0 {
		return t.all[Proc{Boot: p.Boot, Start: p.PStart, Pid: p.PPid}.ID()]
	}
	return t.byPid[p.PPid]
}

func (t *processes) exec(p *process, e *Event) {
	if len(p.execs) >= maxExecs || t.bytes > maxViewBytes {
		p.moreExec++
		return
	}
	s := image(e)
	t.bytes += len(s)
	p.execs = append(p.execs, s)
}

// image renders what was executed: the file, which the kernel vouches for,
// before the arguments, of which the first may claim to be another program.
func image(e *Event) string {
	s := Object(e)
	if s == "" {
		s = "?"
	}
	args := e.Argv
	if len(args) > 0 {
		if !names(args[0], e.Path, e.PathGiven, e.Interp) {
			s += " (called " + Quote(args[0]) + ")"
		}
		args = args[1:]
	}
	if rest := QuoteArgs(args, maxCommand); rest != "" {
		s += " " + rest
	}
	if e.ArgvLen != 0 || int64(e.Argc) > int64(len(e.Argv)) {
		s += fmt.Sprintf(" [%d of %d arguments]", len(e.Argv), e.Argc)
	}
	return s
}

// names reports whether a program is called by one of these paths or their last part.
func names(called []byte, paths ...[]byte) bool {
	return slices.ContainsFunc(paths, func(p []byte) bool {
		return len(p) > 0 && (string(called) == string(p) || string(called) == path.Base(string(p)))
	})
}

func ending(e *Event) string {
	if e.Signal == 0 && e.ExitCode == ExitUnknown {
		return "ended, how is not known"
	}
	if e.Signal == 0 {
		return "exit " + strconv.Itoa(int(e.ExitCode))
	}
	s := SignalName(e.Signal)
	if e.Core {
		s += ", core"
	}
	return s
}

func (t *processes) write(w io.Writer, _ *Report) {
	writeHeading(w, "processes", uint64(len(t.all))+t.hidden)
	t.writeTree(w)
	if t.hidden > 0 {
		fmt.Fprintf(w, "  (events of further processes: %d)\n", t.hidden)
	}
	if t.failed > 0 {
		fmt.Fprintf(w, "  (failed execs, such as searches of PATH: %d)\n", t.failed)
	}
}

// writeTree prints one process a line and one more for each further image,
// parents first. It keeps its own stack: a record may hold a chain of any depth.
func (t *processes) writeTree(w io.Writer) {
	type visit struct {
		p     *process
		depth int
	}
	var stack []visit
	push := func(list []*process, depth int) {
		for i := len(list) - 1; i >= 0; i-- {
			stack = append(stack, visit{list[i], depth})
		}
	}
	push(t.roots, 0)
	for len(stack) > 0 {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		indent := strings.Repeat("  ", min(v.depth, maxIndent))
		for i, line := range v.p.lines() {
			id := v.p.id
			if i > 0 {
				id = ""
			}
			fmt.Fprintf(w, "  %-*s  %s%s\n", t.widest, id, indent, line)
		}
		push(v.p.kids, v.depth+1)
	}
}

func (p *process) lines() []string {
	out := p.execs
	if len(out) == 0 && p.launcher && p.end == nil {
		return []string{"(agentguard)"}
	}
	if len(out) == 0 {
		out = []string{"(no exec)"}
	}
	out = append([]string(nil), out...)
	for i := 1; i < len(out); i++ {
		out[i] = "then " + out[i]
	}
	if p.moreExec > 0 {
		out = append(out, fmt.Sprintf("then %d more", p.moreExec))
	}
	out[0] += "  [" + p.status() + "]"
	return out
}

func (p *process) status() string {
	var s []string
	if p.end == nil {
		s = append(s, "no end recorded")
	} else {
		s = append(s, p.end.how, "took "+seconds(p.end.mono-min(p.begin, p.end.mono)), "cpu "+seconds(p.end.cpu))
		if p.end.rss > 0 {
			s = append(s, Size(p.end.rss))
		}
	}
	if p.threads > 0 {
		s = append(s, fmt.Sprintf("%d threads", p.threads+1))
	}
	return strings.Join(s, ", ")
}

func seconds(ns uint64) string {
	return strconv.FormatFloat(time.Duration(min(ns, 1<<62)).Seconds(), 'f', 3, 64) + "s"
}
