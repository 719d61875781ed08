package bpf

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// number feeds the tracker with the numbers of CPU 2; each event is at the
// position that its order gives it, 1 and on.
func number(g *gapTracker, seqs ...uint64) (late int) {
	for _, seq := range seqs {
		if !g.see(&Event{CPU: 2, Seq: seq, Time: 100 + seq}, g.read) {
			late++
		}
		g.delivered(2, g.read)
	}
	return late
}

func show(gaps []Gap) string {
	var s []string
	for _, g := range gaps {
		s = append(s, fmt.Sprintf("%d-%d:%d @%d-%d", g.First, g.Last, g.Count, g.AfterPos, g.BeforePos))
	}
	return strings.Join(s, " ")
}

// What is lost before the first event of a CPU lies after what the record had by then.
func TestGapsBegin(t *testing.T) {
	var g gapTracker
	g.begin(7)
	number(&g, 1)
	_, _, gaps := g.rest(make([]counterValue, 3))
	if got := show(gaps); got != "0-0:1 @7-0" {
		t.Errorf("got %s", got)
	}
	g.begin(9) // another Read of the same run
	counters := make([]counterValue, 4)
	counters[3].Seq = 1
	_, _, gaps = g.rest(counters)
	if got := show(gaps); !strings.HasSuffix(got, "0-0:1 @7-0") {
		t.Errorf("got %s", got)
	}
}

func TestGaps(t *testing.T) {
	for _, test := range []struct {
		name string
		seqs []uint64
		end  uint64 // what the kernel numbered
		want string
	}{
		{"whole", []uint64{0, 1, 2}, 3, ""},
		{"hole", []uint64{0, 3, 4}, 5, "1-2:2 @1-1"},
		{"first", []uint64{2}, 3, "0-1:2 @0-0"},
		{"tail", []uint64{0}, 3, "1-2:2 @1-0"},
		{"nothing", nil, 2, "0-1:2 @0-0"},
		{"late", []uint64{0, 2, 1, 3}, 4, ""},
		{"late in the middle", []uint64{0, 5, 3}, 6, "1-2:2 @1-1 4-4:1 @1-1"},
		{"late at the edges", []uint64{0, 5, 1, 4}, 6, "2-3:2 @1-1"},
		{"two", []uint64{0, 2, 4}, 5, "1-1:1 @1-1 3-3:1 @2-2"},
	} {
		var g gapTracker
		number(&g, test.seqs...)
		counters := make([]counterValue, 4)
		counters[2].Seq = test.end
		read, late, gaps := g.rest(counters)
		if got := show(gaps); got != test.want || int(read) != len(test.seqs) || late != 0 {
			t.Errorf("%s: %s, want %s; %d late", test.name, got, test.want, late)
		}
	}
}

// A gap is given out once, when nothing can close it any more; what comes all
// the same is known to be counted already.
func TestGapsSettle(t *testing.T) {
	var g gapTracker
	number(&g, 0, 3)
	if gaps := g.settle(103 + uint64(holdGap) - 1); gaps != nil {
		t.Errorf("too early: %s", show(gaps))
	}
	if got := show(g.settle(103 + uint64(holdGap))); got != "1-2:2 @1-1" {
		t.Error(got)
	}
	if gaps := g.settle(1 << 62); gaps != nil {
		t.Errorf("twice: %s", show(gaps))
	}
	if late := number(&g, 4, 2, 6); late != 1 {
		t.Errorf("%d late", late)
	}
	counters := make([]counterValue, 3)
	counters[2].Seq = 7
	if read, late, gaps := g.rest(counters); read != 5 || late != 1 || show(gaps) != "5-5:1 @4-4" {
		t.Errorf("%d read, %d late, %s", read, late, show(gaps))
	}
}

// A machine that stood still has not given anybody the time to close a gap.
func TestPatience(t *testing.T) {
	var p patience
	now := uint64(1e9)
	for i, c := range []struct {
		later time.Duration
		want  bool
	}{
		{0, true},
		{25 * time.Millisecond, true},
		{3 * time.Second, false},
		{25 * time.Millisecond, false},
		{200 * time.Millisecond, false},
		{25 * time.Millisecond, true},
		{25 * time.Millisecond, true},
		{300 * time.Millisecond, false},
		{300 * time.Millisecond, false},
		{250 * time.Millisecond, true},
	} {
		if now += uint64(c.later); p.over(now) != c.want {
			t.Errorf("look %d: %v", i, !c.want)
		}
	}
}

// An endless number of holes costs bounded memory, and none is forgotten.
func TestGapsAreBounded(t *testing.T) {
	var g gapTracker
	const n = 3 * maxHeld
	for i := range uint64(n) {
		number(&g, 2*i+1)
	}
	number(&g, 2*n-2, 0) // late: out of the widened gap, and the whole of the first
	_, _, gaps := g.rest(make([]counterValue, 3))
	var missing uint64
	for _, gap := range gaps {
		missing += gap.Count
	}
	if len(gaps) != maxHeld-1 || missing != n-2 || gaps[len(gaps)-1].Last != 2*(n-1) {
		t.Errorf("%d gaps of %d, the last %+v", len(gaps), missing, gaps[len(gaps)-1])
	}
}
