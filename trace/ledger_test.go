package trace

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// judged is what the writer and a reader of its file say; they must agree.
func judged(t *testing.T, w *Writer, file []byte) (Judgement, []string) {
	t.Helper()
	r := NewReader(bytes.NewReader(file))
	var e Event
	for {
		err := r.Next(&e)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	verdict, why := r.Report().Judge()
	if mine, reasons := w.Judge(); mine != verdict || !slices.Equal(reasons, why) {
		t.Errorf("the writer says %s %q, the reader %s %q", mine, reasons, verdict, why)
	}
	return verdict, why
}

// Every number of the kernel's is kept, lost, folded or dropped, or the record
// is not complete.
func TestNumbersAddUp(t *testing.T) {
	kernel := func(cpu uint32, seq uint64) *Event { return &Event{Kind: KindFork, CPU: cpu, CPUSeq: seq} }
	loss := func(cpu int32, n, first, last uint64) *Event {
		return &Event{Kind: KindLoss, Loss: Loss{Class: "any", Cause: "ring", Count: n, CPU: cpu, First: first, Last: last}}
	}
	for _, c := range []struct {
		name   string
		events []*Event
		folds  int
		total  uint64 // of CPU 1, by the kernel
		want   string // finding
	}{
		{"whole", []*Event{kernel(1, 1), kernel(1, 2)}, 0, 2, ""},
		{"folded", []*Event{kernel(1, 1), kernel(1, 4)}, 2, 4, ""},
		{"lost", []*Event{kernel(1, 1), loss(1, 2, 2, 3), kernel(1, 4)}, 0, 4, ""},
		{"lost somewhere in a range", []*Event{kernel(1, 2), loss(1, 2, 1, 3)}, 0, 3, ""},
		{"out of order", []*Event{kernel(1, 2), kernel(1, 1)}, 0, 2, ""},
		{"missing", []*Event{kernel(1, 1), kernel(1, 3)}, 0, 3, "CPU 1: the kernel made 3 records, and 2 are accounted for (2 kept, 0 lost, 0 folded, 0 dropped; the last is number 3)"},
		{"missing at the end", []*Event{kernel(1, 1)}, 0, 2, "CPU 1: the kernel made 2 records"},
		{"too many", []*Event{kernel(1, 1), kernel(1, 1)}, 0, 1, "CPU 1: the kernel made 1 records"},
		{"beyond the total", []*Event{kernel(1, 9)}, 0, 1, "the last is number 9"},
		{"another CPU", []*Event{kernel(1, 1), kernel(7, 1)}, 0, 1, "CPU 7: the kernel made 0 records"},
		{"no total", []*Event{kernel(2, 1)}, 0, 0, "CPU 2: the kernel made 0 records"},
		{"a loss that cannot be", []*Event{loss(1, 5, 2, 3)}, 0, 5, "a loss record counts more than it spans"},
	} {
		var b bytes.Buffer
		w := NewWriter(&b, Options{})
		for _, e := range c.events {
			if err := w.Append(e); err != nil {
				t.Fatal(err)
			}
		}
		for range c.folds {
			w.Fold(1)
		}
		if err := w.Close(&Event{Counts: []Count{{"cpu.1.events", c.total}}}); err != nil {
			t.Fatal(err)
		}
		_, why := judged(t, w, b.Bytes())
		why = slices.DeleteFunc(why, func(s string) bool { return strings.HasPrefix(s, "records lost") })
		if got := strings.Join(why, "; "); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// What the writer could not keep is dropped, also when it was written before
// and made room for the end.
func TestNumbersOfWhatIsNotKept(t *testing.T) {
	full := func(o Options, w io.Writer) *Writer {
		t.Helper()
		out := NewWriter(w, o)
		for i := range uint64(4000) {
			_ = out.Append(&Event{Kind: KindOpen, CPU: uint32(i % 2), CPUSeq: i/2 + 1, Path: []byte("/some/where")})
			if i == 1000 {
				_ = out.Append(&Event{Kind: KindLoss, Loss: Loss{Class: "any", Cause: "ring", Count: 3, CPU: 1, First: 2001, Last: 2003}})
			}
		}
		_ = out.Close(&Event{Counts: []Count{{"cpu.0.events", 2000}, {"cpu.1.events", 2003}}})
		return out
	}
	var b bytes.Buffer
	if verdict, why := judged(t, full(Options{MaxBytes: 100 << 10}, &b), b.Bytes()); verdict != Incomplete || len(why) != 1 {
		t.Errorf("max_bytes: %s %q", verdict, why)
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "trace"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := full(Options{}, &smallDisk{f: f, room: 300 << 10})
	file, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if verdict, why := judged(t, w, file); verdict != Incomplete || len(why) != 1 {
		t.Errorf("disk: %s %q", verdict, why)
	}
}

// smallDisk has no room after so many bytes.
type smallDisk struct {
	f    *os.File
	size int
	room int
}

func (d *smallDisk) Write(b []byte) (int, error) {
	n, err := d.f.Write(b[:min(len(b), d.room-d.size)])
	if d.size += n; err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return n, err
}

func (d *smallDisk) Truncate(n int64) error {
	d.size = int(n)
	return d.f.Truncate(n)
}

// A hostile file cannot make the ledger grow without end.
func TestLedgerIsBounded(t *testing.T) {
	var l ledger
	for i := range uint32(3 * maxCPUs) {
		l.line(&Event{CPU: i, CPUSeq: 1})
	}
	l.line(&Event{Kind: KindSummary, Counts: []Count{{"cpu.1.events", 1}}})
	if f := l.findings(); len(l.cpus) != maxCPUs || len(f) != maxFindings || !strings.Contains(f[0], "more CPUs") {
		t.Errorf("%d CPUs, %d findings", len(l.cpus), len(f))
	}
}
