package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// WriteCalls writes every system call that the run's process makes between its
// birth and the command's first instruction, one a line.
func (p *Plan) WriteCalls(w io.Writer) error {
	var b bytes.Buffer
	for _, s := range commandProgram(p, placeholders(p)).Steps { // a name in one may be of a command's making
		b.WriteString(trace.Line(s.String()) + "\n")
	}
	_, err := b.WriteTo(w)
	return err
}

// WriteText writes the plan for a reader: one fact a line, grants with the
// clause that they follow from.
func (p *Plan) WriteText(w io.Writer) error {
	var b bytes.Buffer
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "%-10s "+format+"\n", append([]any{name}, a...)...)
	}
	row("command", "%s", trace.QuoteArgs(p.Argv, 4096))
	row("directory", "%s", trace.Quote(p.Dir))
	if p.Terminal {
		row("terminal", "one of its own")
	}
	row("user", "%d:%d, %s; no capability, no_new_privs", p.Identity.UID, p.Identity.GID, p.Identity.Why)
	for i := range p.View {
		if e := &p.View[i]; !e.system && e.pinned == "" {
			row("grant", "%-2s %s%s  [%s]", e.word(), trace.Quote(e.From), shownAt(e), e.Clause)
		}
	}
	if p.Host.shared() {
		row("system", "read-only %s; HOME and TMPDIR in a directory of the run's own; all else of the host may be looked at, not opened", systemList(p.View))
		row("network", "no sockets but pairs, and from Landlock ABI 9 on unix sockets of its own")
	} else {
		row("system", "read-only %s; private /tmp, /var/tmp, /dev/shm, %s", systemList(p.View), Home)
		row("network", "none but loopback of its own; programs judge: %v; listen: %v", p.NetBPF, !p.DenyListen)
	}
	p.Egress.rows(row)
	p.limitRows(row)
	for _, e := range p.Env {
		row("env", "%s", trace.Quote(e))
	}
	row("layers", "Landlock ABI %d, seccomp %.12s, BPF %v, cgroup %s", p.LandlockABI, p.SeccompHash, p.NetBPF, p.Host.CgroupMode)
	for _, t := range p.Thin {
		row("thin", "%s", t)
	}
	for _, g := range p.Gaps {
		row("gap", "%s (%s): %s", g.Clause, g.Source, g.Missing)
	}
	for _, s := range p.Seams {
		row("seam", "%s is switched off in this test build", s)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// word is how a grant's access is written on the command line.
func (e *Entry) word() string {
	if e.Op == "cow" {
		return "cow"
	}
	return e.Access
}

func shownAt(e *Entry) string {
	if e.At == e.From {
		return ""
	}
	return " at " + trace.Quote(e.At)
}

func systemList(view []Entry) string {
	var out string
	for i := range view {
		if e := &view[i]; e.system && e.Access == "ro" {
			out += " " + e.At
		}
	}
	return out[min(1, len(out)):]
}

func (p *Plan) limitRows(row func(name, format string, a ...any)) {
	size := func(n int64) string { return known(n, func() string { return trace.Size(uint64(n)) }) }
	dur := func(n int64) string { return known(n, func() string { return time.Duration(n).String() }) }
	num := func(n int64) string { return known(n, func() string { return strconv.FormatInt(n, 10) }) }
	l := p.Limits
	row("limits", "memory %s, tasks %s, cpu %s, wall %s", size(l.Memory), num(l.Tasks), dur(l.CPU), dur(l.Wall))
	row("", "scratch %s (%s), file limit %s, output kept %s, trace %s", size(l.Output), p.Upper, num(l.Files), size(l.Stdout), size(l.Trace))
	for _, l := range p.Lowered {
		row("", "%s", l)
	}
	for _, r := range p.Rlimits {
		row("", "%s %d", r.Name, r.Value)
	}
}

func known(n int64, text func() string) string {
	if n < 0 {
		return "none"
	}
	return text()
}
