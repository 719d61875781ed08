package bpf

import (
	"fmt"
	"testing"
)

func TestGaps(t *testing.T) {
	for _, test := range []struct {
		name string
		seqs []uint64
		end  uint64 // what the kernel numbered
		want string
	}{
		{"whole", []uint64{0, 1, 2}, 3, "[]"},
		{"hole", []uint64{0, 3, 4}, 5, "[{2 1 2 100 103}]"},
		{"first", []uint64{2}, 3, "[{2 0 1 0 102}]"},
		{"tail", []uint64{0}, 3, "[{2 1 2 100 0}]"},
		{"nothing", nil, 2, "[{2 0 1 0 0}]"},
		{"late", []uint64{0, 2, 1, 3}, 4, "[]"},
		{"late in the middle", []uint64{0, 5, 3}, 6, "[{2 1 2 100 105} {2 4 4 100 105}]"},
		{"late at the edges", []uint64{0, 5, 1, 4}, 6, "[{2 2 3 100 105}]"},
		{"two", []uint64{0, 2, 4}, 5, "[{2 1 1 100 102} {2 3 3 102 104}]"},
	} {
		var g gapTracker
		for _, seq := range test.seqs {
			g.see(&Event{CPU: 2, Seq: seq, Time: 100 + seq})
		}
		counters := make([]counterValue, 4)
		counters[2].Seq = test.end
		read, gaps := g.report(counters)
		if got := fmt.Sprint(gaps); got != test.want || int(read) != len(test.seqs) {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// An endless number of holes costs bounded memory, and none is forgotten.
func TestGapsAreBounded(t *testing.T) {
	var g gapTracker
	const n = 3 * maxGaps
	for i := range uint64(n) {
		g.see(&Event{Seq: 2*i + 1, Time: i})
	}
	_, gaps := g.report(make([]counterValue, 1))
	if len(gaps) > maxGaps || gaps[len(gaps)-1].Last != 2*(n-1) {
		t.Errorf("%d gaps, the last %+v", len(gaps), gaps[len(gaps)-1])
	}
}
