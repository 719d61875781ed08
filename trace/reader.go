package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// LineError is a line of a record that could not be read. Reading can go on.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// errTooLong marks a line longer than MaxLine; it is skipped.
var errTooLong = errors.New("longer than a record can be")

// Gap is a run of sequence numbers, First to Last, that are missing from a record.
type Gap struct{ First, Last uint64 }

// Judgement is what can be said about a record as a whole.
type Judgement string

// The judgements.
const (
	Complete   Judgement = "complete"
	Degraded   Judgement = "degraded"   // nothing is missing, but the run lacked guarantees, which its start lists
	Incomplete Judgement = "incomplete" // records are missing, and it says where
	Unsealed   Judgement = "unsealed"   // it does not end with its summary, or has no seal: the writer died
	Altered    Judgement = "altered"    // it is not what was sealed: only a Vouched source knows
)

// Vouched is a source of a record that knows how the record compares with its
// seal, which the lines themselves do not tell.
type Vouched interface {
	io.Reader
	// Vouch returns the judgement and, unless it is Complete, the reasons, which
	// must be safe to print. An empty judgement says nothing.
	Vouch() (Judgement, []string)
}

const maxFindings = 100 // of each sort kept in a Report; all are counted

// Report collects what a Reader found. It is final after io.EOF.
type Report struct {
	Records  uint64 // lines that were read
	LastSeq  uint64
	Missing  uint64 // sequence numbers absent
	Gaps     []Gap
	BadLines uint64
	Bad      []*LineError
	Lost     uint64 // records lost according to loss records
	Losses   []Loss
	Torn     bool // the last line has no end
	Summary  bool
	After    uint64   // records after the summary
	Disagree bool     // the summary counts other numbers than were read
	Findings []string // of the summary
	Degraded []string // of the start
	numbers  ledger
	vouched  Judgement // of the source
	against  []string  // why
}

// Judge returns the judgement and every reason against completeness, in plain
// words that are safe to print.
func (r *Report) Judge() (Judgement, []string) {
	var why []string
	say := func(bad bool, format string, a ...any) {
		if bad {
			why = append(why, fmt.Sprintf(format, a...))
		}
	}
	say(!r.Summary, "no summary: the run is live, or agentguard was killed")
	say(r.Torn, "the last line is torn")
	say(r.Lost > 0, "records lost: %d", r.Lost)
	say(r.Missing > 0, "sequence numbers missing: %d", r.Missing)
	say(r.BadLines > 0, "unreadable lines: %d", r.BadLines)
	say(r.After > 0, "records after the summary: %d", r.After)
	say(r.Disagree, "the summary counts other numbers than the record holds")
	for _, f := range r.Findings {
		why = append(why, Line(f))
	}
	if r.Summary {
		why = append(why, r.numbers.findings()...)
	}
	if r.vouched != "" && r.vouched != Complete && r.vouched != Degraded {
		why = append(slices.Clone(r.against), why...)
	}
	switch {
	case r.vouched == Altered:
		return Altered, why
	case !r.Summary || r.vouched == Unsealed:
		return Unsealed, why
	case len(why) > 0 || r.vouched == Incomplete:
		return Incomplete, why
	case len(r.Degraded) > 0 || r.vouched == Degraded:
		for _, d := range r.Degraded {
			why = append(why, Line(d))
		}
		return Degraded, why
	}
	return Complete, nil
}

// Reader reads a record as a stream, in bounded memory, from a source that may
// be hostile, torn or still being written.
type Reader struct {
	in     *bufio.Reader
	d      decoder
	long   []byte // a line that does not fit in the buffer of in
	raw    []byte // the current line without its newline
	n      int
	report Report
}

// NewReader returns a Reader of the record in r.
func NewReader(r io.Reader) *Reader {
	n := &Reader{in: bufio.NewReaderSize(r, 64<<10)}
	n.vouch(r)
	return n
}

func (r *Reader) vouch(src io.Reader) {
	if v, ok := src.(Vouched); ok {
		r.report.vouched, r.report.against = v.Vouch()
	}
}

// Reset makes r read another record, with the memory that it has.
func (r *Reader) Reset(src io.Reader) {
	r.in.Reset(src)
	r.n, r.raw, r.report = 0, nil, Report{}
	r.vouch(src)
}

// Next reads the next record into e, whose slices are valid until the next
// call. It returns io.EOF at the end, a *LineError for a line that cannot be
// read (the caller may go on), and other errors of the source.
func (r *Reader) Next(e *Event) error {
	err := r.readLine()
	if err == nil {
		err = r.d.decode(r.raw, e)
	}
	switch {
	case err == nil:
		r.account(e)
		return nil
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.As(err, new(*sourceError)):
		return err
	}
	bad := &LineError{r.n, err}
	r.report.BadLines++
	if len(r.report.Bad) < maxFindings {
		r.report.Bad = append(r.report.Bad, bad)
	}
	return bad
}

// sourceError is a failure of the source, not of a line.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "trace: read: " + e.err.Error() }

func (e *sourceError) Unwrap() error { return e.err }

// readLine sets r.raw. A last line without a newline is torn: it is reported and
// never returned, because what it would have said is not known.
func (r *Reader) readLine() error {
	r.long = r.long[:0]
	r.n++
	tooLong := false
	for {
		part, err := r.in.ReadSlice('\n')
		if tooLong = tooLong || len(r.long)+len(part) > MaxLine; tooLong {
			r.long = r.long[:0]
		} else if err == bufio.ErrBufferFull || len(r.long) > 0 {
			r.long = append(r.long, part...)
			part = r.long
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF:
			r.report.Torn = r.report.Torn || len(part) > 0 || tooLong
			return io.EOF
		case err != nil:
			return &sourceError{err}
		case tooLong:
			return errTooLong
		}
		r.raw = part[:len(part)-1]
		return nil
	}
}

func (r *Reader) account(e *Event) {
	p := &r.report
	if p.Summary {
		p.After++
	}
	p.Records++
	switch want := p.LastSeq + 1; {
	case e.Seq > want:
		p.Missing += e.Seq - want
		if len(p.Gaps) < maxFindings {
			p.Gaps = append(p.Gaps, Gap{want, e.Seq - 1})
		}
	case e.Seq < want:
		p.Disagree = true
	}
	p.LastSeq = max(p.LastSeq, e.Seq)
	p.numbers.line(e)
	switch e.Kind {
	case KindStart:
		p.Degraded = append(p.Degraded, e.Degraded[:min(len(e.Degraded), maxFindings-len(p.Degraded))]...)
	case KindLoss:
		p.Lost += e.Loss.Count
		if len(p.Losses) < maxFindings {
			p.Losses = append(p.Losses, e.Loss)
		}
	case KindSummary:
		p.Disagree = p.Disagree || e.Records+1 != e.Seq || e.Lost != p.Lost
		p.Findings = append(p.Findings, e.Findings[:min(len(e.Findings), maxFindings-len(p.Findings))]...)
		p.Summary = true
	}
}

// Report returns what was found so far.
func (r *Reader) Report() *Report { return &r.report }

// Raw returns the line of the record that Next read last, without its newline:
// JSON that is safe to print. It is valid until the next call of Next.
func (r *Reader) Raw() []byte { return r.raw }

// Each calls f for each readable record that is left, in order. The event is
// valid until f returns. An error of f, or of the source, ends it.
func (r *Reader) Each(f func(*Event) error) error {
	var e Event
	for {
		switch err := r.Next(&e); {
		case err == nil:
			if err := f(&e); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, new(*LineError)): // in the report
		default:
			return err
		}
	}
}

// Copy writes the readable records of r to w as they are, one a line, and returns
// when r ends.
func Copy(w io.Writer, r *Reader) error {
	out := bufio.NewWriter(w)
	err := r.Each(func(*Event) error {
		out.Write(r.raw)
		if err := out.WriteByte('\n'); err != nil {
			return fmt.Errorf("trace: copy: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// maxSummary bounds the line of a summary that Last looks for.
const maxSummary = 1 << 20

// Last reads only the last record of a record of the given size into e, which
// then is the summary if there is one. It reports whether there is a last record,
// whole and readable. Nothing is said of the records before it, and r is as if it
// had read none.
func (r *Reader) Last(src io.ReaderAt, size int64, e *Event) bool {
	for window := int64(16 << 10); ; window *= 8 {
		n := min(window, size)
		r.long = slices.Grow(r.long[:0], int(n))[:n]
		b := r.long
		if _, err := src.ReadAt(b, size-n); err != nil && !errors.Is(err, io.EOF) || n == 0 || b[n-1] != '\n' {
			return false
		}
		start := bytes.LastIndexByte(b[:n-1], '\n') + 1
		if start == 0 && n < size && window < maxSummary {
			continue
		}
		return r.d.decode(b[start:n-1], e) == nil
	}
}

// First reads only the first record, the start, as [Reader.Last] does the last.
func (r *Reader) First(src io.ReaderAt, size int64, e *Event) bool {
	for window := int64(4 << 10); ; window *= 8 {
		n := min(window, size)
		r.long = slices.Grow(r.long[:0], int(n))[:n]
		if _, err := src.ReadAt(r.long, 0); err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		end := bytes.IndexByte(r.long, '\n')
		if end < 0 && n < size && window < maxSummary {
			continue
		}
		return end >= 0 && r.d.decode(r.long[:end], e) == nil
	}
}
