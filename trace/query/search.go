package query

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// Search asks a query of records, one after another, and prints what matches:
// of each record with a match first its judgement. Its memory is bounded.
type Search struct {
	Query   *Query
	Limit   uint64            // matches that are printed, over all records; 0: all
	JSON    bool              // lines as they are stored, with "run_id" before the other fields
	CountBy []string          // print how many matches there are of each value of these fields instead
	Out     io.Writer         // where matches go
	Warn    func(line string) // called for what JSON has no place for; may be nil

	groups     counter
	in         *trace.Reader
	sum        trace.Event // reused
	out        *bufio.Writer
	runs, read int
	broken     int             // records that are not complete
	worst      trace.Judgement // of all: Degraded where none of them is worse; empty: all are complete
	matches    uint64
	printed    uint64
}

// Record is one record to be searched.
type Record interface {
	io.ReaderAt
	io.ReadSeeker
}

// maxHeld is how much output waits for the judgement of its record. A record
// with more matches is read twice.
const maxHeld = 4 << 20

// Full reports whether Limit is reached, so that more records say nothing new.
func (s *Search) Full() bool {
	return s.Limit > 0 && s.printed >= s.Limit && len(s.CountBy) == 0
}

// Record searches one record of the given id and size in bytes.
func (s *Search) Record(id string, r Record, size int64) error {
	s.open()
	s.runs++
	sum := &s.sum
	if s.in.Last(r, size, sum) && s.Query.Skip(sum) {
		s.judged(s.unread(r, size))
		return nil
	}
	s.read++
	p := &pass{s: s, id: id}
	var held bytes.Buffer
	p.print = func(b []byte) error { held.Write(b); return nil }
	in := s.in
	if err := p.run(r); err != nil {
		return err
	}
	j, _ := in.Report().Judge()
	s.judged(j)
	s.matches += p.matches
	if err := s.head(id, in.Report(), p.matches); err != nil {
		return err
	}
	if !p.overflow {
		s.printed += p.printed
		_, err := s.out.Write(held.Bytes())
		return err
	}
	return s.again(id, r, in.Report().LastSeq)
}

// unread judges a record by its summary, which is in s.sum, and by its start.
func (s *Search) unread(r Record, size int64) trace.Judgement {
	switch {
	case s.sum.Lost > 0 || len(s.sum.Findings) > 0:
		return trace.Incomplete
	case !s.in.First(r, size, &s.sum) || s.sum.Kind != trace.KindStart:
		return trace.Incomplete
	case len(s.sum.Degraded) > 0:
		return trace.Degraded
	}
	return trace.Complete
}

// judged counts a record in.
func (s *Search) judged(j trace.Judgement) {
	switch {
	case j == trace.Complete:
		return
	case j != trace.Degraded:
		s.worst = trace.Incomplete
	case s.worst == "":
		s.worst = trace.Degraded
	}
	s.broken++
}

// open makes what all records share.
func (s *Search) open() {
	if s.out == nil {
		s.in, s.out = trace.NewReader(nil), bufio.NewWriterSize(s.Out, 64<<10)
	}
}

// again prints the matches of a record whose judgement is known.
func (s *Search) again(id string, r Record, last uint64) error {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	p := &pass{s: s, id: id, last: last, recount: true}
	p.print = func(b []byte) error { _, err := s.out.Write(b); return err }
	err := p.run(r)
	s.printed += p.printed
	return err
}

// head says how far the matches of a record can be believed.
func (s *Search) head(id string, r *trace.Report, matches uint64) error {
	j, why := r.Judge()
	if s.JSON && j != trace.Complete && s.Warn != nil {
		s.Warn("the record of " + id + " is " + string(j) + ": " + strings.Join(why, "; "))
	}
	if s.JSON || len(s.CountBy) > 0 || matches == 0 || s.Full() {
		return nil
	}
	_, err := fmt.Fprintf(s.out, "record    %s, %s, %d of %d records\n", j, id, matches, r.Records)
	for _, line := range why {
		fmt.Fprintf(s.out, "          %s\n", line)
	}
	return err
}

// pass is one reading of one record.
type pass struct {
	s        *Search
	id       string
	begin    uint64 // ns; of the first record
	last     uint64 // records after this one are not there for this pass; 0: no end
	recount  bool   // what matches was counted before
	matches  uint64
	printed  uint64
	held     int
	overflow bool
	line     []byte
	print    func([]byte) error
}

func (p *pass) run(r io.Reader) error {
	p.s.in.Reset(r)
	return p.s.in.Each(p.record)
}

func (p *pass) record(e *trace.Event) error {
	s := p.s
	if p.begin == 0 {
		p.begin = e.Mono
	}
	if p.last != 0 && e.Seq > p.last || !s.Query.Match(e) {
		return nil
	}
	p.matches++
	if len(s.CountBy) > 0 {
		s.groups.raw = s.JSON
		s.groups.add(s.CountBy, e)
		return nil
	}
	if p.overflow || s.Limit > 0 && s.printed+p.printed >= s.Limit {
		return nil
	}
	p.line = p.line[:0]
	if s.JSON {
		p.line = fmt.Appendf(p.line, `{"run_id":%q,%s`+"\n", p.id, s.in.Raw()[1:])
	} else {
		p.line = fmt.Appendf(p.line, "  %7d  %s\n", e.Seq, trace.Moment(e, p.begin))
	}
	if p.held += len(p.line); p.held > maxHeld && !p.recount {
		p.overflow = true
		return nil
	}
	p.printed++
	return p.print(p.line)
}

// Close prints what is known only at the end, and returns the judgement of all
// records together: Complete when each of them is, Degraded when none is worse than
// that, else Incomplete.
func (s *Search) Close() (trace.Judgement, error) {
	s.open()
	j := cmp.Or(s.worst, trace.Complete)
	switch {
	case len(s.CountBy) > 0:
		s.count(j)
	case !s.JSON && (s.runs != 1 || s.matches == 0):
		s.foot(j)
	}
	return j, s.out.Flush()
}

func (s *Search) foot(j trace.Judgement) {
	fmt.Fprintf(s.out, "record    %s, %s", j, plural(uint64(s.runs), "run", "runs"))
	if s.broken > 0 {
		fmt.Fprintf(s.out, ", %d of them not complete", s.broken)
	}
	fmt.Fprintf(s.out, ", %s", plural(s.matches, "match", "matches"))
	if s.read < s.runs {
		fmt.Fprintf(s.out, "; the counts in their summaries rule out %d", s.runs-s.read)
	}
	fmt.Fprintln(s.out)
}

func plural(n uint64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func (s *Search) count(j trace.Judgement) {
	if !s.JSON {
		s.foot(j)
	}
	limit := uint64(math.MaxUint64)
	if s.Limit > 0 {
		limit = s.Limit
	}
	s.groups.write(s.out, s.CountBy, limit, s.JSON)
}
