package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// code shows what was executed: programs, scripts and mapped libraries, each
// with its digest where the record has one.
type code struct {
	whole bool
	progs *groups
}

func newCode(whole bool) *code { return &code{whole: whole, progs: newGroups()} }

func (c *code) add(e *Event) {
	if !runsCode(e) || e.Errno != 0 {
		return
	}
	c.progs.add(codeLine(e), e)
}

func runsCode(e *Event) bool {
	return (e.Kind == KindExec || e.Kind == KindMmapExec || e.Kind == KindCode) && e.Phase != PhaseEnvelope
}

// codeLine renders digest, way, file and what is odd about the file.
func codeLine(e *Event) string {
	how := "exec"
	switch e.Kind {
	case KindMmapExec:
		how = "map"
	case KindCode:
		how = "content"
	}
	digest := e.SHA256
	if digest == "" && e.HashState != "" {
		digest = "(" + e.HashState + ")"
	}
	s := fmt.Sprintf("%s %s  %s", cmp.Or(Line(digest), "-"), how, cmp.Or(Object(e), "?"))
	if len(e.Script) > 0 {
		s += " script " + Quote(e.Script[:min(len(e.Script), maxShown)])
	}
	return s + oddities(e)
}

// oddities says what a path alone hides.
func oddities(e *Event) string {
	switch {
	case e.Memfd:
		return " (anonymous memory)"
	case e.Deleted:
		return " (deleted)"
	}
	return ""
}

func (c *code) write(w io.Writer, _ *Report) {
	writeHeading(w, "code", uint64(len(c.progs.at)))
	list := c.progs.sorted()
	top := len(list)
	if !c.whole {
		top = min(top, topFiles)
	}
	slices.SortStableFunc(list, func(a, b *group) int { return cmp.Compare(a.seq, b.seq) })
	for _, g := range list[:top] {
		fmt.Fprintf(w, "  %7d  %s\n", g.count, g.line)
	}
	if n := len(list) - top; n > 0 {
		fmt.Fprintf(w, "  (%d more: trace code)\n", n)
	}
	if c.progs.hidden > 0 {
		fmt.Fprintf(w, "  %7d  others\n", c.progs.hidden)
	}
}
