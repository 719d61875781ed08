package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

const maxViewBytes = 32 << 20 // text that each part of a view keeps in memory

// Show reads a record and writes its text view: the judgement first, then what
// ran, what was refused, the network, limits and losses. It is plain text with
// one fact a line, stable for scripts, and every byte that came from the command
// is quoted. The judgement is returned, and errors of r and w.
func Show(w io.Writer, r io.Reader) (Judgement, error) {
	v := newView()
	in := NewReader(r)
	var e Event
	for {
		err := in.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.As(err, new(*LineError)) {
			continue // in the report
		}
		if err != nil {
			return "", err
		}
		v.add(&e)
	}
	out := bufio.NewWriter(w)
	v.write(out, in.Report())
	judgement, _ := in.Report().Judge()
	return judgement, out.Flush()
}

// view is what Show collects in one pass.
type view struct {
	run       []Event // start and summary
	tree      *processes
	denials   *groups
	network   *groups
	limits    []string
	outputs   []string
	probes    int
	toothless []string // canary probes that nothing refused
}

func newView() *view {
	return &view{tree: newProcesses(), denials: newGroups(), network: newGroups()}
}

func (v *view) add(e *Event) {
	switch e.Kind {
	case KindStart, KindSummary:
		keep := *e
		keep.Argv, keep.Findings, keep.Counts = nil, nil, slices.Clone(e.Counts)
		v.run = append(v.run[:min(len(v.run), 1)], keep)
		return
	case KindCanary:
		v.canary(e)
		return
	case KindLimit:
		v.limits = appendBounded(v.limits, limitLine(e))
	case KindOutput:
		v.outputs = appendBounded(v.outputs, outputLine(e))
	}
	v.tree.add(e)
	if e.Denied() {
		v.denials.add(sentence(e), e)
	}
	switch e.Kind {
	case KindConnect, KindBind, KindListen, KindSend, KindDNS:
		if e.Phase != PhaseEnvelope {
			v.network.add(netLine(e), e)
		}
	}
}

// sentence is Sentence for a group of equal denials.
func sentence(e *Event) string {
	one := *e
	one.Count = 0
	return Sentence(&one)
}

func (v *view) canary(e *Event) {
	v.probes++
	if e.Verdict != VerdictDeny {
		v.toothless = appendBounded(v.toothless, Quote(e.Probe))
	}
}

func appendBounded(list []string, s string) []string {
	if len(list) >= maxFindings {
		return list
	}
	return append(list, s)
}

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

func netLine(e *Event) string {
	return fmt.Sprintf("%s %s %s", cmp.Or(Line(string(e.Verdict)), "-"), Line(string(e.Kind)), cmp.Or(Object(e), "-"))
}

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
}

// write prints the groups, the most frequent first.
func (g *groups) write(w io.Writer) {
	list := make([]*group, 0, len(g.at))
	for _, one := range g.at {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.seq, b.seq), cmp.Compare(a.line, b.line))
	})
	for _, one := range list {
		size := ""
		if one.bytes > 0 {
			size = fmt.Sprintf(" (%d bytes)", one.bytes)
		}
		fmt.Fprintf(w, "  %7d  %s%s\n", one.count, one.line, size)
	}
	if g.hidden > 0 {
		fmt.Fprintf(w, "  %7d  others\n", g.hidden)
	}
}

func (v *view) write(w io.Writer, r *Report) {
	v.writeHead(w, r)
	fmt.Fprintf(w, "\nprocesses %d\n", uint64(len(v.tree.all))+v.tree.hidden)
	v.tree.write(w)
	if v.tree.hidden > 0 {
		fmt.Fprintf(w, "  (events of further processes: %d)\n", v.tree.hidden)
	}
	if v.tree.failed > 0 {
		fmt.Fprintf(w, "  (failed execs, such as searches of PATH: %d)\n", v.tree.failed)
	}
	fmt.Fprintf(w, "\ndenied %d\n", v.denials.total)
	v.denials.write(w)
	fmt.Fprintf(w, "\nnetwork %d\n", v.network.total)
	v.network.write(w)
	writeList(w, "limits", v.limits)
	writeList(w, "output", v.outputs)
	v.writeCounts(w)
	writeLosses(w, r)
}

func writeList(w io.Writer, title string, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s %d\n", title, len(list))
	for _, s := range list {
		fmt.Fprintf(w, "  %s\n", s)
	}
}

// writeHead says how far the record can be believed, then which run it is.
func (v *view) writeHead(w io.Writer, r *Report) {
	row := func(name, text string) { fmt.Fprintf(w, "%-9s %s\n", name, text) }
	judgement, why := r.Judge()
	row("record", fmt.Sprintf("%s, %d records", judgement, r.Records))
	for _, s := range why {
		row("", s)
	}
	for i := range v.run {
		e := &v.run[i]
		at := time.Unix(0, e.Wall).UTC().Format("2006-01-02T15:04:05.000Z")
		if e.Kind == KindSummary {
			row("ended", at)
			row("result", result(e))
			row("usage", fmt.Sprintf("cpu %s user, %s system; memory %s", seconds(e.UTime), seconds(e.STime), memory(e.MaxRSS)))
			continue
		}
		row("run", or(e.Run))
		row("started", at)
		row("host", fmt.Sprintf("boot %s, kernel %s, agentguard %s, sensor tier %s",
			or(e.BootID), or(e.Kernel), or(e.Tool), or(e.Tier)))
	}
	switch {
	case len(v.toothless) > 0:
		row("canary", fmt.Sprintf("probes: %d, NOT refused: %v", v.probes, v.toothless))
	case v.probes > 0:
		row("canary", fmt.Sprintf("probes: %d, all refused", v.probes))
	}
}

// result says how the run ended; the reason only where the status does not.
func result(e *Event) string {
	switch e.Reason {
	case "", "exit", "signal":
		return ending(e)
	}
	return ending(e) + " (" + Line(e.Reason) + ")"
}

func or(s string) string {
	if s == "" {
		return "unknown"
	}
	return Line(s)
}

func memory(rss uint64) string {
	if rss == 0 {
		return "unknown"
	}
	return Size(rss)
}

const topCounts = 20

// writeCounts prints the largest counters of the summary; those of the record
// itself are said elsewhere.
func (v *view) writeCounts(w io.Writer) {
	var list []Count
	for _, e := range v.run {
		for _, c := range e.Counts {
			if len(c.Name) < 5 || c.Name[:5] != "kind." {
				list = append(list, c)
			}
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b Count) int { return cmp.Compare(b.N, a.N) })
	fmt.Fprintf(w, "\ncounts %d\n", len(list))
	for _, c := range list[:min(len(list), topCounts)] {
		fmt.Fprintf(w, "  %7d  %s\n", c.N, Quote(c.Name))
	}
	if n := len(list) - topCounts; n > 0 {
		fmt.Fprintf(w, "  (%d smaller ones)\n", n)
	}
}

func writeLosses(w io.Writer, r *Report) {
	var list []string
	for _, l := range r.Losses {
		s := fmt.Sprintf("%d %s records lost (%s) after record %d", l.Count, Line(l.Class), or(l.Cause), l.AfterSeq)
		if l.BeforeSeq != 0 {
			s += fmt.Sprintf(" and before %d", l.BeforeSeq)
		}
		list = append(list, s)
	}
	for _, g := range r.Gaps {
		list = append(list, fmt.Sprintf("records %d to %d are missing", g.First, g.Last))
	}
	for _, b := range r.Bad {
		list = append(list, Line(b.Error()))
	}
	writeList(w, "losses", list)
}
