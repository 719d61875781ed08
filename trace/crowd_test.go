package trace

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// When a record fills up, opens of the noisiest process lose their names first;
// none loses its count, and what matters more keeps both.
func TestCrowd(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, Options{MaxBytes: 256 << 10})
	var n uint64
	put := func(e Event, pid uint32) {
		n++
		e.Proc, e.Mono, e.CPUSeq = Proc{Pid: pid, Start: uint64(pid) * 10}, n, n
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	open := func(i int) Event { return Event{Kind: KindOpen, Access: "r", Path: fmt.Appendf(nil, "/f/%d", i)} }
	for i := range 3000 {
		put(open(i), 7)
		if i%100 == 0 {
			put(open(i), 8)
			put(Event{Kind: KindOpen, Access: "w", Path: []byte("/w")}, 7)
			put(Event{Kind: KindExec, Path: []byte("/bin/true")}, 8)
		}
	}
	put(Event{Kind: KindExit}, 7)
	if err := w.Close(&Event{Counts: []Count{{"cpu.0.events", n}}}); err != nil {
		t.Fatal(err)
	}
	var e Event
	named, counted := map[uint32]uint64{}, map[uint32]uint64{}
	kinds := map[Kind]int{}
	exited := false
	for r := NewReader(bytes.NewReader(b.Bytes())); r.Next(&e) != io.EOF; {
		switch {
		case e.Kind == KindOpen && e.Access == "r" && len(e.Path) > 0:
			named[e.Proc.Pid] += e.Times()
		case e.Kind == KindOpen && e.Access == "r":
			if counted[e.Proc.Pid] += e.Times(); e.Text != crowdText || e.Proc.Pid == 7 && exited {
				t.Errorf("%+v", e)
			}
		default:
			kinds[Kind(string(e.Kind)+e.Access)]++
			exited = exited || e.Kind == KindExit
		}
	}
	if named[7]+counted[7] != 3000 || counted[7] == 0 || named[8] != 30 || kinds["openw"] != 30 || kinds["exec"] != 30 {
		t.Errorf("named %v, counted %v, others %v", named, counted, kinds)
	}
	verdict, why := judged(t, w, b.Bytes())
	if want := fmt.Sprintf("%d opens of files to read are counted and not named (trace.max_bytes)", counted[7]); verdict != Incomplete || strings.Join(why, ";") != want {
		t.Errorf("%s %q, want %q", verdict, why, want)
	}
}

// More processes than can be told apart are counted together, and a record
// that has no room even for that says how many it lost.
func TestCrowdIsBounded(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, Options{MaxBytes: 16 << 10})
	const n = 5000
	for i := range uint32(n) {
		if err := w.Append(&Event{Kind: KindOpen, Access: "r", Path: []byte("/some/file"), Proc: Proc{Pid: i + 1, Start: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(w.crowd.procs); got > w.maxOpeners() {
		t.Errorf("%d processes are remembered", got)
	}
	if err := w.Close(nil); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 16<<10 {
		t.Errorf("the record has %d bytes", b.Len())
	}
	var kept uint64
	var e Event
	r := NewReader(bytes.NewReader(b.Bytes()))
	for r.Next(&e) != io.EOF {
		if e.Kind == KindOpen {
			kept += e.Times()
		}
	}
	if kept+r.Report().Lost != n || kept < n/2 {
		t.Errorf("%d kept, %d lost of %d", kept, r.Report().Lost, n)
	}
	judged(t, w, b.Bytes())
}
