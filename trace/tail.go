package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Tail prints the last n records of r, one a line, and then those that come,
// as long as more says so: at the end of r, more waits for some time and reports
// whether to look again. With more nil it stops at the end of r. The first line
// says how the record is judged so far, the last one how it is judged at the
// end, if that is not the same.
func Tail(w io.Writer, r io.Reader, n int, more func() bool) (Judgement, error) {
	return (&tail{out: bufio.NewWriter(w), keep: max(n, 0)}).follow(r, more)
}

// TailJSON is Tail for machines: the records as they are stored, one a line, and
// nothing else.
func TailJSON(w io.Writer, r io.Reader, n int, more func() bool) (Judgement, error) {
	return (&tail{out: bufio.NewWriter(w), keep: max(n, 0), raw: true}).follow(r, more)
}

func (t *tail) follow(r io.Reader, more func() bool) (Judgement, error) {
	if more == nil {
		more = func() bool { return false }
	}
	in := NewReader(&live{r, func() bool {
		t.catchUp(t.in.Report())
		return t.err == nil && !t.in.Report().Summary && more()
	}})
	t.in = in
	err := in.Each(t.add)
	t.catchUp(in.Report())
	if j := t.judge(in.Report()); j != t.said {
		t.say(j)
	}
	judgement, _ := in.Report().Judge()
	return judgement, errors.Join(err, t.out.Flush())
}

// live reads a file that grows: its end is one only when more says so.
type live struct {
	r    io.Reader
	more func() bool
}

// Vouch implements Vouched for a record that does not grow.
func (l *live) Vouch() (Judgement, []string) {
	if v, ok := l.r.(Vouched); ok {
		return v.Vouch()
	}
	return "", nil
}

func (l *live) Read(p []byte) (int, error) {
	for {
		n, err := l.r.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		if !l.more() {
			return l.r.Read(p) // what came while more made up its mind
		}
	}
}

// tail holds back lines until the end of what is there is reached, and from
// then on passes each on.
type tail struct {
	in    *Reader
	out   *bufio.Writer
	begin uint64
	keep  int
	last  []string // ring of the newest lines
	next  int      // place of the oldest one when the ring is full
	raw   bool     // lines as they are stored, and no judgement
	live  bool
	said  string // the judgement that was printed
	err   error
}

func (t *tail) add(e *Event) error {
	if t.begin == 0 {
		t.begin = e.Mono
	}
	switch s := t.line(e); {
	case t.live:
		_, err := t.out.WriteString(s)
		return err
	case len(t.last) < t.keep:
		t.last = append(t.last, s)
	case t.keep > 0:
		t.last[t.next] = s
		t.next = (t.next + 1) % t.keep
	}
	return nil
}

func (t *tail) line(e *Event) string {
	if t.raw {
		return string(t.in.Raw()) + "\n"
	}
	return fmt.Sprintf("  %7d  %s\n", e.Seq, Moment(e, t.begin))
}

func (t *tail) say(judgement string) {
	if !t.raw {
		fmt.Fprintf(t.out, "record    %s\n", judgement)
	}
}

func (t *tail) judge(r *Report) string {
	j, why := r.Judge()
	s := fmt.Sprintf("%s, %d records", j, r.Records)
	for _, line := range why {
		s += "\n          " + line
	}
	return s
}

// catchUp prints what was held back, once, and sends off what waits.
func (t *tail) catchUp(r *Report) {
	if !t.live {
		t.live, t.said = true, t.judge(r)
		t.say(t.said)
		for i := range t.last {
			t.out.WriteString(t.last[(t.next+i)%len(t.last)])
		}
		t.last = nil
	}
	t.err = t.out.Flush()
}
