package query

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/trace"
)

// record writes a run of n opens of which every tenth is denied, and one exec.
func record(t testing.TB, n int, torn bool) *bytes.Reader {
	t.Helper()
	var b bytes.Buffer
	w := trace.NewWriter(&b, trace.Options{BootID: "1a2b3c4d", Mono: 1e9, Wall: time.Unix(1_795_970_000, 0)})
	p := trace.Proc{Pid: 42, Tid: 42, Start: 9}
	add := func(e *trace.Event) {
		e.Mono = 1e9 + uint64(len(b.Bytes()))
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	add(&trace.Event{Kind: trace.KindStart, Run: "r"})
	add(&trace.Event{Kind: trace.KindExec, Phase: trace.PhaseCommand, Proc: p, Path: []byte("/bin/sh"), Argv: [][]byte{[]byte("sh")}})
	denied := uint64(0)
	for i := range n {
		e := &trace.Event{Kind: trace.KindOpen, Phase: trace.PhaseCommand, Proc: p, Path: fmt.Appendf(nil, "/usr/lib/%d\x1b", i), Access: "r", Syscall: "openat", SyscallNr: 257, Ret: 3}
		if i%10 == 9 {
			e.Verdict, e.Layer, e.Errno, e.Ret = trace.VerdictDeny, trace.LayerLandlock, 13, 0
			denied++
		}
		add(e)
	}
	if !torn {
		if err := w.Close(&trace.Event{Mono: 2e9, Counts: []trace.Count{{Name: "denied", N: denied}}}); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	_ = w.Close(nil)
	return bytes.NewReader(b.Bytes()[:b.Len()-10])
}

// ask runs a query over records and returns what it prints.
func ask(t *testing.T, s Search, expr string, recs ...*bytes.Reader) (string, trace.Judgement) {
	t.Helper()
	q, err := Parse(expr)
	if err != nil {
		t.Fatal(err)
	}
	var out, warned strings.Builder
	s.Query, s.Out, s.Warn = q, &out, func(l string) { warned.WriteString("WARNING " + l + "\n") }
	for i, r := range recs {
		if err := s.Record(fmt.Sprint("run", i), r, r.Size()); err != nil {
			t.Fatal(err)
		}
	}
	j, err := s.Close()
	if err != nil {
		t.Fatal(err)
	}
	return out.String() + warned.String(), j
}

func TestSearch(t *testing.T) {
	tests := []struct {
		name string
		s    Search
		expr string
		torn bool
		runs int
		want string
	}{
		{"one", Search{}, "denied", false, 1, "record    complete, run0, 1 of 13 records\n" +
			"       12    +0.000s       42  denied open $'/usr/lib/9\\x1b' (EACCES; landlock)\n"},
		{"none", Search{}, "kind = connect", false, 1, "record    complete, 1 run, 0 matches; the counts in their summaries rule out 1\n"},
		{"torn", Search{Limit: 1}, "kind = exec", true, 1, "record    unsealed, run0, 1 of 12 records\n" +
			"          no summary: the run is live, or agentguard was killed\n          the last line is torn\n" +
			"        2    +0.000s       42  exec /bin/sh\n"},
		{"many", Search{Limit: 3}, "kind = exec", false, 5, strings.Join([]string{
			"record    complete, run0, 1 of 13 records", "        2    +0.000s       42  exec /bin/sh",
			"record    complete, run1, 1 of 13 records", "        2    +0.000s       42  exec /bin/sh",
			"record    complete, run2, 1 of 13 records", "        2    +0.000s       42  exec /bin/sh",
			"record    complete, 5 runs, 5 matches\n",
		}, "\n")},
		{"count", Search{CountBy: []string{"verdict", "access"}}, "kind = open", false, 2, "record    complete, 2 runs, 20 matches\n       18  -  r\n        2  deny  r\n"},
		{"count, some", Search{CountBy: []string{"path"}, Limit: 1}, "denied or kind = exec", false, 1, "record    complete, 1 run, 2 matches\n        1  /bin/sh\n        1  others\n"},
		{
			"count for machines",
			Search{CountBy: []string{"path", "argv"}, JSON: true},
			"denied or kind = exec", false, 1,
			`{"acts":1,"path":"/bin/sh","argv":"sh"}` + "\n" + `{"acts":1,"path":"/usr/lib/9\u001b","argv":"-"}` + "\n",
		},
	}
	for _, tt := range tests {
		recs := make([]*bytes.Reader, tt.runs)
		for i := range recs {
			recs[i] = record(t, 10, tt.torn)
		}
		got, j := ask(t, tt.s, tt.expr, recs...)
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, d)
		}
		if (j == trace.Complete) == tt.torn {
			t.Errorf("%s: %s", tt.name, j)
		}
	}
}

// TestSearchDegraded asks records that say at their start what their runs lacked:
// they are not complete, be they read or not, and incomplete only beside one that is.
func TestSearchDegraded(t *testing.T) {
	degraded := func() *bytes.Reader {
		var b bytes.Buffer
		w := trace.NewWriter(&b, trace.Options{BootID: "1a2b3c4d", Mono: 1e9})
		// The start is longer than what is read of it at first.
		lacks := []string{"record: no files", strings.Repeat("x", 5000)}
		for _, e := range []*trace.Event{{Kind: trace.KindStart, Run: "r", Degraded: lacks}, {Kind: trace.KindExec, Phase: trace.PhaseCommand, Path: []byte("/bin/sh")}} {
			if err := w.Append(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(&trace.Event{Mono: 2e9, Counts: []trace.Count{{Name: "denied"}}}); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	tests := []struct {
		expr, want string
		recs       []*bytes.Reader
		verdict    trace.Judgement
	}{
		{"kind = open", "record    degraded, 1 run, 1 of them not complete, 0 matches; the counts in their summaries rule out 1\n", []*bytes.Reader{degraded()}, trace.Degraded},
		{"kind = connect", "record    degraded, 2 runs, 1 of them not complete, 0 matches; the counts in their summaries rule out 2\n", []*bytes.Reader{record(t, 1, false), degraded()}, trace.Degraded},
		{"kind = exec", "record    degraded, 2 runs, 2 of them not complete, 2 matches\n        2  /bin/sh\n", []*bytes.Reader{degraded(), degraded()}, trace.Degraded},
		{"kind = exec", "record    incomplete, 3 runs, 3 of them not complete, 3 matches\n        3  /bin/sh\n", []*bytes.Reader{degraded(), record(t, 1, true), degraded()}, trace.Incomplete},
	}
	for _, tt := range tests {
		got, j := ask(t, Search{CountBy: []string{"path"}}, tt.expr, tt.recs...)
		if got != tt.want || j != tt.verdict {
			t.Errorf("%s: %s, want %s\n%swant\n%s", tt.expr, j, tt.verdict, got, tt.want)
		}
	}
}

func TestSearchJSON(t *testing.T) {
	got, j := ask(t, Search{JSON: true}, "kind = exec", record(t, 3, true))
	if !strings.HasPrefix(got, `{"run_id":"run0","v":1,"seq":2,`) || !strings.HasSuffix(got, "WARNING the record of run0 is unsealed: no summary: the run is live, or agentguard was killed; the last line is torn\n") {
		t.Errorf("%s: %s", j, got)
	}
}

// TestSearchIsBounded matches more than is held: the judgement still comes first.
func TestSearchIsBounded(t *testing.T) {
	const n = 100_000
	got, _ := ask(t, Search{}, "kind = open", record(t, n, false))
	if !strings.HasPrefix(got, "record    complete, run0, 100000 of 100003 records\n") || strings.Count(got, "\n") != n+1 || len(got) < maxHeld {
		t.Errorf("%d lines, %d bytes: %.200s", strings.Count(got, "\n"), len(got), got)
	}
}

// BenchmarkSearch asks 10 000 runs of 100 records each, as in "trace query --all":
// for what their summaries rule out, and for what they do not.
func BenchmarkSearch(b *testing.B) {
	r := record(b, 100, false)
	for _, expr := range []string{"kind = connect", "denied and path glob /etc/**"} {
		b.Run(expr, func(b *testing.B) {
			q, err := Parse(expr)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				var out bytes.Buffer
				s := Search{Query: q, Out: &out}
				for i := range 10_000 {
					r.Seek(0, 0)
					if err := s.Record(fmt.Sprint(i), r, r.Size()); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/10000runs")
		})
	}
}
