package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// groups counts equal lines.
type groups struct {
	at     map[string]*group
	bytes  int    // of all lines
	hidden uint64 // events in groups that were not kept
	total  uint64
}

type group struct {
	line         string
	count, bytes uint64
	received     uint64 // bytes that came back
	seq          uint64
}

func newGroups() *groups { return &groups{at: map[string]*group{}} }

func (g *groups) add(line string, e *Event) {
	g.total += e.Times()
	one := g.at[line]
	if one == nil {
		if g.bytes += len(line); g.bytes > maxViewBytes {
			g.hidden += e.Times()
			return
		}
		one = &group{line: line, seq: e.Seq}
		g.at[line] = one
	}
	one.count += e.Times()
	one.bytes += e.Bytes
	one.received += e.Received
}

// sorted returns the groups, the most frequent first.
func (g *groups) sorted() []*group {
	list := make([]*group, 0, len(g.at))
	for _, one := range g.at {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.seq, b.seq), cmp.Compare(a.line, b.line))
	})
	return list
}

// write prints the groups, the most frequent first.
func (g *groups) write(w io.Writer) {
	for _, one := range g.sorted() {
		fmt.Fprintf(w, "  %7d  %s%s\n", one.count, one.line, traffic(one.bytes, one.received))
	}
	if g.hidden > 0 {
		fmt.Fprintf(w, "  %7d  others\n", g.hidden)
	}
}

// traffic says how much was sent, and what came back where that is known.
func traffic(sent, received uint64) string {
	switch {
	case received > 0:
		return fmt.Sprintf(" (%d bytes, %d received)", sent, received)
	case sent > 0:
		return fmt.Sprintf(" (%d bytes)", sent)
	}
	return ""
}
