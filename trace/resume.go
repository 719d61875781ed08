package trace

import (
	"errors"
	"io"
)

// ResumeWriter goes on with a record whose writer died. It reads what is there
// from r, and appends to w, the same file: first a newline, if the last line has
// none, which makes that line one that cannot be read. The report says what was
// there; when that has a summary, nothing is to be added.
func ResumeWriter(w io.Writer, r io.Reader, o Options) (*Writer, *Report, error) {
	t := NewWriter(w, o)
	there := &measured{r: r}
	in := NewReader(there)
	var e Event
	for {
		err := in.Next(&e)
		switch {
		case err == nil:
			t.counts[e.Kind] += e.Times()
			t.numbers.line(&e)
			if e.Kind == KindLoss {
				t.reported += e.Loss.Count
				t.told = addLoss(t.told, e.Loss)
			}
			continue
		case errors.As(err, new(*LineError)):
			continue
		case !errors.Is(err, io.EOF):
			return nil, nil, err
		}
		break
	}
	report := in.Report()
	t.seq, t.durable = report.LastSeq, report.LastSeq
	t.written = there.n // what is there is not cut off when nothing can be added
	if report.Torn {
		t.line.b = append(t.line.b, '\n')
	}
	return t, report, nil
}

// measured counts what is read.
type measured struct {
	r io.Reader
	n int64
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n += int64(n)
	return n, err
}
