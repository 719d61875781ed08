package bpf

import (
	"slices"
	"sync"
)

// Gap is a stretch of one CPU's events that is missing from the record.
type Gap struct {
	CPU         int
	First, Last uint64 // sequence numbers
	After       uint64 // time of the last event read before it, CLOCK_BOOTTIME ns; 0 none
	Before      uint64 // time of the first event read after it; 0 none
}

// maxGaps bounds the memory of a tracker per CPU; later gaps widen the last one
// (Read and the delivery counts stay exact).
const maxGaps = 1024

// gapTracker follows the sequence numbers. Programs nest on a CPU, so a number
// may arrive a little late: it then closes its gap again.
type gapTracker struct {
	mu   sync.Mutex
	read uint64
	cpus []cpuSequence
}

type cpuSequence struct {
	next uint64 // expected
	last uint64 // time of the latest event
	gaps []Gap
}

func (t *gapTracker) see(ev *Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read++
	for len(t.cpus) <= ev.CPU {
		t.cpus = append(t.cpus, cpuSequence{})
	}
	c := &t.cpus[ev.CPU]
	switch {
	case ev.Seq < c.next:
		c.fill(ev.Seq)
		return
	case ev.Seq > c.next:
		c.open(Gap{CPU: ev.CPU, First: c.next, Last: ev.Seq - 1, After: c.last, Before: ev.Time})
	}
	c.next = ev.Seq + 1
	c.last = ev.Time
}

func (c *cpuSequence) open(g Gap) {
	if n := len(c.gaps); n >= maxGaps {
		c.gaps[n-1].Last, c.gaps[n-1].Before = g.Last, g.Before
		return
	}
	c.gaps = append(c.gaps, g)
}

// fill takes a number that arrived late out of the gap it was missing from.
func (c *cpuSequence) fill(seq uint64) {
	for i := len(c.gaps) - 1; i >= 0; i-- {
		g := c.gaps[i]
		if seq < g.First || seq > g.Last {
			continue
		}
		before, after := g, g
		before.Last, after.First = seq-1, seq+1
		c.gaps = slices.Delete(c.gaps, i, i+1)
		if after.First <= after.Last {
			c.gaps = slices.Insert(c.gaps, i, after)
		}
		if seq > g.First {
			c.gaps = slices.Insert(c.gaps, i, before)
		}
		return
	}
}

// report lists the gaps; what the kernel numbered after the last event read is one too.
func (t *gapTracker) report(counters []counterValue) (read uint64, gaps []Gap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for cpu := range counters {
		var c cpuSequence
		if cpu < len(t.cpus) {
			c = t.cpus[cpu]
		}
		gaps = append(gaps, c.gaps...)
		if end := counters[cpu].Seq; end > c.next {
			gaps = append(gaps, Gap{CPU: cpu, First: c.next, Last: end - 1, After: c.last})
		}
	}
	return t.read, gaps
}
