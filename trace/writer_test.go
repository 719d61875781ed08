package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testClock = Options{Mono: 5_000_000_000, Wall: time.Date(2026, 11, 29, 16, 36, 24, 0, time.UTC), BootID: "1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809"}

func openEvent(i int) *Event {
	return &Event{
		Kind: KindOpen, Phase: PhaseCommand, Mono: 5_000_000_000 + uint64(i), Proc: Proc{Pid: 42, Tid: 42, Start: 77, UID: 1000},
		Syscall: "openat", SyscallNr: 257, Ret: 3, Path: fmt.Appendf(nil, "/usr/lib/python3/x%06d.py", i), PathSource: PathKernel,
		Access: "r", DevMajor: 8, DevMinor: 1, Ino: 1_000_000,
	}
}

func execEvent(i int) *Event {
	return &Event{
		Kind: KindExec, Phase: PhaseCommand, Mono: 5_000_000_000 + uint64(i), Proc: Proc{Pid: uint32(100 + i), Start: 77},
		Path: []byte("/bin/true"), Argv: [][]byte{[]byte("true")},
	}
}

// readAll reads a record to its end.
func readAll(t testing.TB, b []byte) ([]Event, *Report) {
	t.Helper()
	r := NewReader(bytes.NewReader(b))
	var out []Event
	for {
		var e Event // its own buffers, but the slices point into the reader
		err := r.Next(&e)
		if err == io.EOF {
			return out, r.Report()
		}
		if bad := (*LineError)(nil); errors.As(err, &bad) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		e.Path, e.To = bytes.Clone(e.Path), bytes.Clone(e.To)
		out = append(out, e)
	}
}

func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, testClock)
	e := openEvent(7)
	if err := w.Append(e); err != nil {
		t.Fatal(err)
	}
	if e.Seq != 1 || e.Proc.ID() != "1a2b3c4d-77-42" || e.Wall != testClock.Wall.UnixNano()+7 {
		t.Errorf("Append assigned seq %d, id %s, wall %d", e.Seq, e.Proc.ID(), e.Wall)
	}
	e = openEvent(8)
	e.Count = 5
	w.Append(e)
	if b.Len() != 0 {
		t.Error("written before Flush")
	}
	if err := w.Flush(); err != nil || strings.Count(b.String(), "\n") != 2 {
		t.Errorf("Flush: %v\n%s", err, &b)
	}
	if err := w.Close(&Event{Mono: 6_000_000_000, Reason: "exit", Counts: []Count{{"syscall.read", 3}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(e); err != ErrClosed {
		t.Errorf("Append after Close: %v", err)
	}
	if err := w.Close(nil); err != ErrClosed {
		t.Errorf("second Close: %v", err)
	}
	events, report := readAll(t, b.Bytes())
	if j, why := report.Judge(); j != Complete {
		t.Errorf("%s: %v", j, why)
	}
	sum := events[2]
	if d := cmp.Diff([]Count{{"syscall.read", 3}, {"kind.open", 6}}, sum.Counts); d != "" || sum.Records != 2 {
		t.Errorf("summary of %d records, counts %s", sum.Records, d)
	}
}

func TestMaxBytes(t *testing.T) {
	const limit = 256 << 10
	var b bytes.Buffer
	o := testClock
	o.MaxBytes = limit
	w := NewWriter(&b, o)
	denied := 0
	for i := range 3000 {
		e := openEvent(i)
		if i >= 2000 {
			e.Verdict, e.Errno = VerdictDeny, 13
			denied++
		}
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	needle := execEvent(1)
	if err := w.Append(needle); err != nil || needle.Seq == 0 {
		t.Fatalf("the exec after the flood is not in the record: %v", err)
	}
	for i := range 1000 {
		w.Append(execEvent(i))
	}
	w.Append(&Event{Kind: KindExit, Proc: Proc{Pid: 1}, Count: 3}) // there is no room: three are lost
	if err := w.Close(nil); err != nil {
		t.Fatal(err)
	}
	if b.Len() > limit {
		t.Errorf("%d bytes of %d", b.Len(), limit)
	}
	events, report := readAll(t, b.Bytes())
	if j, _ := report.Judge(); j != Incomplete {
		t.Errorf("judged %s", j)
	}
	kept := map[Kind]uint64{}
	keptDenials := 0
	for _, e := range events {
		kept[e.Kind] += e.Times()
		if e.Denied() {
			keptDenials++
		}
	}
	lost := map[string]Loss{}
	for _, l := range report.Losses {
		lost[l.Class] = l
	}
	if got := kept[KindOpen] + lost["open"].Count; got != 3000 {
		t.Errorf("opens kept and lost: %d of 3000", got)
	}
	if got := kept[KindExec] + lost["exec"].Count; got != 1001 {
		t.Errorf("execs kept and lost: %d of 1001", got)
	}
	if lost["exit"].Count != 3 {
		t.Errorf("exits lost: %d of 3", lost["exit"].Count)
	}
	if keptDenials == 0 || keptDenials == denied {
		t.Errorf("%d of %d denials kept: they have room that opens have not, but not all", keptDenials, denied)
	}
	if l := lost["open"]; l.Cause != "max_bytes" || l.AfterSeq == 0 || l.Bytes < 200*l.Count {
		t.Errorf("loss of opens: %+v", l)
	}
	sum := events[len(events)-1]
	if sum.Lost != report.Lost || sum.Lost != w.lost() {
		t.Errorf("summary says %d lost, loss records say %d, the writer %d", sum.Lost, report.Lost, w.lost())
	}
}

// disk fails after room bytes, as a full disk does, and can be cut back.
type disk struct {
	bytes.Buffer
	room  int
	fixed bool // Truncate does not work
	syncs int
}

func (d *disk) Write(p []byte) (int, error) {
	n := min(len(p), max(d.room-d.Len(), 0))
	d.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (d *disk) Truncate(n int64) error {
	if d.fixed {
		return errors.ErrUnsupported
	}
	d.Buffer.Truncate(int(n))
	return nil
}

func (d *disk) Sync() error { d.syncs++; return nil }

func TestFullDisk(t *testing.T) {
	tests := []struct {
		name      string
		fixed     bool
		room      int // at first
		later     int // when Close is called; 0: as before
		judgement Judgement
	}{
		{"cut back, no room later", false, 100_000, 0, Incomplete}, // the cut makes room for the summary
		{"cut back, room later", false, 100_000, 200_000, Incomplete},
		{"cannot be cut, room later", true, 100_000, 200_000, Incomplete},
		{"cannot be cut, no room", true, 100_000, 0, Unsealed},
		{"no room at all", false, 0, 0, Unsealed},
		{"room at last", false, 0, 200_000, Incomplete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const events = 1000
			d := &disk{room: tt.room, fixed: tt.fixed}
			w := NewWriter(d, testClock)
			failed := 0
			for i := range events {
				if err := w.Append(openEvent(i)); err != nil {
					failed++
					if !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("Append: %v", err)
					}
				}
			}
			if failed == 0 || w.Flush() == nil {
				t.Errorf("the error does not stick: %d of %d failed", failed, events)
			}
			if tt.later > 0 {
				d.room = tt.later
			}
			if err := w.Close(nil); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Close: %v", err)
			}
			got, report := readAll(t, d.Bytes())
			if j, why := report.Judge(); j != tt.judgement {
				t.Errorf("judged %s, want %s: %v", j, tt.judgement, why)
			}
			if j, why := w.Judge(); j != tt.judgement {
				t.Errorf("the writer says %s, want %s: %v", j, tt.judgement, why)
			}
			opens := 0
			for _, e := range got {
				if e.Kind == KindOpen {
					opens++
				}
			}
			if lost := int(w.lost()); opens+lost != events {
				t.Errorf("%d kept, %d lost of %d", opens, lost, events)
			}
			if tt.judgement == Incomplete && int(report.Lost)+opens != events {
				t.Errorf("the record says %d lost; %d of %d are there", report.Lost, opens, events)
			}
			if tt.judgement == Incomplete && report.Missing != 0 {
				t.Errorf("%d sequence numbers missing", report.Missing)
			}
		})
	}
}

func TestFindings(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, testClock)
	w.Append(openEvent(1))
	if j, _ := w.Judge(); j != Unsealed {
		t.Errorf("before Close: %s", j)
	}
	if err := w.Close(&Event{Findings: []string{"sensor: lost its way \x1b"}}); err != nil {
		t.Fatal(err)
	}
	_, report := readAll(t, b.Bytes())
	want := []string{`$'sensor: lost its way \x1b'`}
	for _, judge := range []func() (Judgement, []string){w.Judge, report.Judge} {
		if j, why := judge(); j != Incomplete || !slices.Equal(why, want) {
			t.Errorf("%s: %q", j, why)
		}
	}
}

// TestLossInLostRecord takes a loss record that is itself lost.
func TestLossInLostRecord(t *testing.T) {
	d := &disk{room: 10}
	w := NewWriter(d, testClock)
	w.Append(&Event{Kind: KindLoss, Loss: Loss{Class: "bulk", Cause: "ring", Count: 70, Bytes: 9000, CPU: 1}})
	if w.lost() != 70 {
		t.Errorf("lost %d of 70", w.lost())
	}
	w.Flush()
	d.room = 1 << 20
	w.Close(nil)
	_, report := readAll(t, d.Bytes())
	if report.Lost != 71 { // the 70, and the record that said so
		t.Errorf("%d lost: %+v", report.Lost, report.Losses)
	}
}

func TestShortWriteAndSync(t *testing.T) {
	w := NewWriter(shortWriter{}, testClock)
	w.Append(openEvent(1))
	if err := w.Flush(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short write: %v", err)
	}
	for _, durable := range []bool{false, true} {
		d := &disk{room: 1 << 20}
		o := testClock
		o.Durable = durable
		if err := NewWriter(d, o).Close(nil); err != nil || (d.syncs == 1) != durable {
			t.Errorf("durable %v: %v, %d syncs", durable, err, d.syncs)
		}
	}
}

type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) / 2, nil }

func TestTooLongIsCounted(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, testClock)
	if err := w.Append(&Event{Kind: KindExec, Text: strings.Repeat("x", MaxLine)}); err != nil {
		t.Fatal(err)
	}
	w.Close(nil)
	_, report := readAll(t, b.Bytes())
	if len(report.Losses) != 1 || report.Losses[0].Cause != "too_long" || report.Losses[0].Count != 1 {
		t.Errorf("%+v", report.Losses)
	}
}

func TestConcurrentAppend(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, testClock)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 500 {
				w.Append(openEvent(i))
				if i%50 == 0 {
					w.Flush()
				}
			}
		})
	}
	wg.Wait()
	w.Close(nil)
	events, report := readAll(t, b.Bytes())
	if j, why := report.Judge(); j != Complete || len(events) != 4001 {
		t.Errorf("%s: %v, %d records", j, why, len(events))
	}
}

// TestAppendDoesNotAllocate is the steady state: the buffer has its size.
func TestAppendDoesNotAllocate(t *testing.T) {
	w := NewWriter(io.Discard, testClock)
	events := []*Event{
		openEvent(1), execEvent(1), denyEvent(),
		{Kind: KindFork, Proc: Proc{Pid: 1}, Child: Proc{Pid: 2}},
		{Kind: KindOpen, Path: []byte("\xff\n"), Proc: Proc{Pid: 1}},
	}
	if n := testing.AllocsPerRun(2000, func() {
		for _, e := range events {
			w.Append(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, bm := range []struct {
		name string
		e    *Event
	}{{"open", openEvent(1)}, {"exec", execEvent(1)}, {"deny", denyEvent()}} {
		b.Run(bm.name, func(b *testing.B) {
			w := NewWriter(io.Discard, testClock)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				bm.e.Mono = uint64(i) * 1000
				w.Append(bm.e)
			}
			b.SetBytes(int64(len(encodeOne(bm.e))))
		})
	}
}

func BenchmarkRead(b *testing.B) {
	var rec bytes.Buffer
	w := NewWriter(&rec, testClock)
	for i := range 1000 {
		w.Append(openEvent(i))
	}
	w.Close(nil)
	b.SetBytes(int64(rec.Len()))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(bytes.NewReader(rec.Bytes()))
		var e Event
		for r.Next(&e) == nil {
		}
	}
}
