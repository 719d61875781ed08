package seal

import (
	"errors"
	"fmt"
	"io"

	"github.com/agentguard/agentguard/trace"
)

// window bounds how many records are compared to say where a record differs,
// from the first block on that does.
const window = 1 << 16

const maxFaults = 20 // places that are told of one record

// mark is the short form of a digest in the block table.
type mark [markSize]byte

// locate says where the record differs from the block table.
func (v *verifier) locate() error {
	before := len(v.report.Faults)
	d, err := v.difference()
	if err != nil {
		return err
	}
	d.walk()
	v.report.Faults = append(v.report.Faults, d.faults...)
	if len(v.report.Faults) == before {
		v.fault(TraceFile, "the file does not match what was signed")
	}
	v.report.Verdict = trace.Altered
	v.report.Verified, v.report.Bytes = d.first, d.offset(0)
	return nil
}

// difference holds the records from the first block on that differs: as they
// were sealed, and as they are.
type difference struct {
	first   int64   // records before
	sealed  []mark  // as the table has them
	found   []mark  // as they are
	at      []int64 // offset of each found, and of the end
	partial bool    // the window ended before the record
	faults  []Fault
}

func (d *difference) offset(i int) int64 { return d.at[min(i, len(d.at)-1)] }

// difference reads both files up to the first block that differs, and then a
// window of each.
func (v *verifier) difference() (*difference, error) {
	blocks, err := v.dir.Open(BlocksFile)
	if err != nil {
		return nil, err
	}
	defer blocks.Close()
	f, err := v.dir.Open(TraceFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, in := newTable(blocks), newLines(f)
	d := &difference{}
	for i := 0; ; i++ {
		r, err := t.next()
		if errors.Is(err, io.EOF) {
			d.at = []int64{in.at}
			break
		}
		if err != nil {
			return nil, err
		}
		if i < len(v.leaves) && v.leaves[i] == r.leaf { // a leaf of the same lines
			if _, err := readBlock(in, r.records); err != nil {
				return nil, err
			}
			d.first += int64(r.records)
			continue
		}
		d.at = []int64{in.at}
		if err := d.readSealed(t, r); err != nil {
			return nil, err
		}
		break
	}
	return d, d.readFound(in)
}

func (d *difference) readSealed(t *table, r row) error {
	for {
		for m := r.marks; len(m) > 0; m = m[markSize:] {
			d.sealed = append(d.sealed, mark(m))
		}
		if len(d.sealed) >= window {
			d.partial = true
			return nil
		}
		var err error
		if r, err = t.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (d *difference) readFound(in *lines) error {
	for len(d.found) < window {
		digest, _, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d.found = append(d.found, mark(digest[:]))
		d.at = append(d.at, in.at)
	}
	d.partial = true
	return nil
}

// say notes a fault at found record f and sealed record s.
func (d *difference) say(f, s int, format string, a ...any) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, Fault{
			File: TraceFile, Line: d.first + int64(f) + 1, Seq: d.first + int64(s) + 1, Offset: d.offset(f), Text: fmt.Sprintf(format, a...),
		})
	}
}

// walk goes through both lists side by side. Where they part, it takes the
// smallest change that brings them together again.
func (d *difference) walk() {
	inSealed, inFound := index(d.sealed), index(d.found)
	moved := map[int]bool{} // found records that were told with their counterpart
	f, s := 0, 0
	for f < len(d.found) && s < len(d.sealed) {
		if d.found[f] == d.sealed[s] || moved[f] {
			f, s = f+1, s+1
			continue
		}
		back, known := inSealed[d.found[f]]
		ahead, still := inFound[d.sealed[s]]
		known, still = known && back > s, still && ahead > f
		switch {
		case known && still && back-s == ahead-f:
			d.say(f, s, "swapped: the record of line %d stands here, and the one that belongs here stands there", d.first+int64(ahead)+1)
			moved[ahead] = true
			f, s = f+1, s+1
		case known && !still:
			d.say(f, s, "removed before this line: %s", records(back-s))
			s = back
		case still && !known:
			d.say(f, s, "added: %s", records(ahead-f))
			f = ahead
		case known && still:
			d.say(f, s, "moved: the record that was number %d stands here", d.first+int64(back)+1)
			f, s = f+1, s+1
		default:
			d.say(f, s, "altered: this is not the record that was sealed as number %d", d.first+int64(s)+1)
			f, s = f+1, s+1
		}
	}
	switch {
	case d.partial:
	case f < len(d.found):
		d.say(f, s, "added at the end: %s", records(len(d.found)-f))
	case s < len(d.sealed):
		d.say(f, s, "cut off from here: %s", records(len(d.sealed)-s))
	}
}

func records(n int) string {
	if n == 1 {
		return "1 record"
	}
	return fmt.Sprintf("%d records", n)
}

func index(list []mark) map[mark]int {
	m := make(map[mark]int, len(list))
	for i, k := range list {
		m[k] = i
	}
	return m
}
