package trace

import "fmt"

// A crowd is what becomes of files that were only read, when a record has used
// half of its room: they are counted by process instead of named one by one, at
// first those of the processes that open most, from 5/8 on those of all. The
// counts are exact; that names are missing makes the record incomplete.
type crowd struct {
	all   uint64 // opens that could be counted so
	procs map[crowdKey]*opener
	other opener // of processes that there was no room to remember
	names uint64 // opens without a name

	reserve int64 // bytes of the record that are kept for what will be told
}

type crowdKey struct {
	start uint64
	pid   uint32
}

// opener is one process.
type opener struct {
	opens  uint64 // so far
	folded Event  // those that are counted; Count is how many
}

const (
	crowdRoom = 512 // bytes, more than the record of one process takes
	crowdText = "the names of these files are not kept (trace.max_bytes)"
	// noisy is the share of all opens, one in so many, that makes a process noisy.
	noisy = 16
)

// maxOpeners bounds the processes that are counted apart, so that their records
// have room.
func (t *Writer) maxOpeners() int {
	return int(min(max(t.room/8/crowdRoom, 4), 4096))
}

// crowded counts an open for which there is no room of its own, and reports
// whether it did.
func (t *Writer) crowded(e *Event) bool {
	if t.room == 0 || e.Kind != KindOpen || e.Verdict == VerdictDeny || e.Errno != 0 || e.Access != "r" {
		return false
	}
	c := &t.crowd
	o := c.of(e, t.maxOpeners())
	o.opens += e.Times()
	c.all += e.Times()
	switch full := t.written + int64(len(t.line.b)); {
	case full <= t.room/8*4:
		return false
	case full <= t.room/8*5 && o.opens < c.all/noisy:
		return false
	}
	if o.folded.Kind == "" {
		c.reserve += crowdRoom
		o.folded = Event{Kind: KindOpen, Phase: e.Phase, Access: e.Access, Text: crowdText}
		if o != &c.other {
			o.folded.Proc = e.Proc
			o.folded.Proc.Tid = 0
		}
	}
	o.folded.Mono = e.Mono
	o.folded.Count += e.Times()
	c.names += e.Times()
	if e.CPUSeq != 0 {
		t.numbers.at(e.CPU).folded++
	}
	return true
}

func (c *crowd) of(e *Event, limit int) *opener {
	key := crowdKey{e.Proc.Start, e.Proc.Pid}
	o := c.procs[key]
	switch {
	case o != nil:
	case len(c.procs) >= limit:
		return &c.other
	default:
		if c.procs == nil {
			c.procs = map[crowdKey]*opener{}
		}
		o = &opener{}
		c.procs[key] = o
	}
	return o
}

// leaveCrowd writes what was counted of a process that has ended.
func (t *Writer) leaveCrowd(p *Proc) {
	key := crowdKey{p.Start, p.Pid}
	if o := t.crowd.procs[key]; o != nil {
		t.tellOpens(o)
		delete(t.crowd.procs, key)
	}
}

// endCrowd writes what was counted of all that are left.
func (t *Writer) endCrowd() {
	for _, o := range t.crowd.procs {
		t.tellOpens(o)
	}
	t.tellOpens(&t.crowd.other)
	t.crowd.procs, t.crowd.other = nil, opener{}
}

// tellOpens writes the count of one process, for which there is room.
func (t *Writer) tellOpens(o *opener) {
	e := &o.folded
	if e.Count == 0 {
		return
	}
	if t.err != nil {
		t.drop(e, "disk", 0)
		return
	}
	t.encode(e)
	t.crowd.reserve -= crowdRoom
	t.counts[e.Kind] += e.Times()
}

// findings says what the crowd cost.
func (c *crowd) findings() []string {
	if c.names == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d opens of files to read are counted and not named (trace.max_bytes)", c.names)}
}
