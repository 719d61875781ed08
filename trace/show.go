package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"
)

const maxViewBytes = 32 << 20 // text that each part of a view keeps in memory

// Show reads a record and writes its text view: the judgement first, then the
// parts that are named, whole, or every part, of which those that may be long
// are cut and say so. It is plain text with one fact a line, stable for scripts,
// and every byte that came from the command is quoted. The judgement is
// returned, and errors of r and w.
func Show(w io.Writer, r io.Reader, only ...string) (Judgement, error) {
	v, err := newView(only)
	if err != nil {
		return "", err
	}
	in := NewReader(r)
	if err := in.Each(v.add); err != nil {
		return "", err
	}
	out := bufio.NewWriter(w)
	v.writeHead(out, in.Report())
	for _, p := range v.parts {
		p.write(out, in.Report())
	}
	judgement, _ := in.Report().Judge()
	return judgement, out.Flush()
}

// view is what Show collects in one pass.
type view struct {
	brief     bool    // parts were named: of the head only what judges and names the run
	run       []Event // start and summary
	parts     []part
	probes    int
	toothless []string // canary probes that nothing refused
}

func newView(only []string) (*view, error) {
	v := &view{brief: len(only) > 0}
	for _, name := range only {
		if !slices.Contains(Parts(), name) {
			return nil, fmt.Errorf("no part of a record is called %s; there are %v", Quote(name), Parts())
		}
	}
	for _, p := range parts {
		if !v.brief || slices.Contains(only, p.name) {
			v.parts = append(v.parts, p.make(v.brief))
		}
	}
	return v, nil
}

func (v *view) add(e *Event) error {
	switch e.Kind {
	case KindStart, KindSummary:
		keep := *e
		keep.Argv, keep.Findings, keep.Counts = nil, nil, slices.Clone(e.Counts)
		v.run = append(v.run[:min(len(v.run), 1)], keep)
	case KindCanary:
		v.canary(e)
	}
	for _, p := range v.parts {
		p.add(e)
	}
	return nil
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

// writeHead says how far the record can be believed, then which run it is.
func (v *view) writeHead(w io.Writer, r *Report) {
	row := func(name, text string) { fmt.Fprintf(w, "%-9s %s\n", name, text) }
	judgement, why := r.Judge()
	row("record", fmt.Sprintf("%s, %d records", judgement, r.Records))
	for _, s := range why {
		row("", s)
	}
	v.writeRun(row)
	switch {
	case v.brief:
	case len(v.toothless) > 0:
		row("canary", fmt.Sprintf("probes: %d, NOT refused: %v", v.probes, v.toothless))
	case v.probes > 0:
		row("canary", fmt.Sprintf("probes: %d, all refused", v.probes))
	}
}

// writeRun says which run it was, where, and how it ended.
func (v *view) writeRun(row func(name, text string)) {
	for i := range v.run {
		e := &v.run[i]
		at := time.Unix(0, e.Wall).UTC().Format("2006-01-02T15:04:05.000Z")
		switch {
		case e.Kind == KindStart && v.brief:
			row("run", or(e.Run)+", started "+at)
		case e.Kind == KindStart:
			row("run", or(e.Run))
			row("started", at)
			row("host", fmt.Sprintf("boot %s, kernel %s, agentguard %s, sensor tier %s",
				or(e.BootID), or(e.Kernel), or(e.Tool), or(e.Tier)))
		case !v.brief:
			row("ended", at)
			row("result", result(e))
			row("usage", fmt.Sprintf("cpu %s user, %s system; memory %s", seconds(e.UTime), seconds(e.STime), memory(e.MaxRSS)))
		}
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
