package runs

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// WriteText writes the view of "runs show": one "name  value" a line, in a fixed
// order, with everything that came from the command quoted.
func (r *Result) WriteText(w io.Writer) error {
	var b bytes.Buffer
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "%-9s "+format+"\n", append([]any{name}, a...)...)
	}
	row("run", "%s", trace.Quote(r.ID))
	row("command", "%s", trace.QuoteArgs(r.Argv, 4096))
	row("status", "%s", r.outcome())
	row("started", "%s", r.Started.UTC().Format("2006-01-02 15:04:05.000 UTC"))
	row("took", "%s", span(r.Usage.Wall))
	row("cpu", "%s user, %s system", span(r.Usage.User), span(r.Usage.System))
	row("memory", "%s", known(r.Usage.MaxMemory, trace.Size(uint64(max(r.Usage.MaxMemory, 0)))))
	row("tasks", "%s", known(r.Usage.MaxTasks, fmt.Sprint(r.Usage.MaxTasks)))
	row("stdout", "%s", r.Stdout.describe())
	row("stderr", "%s", r.Stderr.describe())
	for _, l := range r.Limits {
		row("limit", "%s", l.describe())
	}
	row("denied", "%d", r.Denials.Count)
	for _, d := range r.Denials.First {
		row("", "%s", line(d.Text))
	}
	for _, m := range r.Missing {
		row("missing", "%s", line(m.String()))
	}
	for _, g := range r.Gaps {
		row("gap", "%s %s: %s", line(g.Clause), line(g.Source), line(g.Missing))
	}
	for _, d := range r.Degraded {
		row("degraded", "%s", line(d.String()))
	}
	if r.Continues != "" {
		row("continues", "%s", line(r.Continues))
	}
	if r.Changes != nil {
		row("staged", "%s (agentguard diff %s)", r.Changes.Counted(), r.ID)
	}
	for _, p := range r.Planted {
		row("planted", "%s", line(p))
	}
	for _, p := range r.Linked {
		row("linked", "%s", line(p))
	}
	for _, t := range r.Thin {
		row("thin", "%s", line(t))
	}
	row("record", "%s, %d records, %d lost", line(cmp.Or(r.Record.Verdict, "none")), r.Record.Records, r.Record.Lost)
	for _, f := range r.Record.Findings {
		row("", "%s", line(f))
	}
	row("where", "%s", trace.Quote(r.Record.Path))
	_, err := w.Write(b.Bytes())
	return err
}

// line passes a sentence of ours through; one that was tampered with is quoted.
func line(s string) string { return trace.Line(s) }

func known(n int64, s string) string {
	if n <= 0 {
		return "unknown"
	}
	return s + " at most"
}

func span(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

func (r *Result) outcome() string {
	s := fmt.Sprintf("%d (%s", r.Status, line(r.Reason))
	if r.Signal != "" {
		s += ", " + line(r.Signal)
	}
	if r.Core {
		s += ", core"
	}
	if r.Error != "" {
		s += ": " + line(r.Error)
	}
	return s + ")"
}

func (o *Output) describe() string {
	s := fmt.Sprintf("%d bytes", o.Bytes)
	if o.Truncated {
		s += fmt.Sprintf(", first %d kept", o.Kept)
	}
	if o.SHA256 != "" {
		s += ", sha256 " + line(o.SHA256)
	}
	return s
}

func (l *LimitHit) describe() string {
	v := fmt.Sprint(l.Value)
	switch l.Name {
	case "memory", "output", "stdout", "file-size", "trace":
		v = trace.Size(uint64(max(l.Value, 0)))
	case "cpu", "wall":
		v = span(time.Duration(l.Value))
	}
	return fmt.Sprintf("%s %s, met %d times", line(l.Name), v, l.Hits)
}

// WriteTable writes the view of "runs ls": a heading, then one run a line. The
// columns are aligned with blanks; the command is the last one.
func WriteTable(w io.Writer, list []Summary) error {
	rows := [][]string{{"RUN", "STATUS", "REASON", "TOOK", "DENIED", "RECORD", "COMMAND"}}
	for i := range list {
		rows = append(rows, list[i].row())
	}
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len(c))
		}
	}
	var b bytes.Buffer
	for _, r := range rows {
		last := len(r) - 1
		for i, c := range r[:last] {
			b.WriteString(c + strings.Repeat(" ", width[i]-len(c)+2))
		}
		b.WriteString(r[last] + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (s *Summary) row() []string {
	r := s.Result
	switch {
	case s.Gone:
		return []string{s.ID, "-", "gone", "-", "-", "missing", "-"}
	case s.Err != nil:
		return []string{s.ID, "-", "damaged", "-", "-", "-", trace.Quote(s.Err.Error())}
	case r == nil && s.Live:
		return []string{s.ID, "-", "running", "-", "-", "-", "-"}
	case r == nil:
		return []string{s.ID, "-", "died", "-", "-", string(trace.Unsealed), "-"}
	}
	field := func(v string) string { return line(cmp.Or(v, "-")) }
	return []string{
		s.ID, fmt.Sprint(r.Status), field(r.Reason), span(r.Usage.Wall), fmt.Sprint(r.Denials.Count),
		field(r.Record.Verdict), trace.QuoteArgs(r.Argv, 200),
	}
}
