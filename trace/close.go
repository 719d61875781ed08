package trace

import (
	"bytes"
	"io"
	"slices"
)

// Judge returns what Reader.Report would say about the record that Close wrote;
// before Close it is Unsealed.
func (t *Writer) Judge() (Judgement, []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (&Report{Summary: t.sealed, Lost: t.lost(), Findings: t.findings, Degraded: t.degraded, numbers: t.numbers}).Judge()
}

// Close ends the record: loss records for what this Writer could not keep, then
// sum as the summary (nil for an empty one), completed with the number of
// records, of losses, and the records of each kind ("kind.exec"). What was
// written is left in sum. It returns the first error that the record met; the
// destination stays open.
func (t *Writer) Close(sum *Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	t.endCrowd()
	t.flush()
	t.closed = true
	if sum == nil {
		sum = &Event{Mono: t.o.Mono}
	}
	err := t.finish(sum)
	if err != nil && t.giveUp() {
		err = t.finish(sum)
	}
	if err == nil && t.o.Durable {
		err = t.sync()
	}
	if !t.sealed {
		sum.Kind, sum.Records, sum.Lost = KindSummary, t.seq, t.lost()
	}
	if t.err != nil {
		return t.err
	}
	return err
}

// finish writes the end of the record, whole or not at all.
func (t *Writer) finish(sum *Event) error {
	start, lost := t.seq, t.lost()
	end := *sum
	for _, l := range t.losses {
		t.encode(&Event{Kind: KindLoss, Mono: sum.Mono, Loss: l})
	}
	end.Kind, end.Records, end.Lost = KindSummary, t.seq, lost
	end.Findings = slices.Concat(sum.Findings, t.crowd.findings())
	end.Counts = append(slices.Concat(sum.Counts, t.numbers.counts()), t.kindCounts()...)
	t.encode(&end)
	n, err := t.w.Write(t.line.b)
	if err == nil && n < len(t.line.b) {
		err = io.ErrShortWrite
	}
	lines := t.line.b
	t.line.b = t.line.b[:0]
	if err == nil {
		t.settle(t.tail)
		t.settle(lines)
		t.tail = nil
		*sum, t.sealed, t.findings = end, true, end.Findings
		t.numbers.line(&end)
		return nil
	}
	t.seq = start
	if !t.truncate() {
		t.line.b = append(t.line.b, '\n')
	}
	return t.fail(err)
}

// giveUp takes the last records back to make room, and reports whether it could.
func (t *Writer) giveUp() bool {
	if len(t.tail) > 0 && t.tail[0] == '\n' { // it ends a torn line, and stays
		t.settle(t.tail[:1])
		t.tail = t.tail[1:]
	}
	size := int64(len(t.tail))
	if t.written -= size; size == 0 || !t.truncate() {
		t.written += size
		return false
	}
	t.seq -= records(t.tail)
	for i := range t.losses { // nothing can be missing after a record that is not there
		t.losses[i].AfterSeq = min(t.losses[i].AfterSeq, t.seq)
	}
	t.forget(t.tail)
	t.tail = nil
	return true
}

func (t *Writer) sync() error {
	f, ok := t.w.(interface{ Sync() error })
	if !ok {
		return nil
	}
	if err := f.Sync(); err != nil {
		return t.fail(err)
	}
	return nil
}

// truncate cuts the destination to the records that reached it.
func (t *Writer) truncate() bool {
	f, ok := t.w.(interface{ Truncate(int64) error })
	return ok && f.Truncate(t.written) == nil
}

// kindCounts returns the counters of the record in the order of the schema's
// kinds, so that equal runs make equal summaries.
func (t *Writer) kindCounts() []Count {
	var c []Count
	for _, k := range kinds {
		n := t.counts[k]
		if k == KindLoss {
			n += uint64(len(t.losses))
		}
		if n > 0 {
			c = append(c, Count{"kind." + string(k), n})
		}
	}
	return c
}

// reached accounts for whole records that were written. The last ones are kept
// in tail: Close may take them back.
func (t *Writer) reached(records []byte) {
	t.written += int64(len(records))
	t.tail = append(t.tail, records...)
	if over := len(t.tail) - tailKept; over > 0 {
		n := over + bytes.IndexByte(t.tail[over-1:], '\n')
		t.settle(t.tail[:n])
		t.tail = append(t.tail[:0], t.tail[n:]...)
	}
}

// records counts whole records. An empty line is only the end of a torn one.
func records(lines []byte) (n uint64) {
	for line := range bytes.Lines(lines) {
		if len(line) > 1 {
			n++
		}
	}
	return n
}

func (t *Writer) settle(lines []byte) {
	if t.o.Settled != nil && len(lines) > 0 {
		t.o.Settled(lines)
	}
}

// cutBack accounts for a write that stopped after n bytes: what follows the last
// whole record is cut off, and its records are lost.
func (t *Writer) cutBack(n int) {
	whole := bytes.LastIndexByte(t.line.b[:n], '\n') + 1
	t.durable += records(t.line.b[:whole])
	t.reached(t.line.b[:whole])
	t.seq = t.durable
	t.forget(t.line.b[whole:])
	t.line.b = t.line.b[:0]
	if n > whole && !t.truncate() {
		t.line.b = append(t.line.b, '\n') // ends the torn line, if anything can be written again
	}
}

// forget takes records that were accepted, but never reached the destination,
// out of the counters again.
func (t *Writer) forget(lines []byte) {
	var d decoder
	var e Event
	for line := range bytes.Lines(lines) {
		if err := d.decode(bytes.TrimSuffix(line, []byte{'\n'}), &e); err != nil {
			continue // the newline that ends a torn line
		}
		if e.Kind == KindLoss {
			t.reported -= e.Loss.Count
		}
		t.counts[e.Kind] -= e.Times()
		t.numbers.forget(&e)
		t.drop(&e, "disk", len(line))
	}
}
