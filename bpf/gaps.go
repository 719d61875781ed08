package bpf

import (
	"slices"
	"sync"
	"time"
)

// Gap is a stretch of one CPU's sequence numbers from which events are missing.
type Gap struct {
	CPU         int
	First, Last uint64 // sequence numbers
	Count       uint64 // missing ones among them: all, unless there were too many gaps to tell apart
	After       uint64 // time of the CPU's last event before the gap, CLOCK_BOOTTIME ns; 0 none
	Before      uint64 // time of its first event after it; 0 none
	AfterPos    uint64 // RunConfig.Position when the event before it had been delivered
	BeforePos   uint64 // and when the event after it was about to be; 0 none
}

const (
	// holdGap is how long a gap may still close: programs nest on a CPU, and newer
	// kernels preempt them between the number and the ring, so that a number can
	// come after later ones.
	holdGap = time.Second
	// maxHeld bounds the gaps of a CPU that are held; later ones widen the last.
	// All counts stay exact.
	maxHeld = 64
)

// patience puts off what is judged by its age when the reader has not looked for
// long. The whole machine may have stood still meanwhile: then a task that was
// interrupted between its number and the ring has had no time to go on.
type patience struct{ looked, until uint64 }

const (
	longLook = uint64(250 * time.Millisecond) // between two looks
	respite  = uint64(250 * time.Millisecond)
)

// over takes the time of each look, and reports whether ages count.
func (p *patience) over(now uint64) bool {
	if p.looked != 0 && now > p.looked+longLook {
		p.until = now + respite
	}
	p.looked = now
	return now >= p.until
}

// gapTracker follows the sequence numbers.
type gapTracker struct {
	mu   sync.Mutex
	from uint64 // position before the first event
	read uint64
	late uint64 // came after their gap was given out
	cpus []cpuSequence
}

type cpuSequence struct {
	next uint64 // expected
	last uint64 // time of the latest event
	pos  uint64 // position after it
	gaps []Gap
}

// begin notes the position before the first event: whatever is lost comes after it.
func (t *gapTracker) begin(pos uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read == 0 {
		t.from = pos
	}
}

// see takes the number of an event that is to be delivered at pos. It is false
// for one whose gap was given out before: it is counted as lost already.
func (t *gapTracker) see(ev *Event, pos uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read++
	for len(t.cpus) <= ev.CPU {
		t.cpus = append(t.cpus, cpuSequence{pos: t.from})
	}
	c := &t.cpus[ev.CPU]
	if ev.Seq < c.next {
		inTime := c.fill(ev.Seq)
		if !inTime {
			t.late++
		}
		return inTime
	}
	if ev.Seq > c.next {
		c.open(Gap{
			CPU: ev.CPU, First: c.next, Last: ev.Seq - 1, Count: ev.Seq - c.next,
			After: c.last, Before: ev.Time, AfterPos: c.pos, BeforePos: pos,
		})
	}
	c.next, c.last = ev.Seq+1, ev.Time
	return true
}

// delivered notes the position after an event of the CPU.
func (t *gapTracker) delivered(cpu int, pos uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cpus[cpu].pos = pos
}

func (c *cpuSequence) open(g Gap) {
	if n := len(c.gaps); n >= maxHeld {
		last := &c.gaps[n-1]
		last.Last, last.Before, last.BeforePos = g.Last, g.Before, g.BeforePos
		last.Count += g.Count
		return
	}
	c.gaps = append(c.gaps, g)
}

// fill takes a number that arrived late out of the gap it was missing from, and
// reports whether there was one.
func (c *cpuSequence) fill(seq uint64) bool {
	i := slices.IndexFunc(c.gaps, func(g Gap) bool { return g.First <= seq && seq <= g.Last })
	if i < 0 {
		return false
	}
	g := &c.gaps[i]
	exact := g.Count == g.Last-g.First+1
	g.Count--
	switch {
	case g.Count == 0:
		c.gaps = slices.Delete(c.gaps, i, i+1)
	case exact && seq == g.First:
		g.First++
	case exact && seq == g.Last:
		g.Last--
	case exact && len(c.gaps) < 2*maxHeld:
		rest := *g
		g.Last, g.Count = seq-1, seq-g.First
		rest.First, rest.Count = seq+1, rest.Last-seq
		c.gaps = slices.Insert(c.gaps, i+1, rest)
	}
	return true
}

// settle takes out the gaps that have been held long enough at the time now.
func (t *gapTracker) settle(now uint64) []Gap {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Gap
	for i := range t.cpus {
		c := &t.cpus[i]
		n := 0
		for n < len(c.gaps) && c.gaps[n].Before+uint64(holdGap) <= now {
			n++
		}
		out = append(out, c.gaps[:n]...)
		c.gaps = slices.Delete(c.gaps, 0, n)
	}
	return out
}

// rest lists the gaps that are still held; what the kernel numbered after the
// last event read is one too.
func (t *gapTracker) rest(counters []counterValue) (read, late uint64, gaps []Gap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for cpu := range counters {
		c := cpuSequence{pos: t.from}
		if cpu < len(t.cpus) {
			c = t.cpus[cpu]
		}
		gaps = append(gaps, c.gaps...)
		if end := counters[cpu].Seq; end > c.next {
			gaps = append(gaps, Gap{CPU: cpu, First: c.next, Last: end - 1, Count: end - c.next, After: c.last, AfterPos: c.pos})
		}
	}
	return t.read, t.late, gaps
}
