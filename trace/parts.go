package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// part is one part of the text view of a record. Its memory is bounded whatever
// the record holds; what is beyond is counted, and the count is shown.
type part interface {
	add(e *Event)
	write(w io.Writer, r *Report)
}

// parts lists what Show can show, in its order. A whole part is one that was
// asked for: it is not cut for length.
var parts = []struct {
	name string
	make func(whole bool) part
}{
	{"processes", func(bool) part { return newProcesses() }},
	{"denied", func(bool) part { return &denied{groups: newGroups()} }},
	{"network", func(bool) part { return &network{groups: newGroups()} }},
	{"files", func(whole bool) part { return newFiles(whole) }},
	{"code", func(whole bool) part { return newCode(whole) }},
	{"timeline", func(whole bool) part { return newTimeline(whole) }},
	{"limits", func(whole bool) part { return &lines{whole: whole, title: "limits", of: KindLimit, line: limitLine} }},
	{"output", func(whole bool) part { return &lines{whole: whole, title: "output", of: KindOutput, line: outputLine} }},
	{"counts", func(whole bool) part { return &counts{whole: whole} }},
	{"losses", func(whole bool) part { return losses{whole} }},
}

// Parts returns the names of the parts that Show knows, in its order.
func Parts() []string {
	names := make([]string, 0, len(parts))
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

func writeHeading(w io.Writer, title string, n uint64) { fmt.Fprintf(w, "\n%s %d\n", title, n) }

// writeList prints a list; an empty one only when it was asked for.
func writeList(w io.Writer, title string, list []string, whole bool) {
	if len(list) == 0 && !whole {
		return
	}
	writeHeading(w, title, uint64(len(list)))
	for _, s := range list {
		fmt.Fprintf(w, "  %s\n", s)
	}
}

// denied counts equal denials of the command.
type denied struct{ groups *groups }

func (p *denied) add(e *Event) {
	if e.Denied() {
		p.groups.add(sentence(e), e)
	}
}

func (p *denied) write(w io.Writer, _ *Report) {
	writeHeading(w, "denied", p.groups.total)
	p.groups.write(w)
}

// sentence is Sentence for a group of equal denials.
func sentence(e *Event) string {
	one := *e
	one.Count = 0
	return Sentence(&one)
}

// network counts equal acts on the network, and what was sent.
type network struct{ groups *groups }

func (p *network) add(e *Event) {
	if onNetwork(e) {
		p.groups.add(netLine(e), e)
	}
}

func (p *network) write(w io.Writer, _ *Report) {
	writeHeading(w, "network", p.groups.total)
	p.groups.write(w)
}

// onNetwork reports whether the command addressed somebody.
func onNetwork(e *Event) bool {
	switch e.Kind {
	case KindConnect, KindBind, KindListen, KindSend, KindDNS, KindCall:
		return e.Phase != PhaseEnvelope
	}
	return false
}

// netLine renders an act on the network; of a connection that has ended, how.
func netLine(e *Event) string {
	if e.Kind == KindCall {
		return cmp.Or(Line(string(e.Verdict)), "-") + " " + callLine(e)
	}
	how := cmp.Or(Line(e.End), Line(string(e.Verdict)), ErrnoName(e.Errno), "-")
	return fmt.Sprintf("%s %s %s", how, Line(string(e.Kind)), cmp.Or(peer(e), "-"))
}

// peer names whom an act on the network addressed, by its address too when
// Object says the name.
func peer(e *Event) string {
	s := Object(e)
	if e.Addr.IsValid() && len(e.Name) > 0 {
		s += " (" + e.Addr.Unmap().WithZone("").String() + ")"
	}
	return s
}

// lines holds one line for each record of a kind that agentguard itself makes,
// and so only a few of.
type lines struct {
	whole bool
	title string
	of    Kind
	line  func(*Event) string
	list  []string
}

func (p *lines) add(e *Event) {
	if e.Kind == p.of {
		p.list = appendBounded(p.list, p.line(e))
	}
}

func (p *lines) write(w io.Writer, _ *Report) { writeList(w, p.title, p.list, p.whole) }

func limitLine(e *Event) string {
	value := strconv.FormatUint(e.LimitValue, 10)
	switch e.Limit {
	case "cpu", "wall":
		value = seconds(e.LimitValue)
	case "memory", "output", "stdout", "file-size", "trace":
		value = Size(e.LimitValue)
	}
	s := Line(e.Limit) + " " + value
	if e.LimitHits > 0 {
		s += ", met " + strconv.FormatUint(e.LimitHits, 10) + " times"
	}
	return s
}

func outputLine(e *Event) string {
	s := fmt.Sprintf("%s %d bytes", Line(e.Stream), e.Bytes)
	if e.Kept < e.Bytes {
		s += fmt.Sprintf(", first %d kept", e.Kept)
	}
	if e.SHA256 != "" {
		s += ", sha256 " + Line(e.SHA256)
	}
	return s
}

// counts prints the largest counters of the summary; those of the record itself
// are said elsewhere.
type counts struct {
	whole bool
	list  []Count
}

const topCounts = 20

func (p *counts) add(e *Event) {
	if e.Kind != KindSummary {
		return
	}
	for _, c := range e.Counts {
		if len(c.Name) < 5 || c.Name[:5] != "kind." {
			p.list = append(p.list, c)
		}
	}
}

func (p *counts) write(w io.Writer, _ *Report) {
	if len(p.list) == 0 && !p.whole {
		return
	}
	slices.SortStableFunc(p.list, func(a, b Count) int { return cmp.Compare(b.N, a.N) })
	writeHeading(w, "counts", uint64(len(p.list)))
	top := len(p.list)
	if !p.whole {
		top = min(top, topCounts)
	}
	for _, c := range p.list[:top] {
		fmt.Fprintf(w, "  %7d  %s\n", c.N, Quote(c.Name))
	}
	if n := len(p.list) - top; n > 0 {
		fmt.Fprintf(w, "  (%d smaller ones)\n", n)
	}
}

// losses prints what the Report says is missing, and where.
type losses struct{ whole bool }

func (losses) add(*Event) {}

func (l losses) write(w io.Writer, r *Report) {
	var list []string
	for _, loss := range r.Losses {
		list = append(list, lossLine(loss))
	}
	for _, g := range r.Gaps {
		list = append(list, fmt.Sprintf("records %d to %d are missing", g.First, g.Last))
	}
	for _, b := range r.Bad {
		list = append(list, Line(b.Error()))
	}
	writeList(w, "losses", list, l.whole)
}
