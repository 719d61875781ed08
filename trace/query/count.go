package query

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/agentguard/agentguard/trace"
)

// counter counts acts by the values of fields. Values beyond maxGroups bytes
// are counted together.
type counter struct {
	at     map[string]*tally
	order  []*tally
	key    []byte
	bytes  int
	others uint64
	raw    bool // values are for JSON
	value  value
}

type tally struct {
	values []string // one for each field: quoted, or raw for JSON
	n      uint64
}

const maxGroups = 32 << 20 // bytes of values that are kept

// CheckField reports whether a field can be counted by; the error suggests one.
func CheckField(name string) error {
	if lookup(name) != nil {
		return nil
	}
	hint := suggest(name, fieldNames(), "docs/record.md and trace query --fields list them")
	return fmt.Errorf("no field is called %s; %s", trace.Quote(name), hint)
}

func (c *counter) add(names []string, e *trace.Event) {
	c.key = c.key[:0]
	for _, name := range names {
		c.key = append(c.spell(c.key, lookup(name), e), 0)
	}
	t := c.at[string(c.key)]
	if t == nil {
		if c.bytes += len(c.key); c.bytes > maxGroups {
			c.others += e.Times()
			return
		}
		t = &tally{values: c.values(names, e)}
		if c.at == nil {
			c.at = map[string]*tally{}
		}
		c.at[string(c.key)], c.order = t, append(c.order, t)
	}
	t.n += e.Times()
}

func (c *counter) values(names []string, e *trace.Event) []string {
	var out []string
	for _, name := range names {
		f := lookup(name)
		if c.raw && f.typ == Text && c.value.load(f, e) {
			out = append(out, string(c.value.text))
			continue
		}
		out = append(out, string(c.spell(nil, f, e)))
	}
	return out
}

// spell appends the value of a field as a view shows it: quoted, so that it
// holds no NUL.
func (c *counter) spell(b []byte, f *field, e *trace.Event) []byte {
	v := &c.value
	if !v.load(f, e) {
		return append(b, '-')
	}
	switch f.typ {
	case Text:
		return append(b, trace.Quote(v.text)...)
	case List:
		return append(b, trace.QuoteArgs(v.list, 0)...)
	case Addr:
		return v.addr.AppendTo(b)
	case Bool:
		return append(b, "true"...)
	}
	if v.neg {
		b = append(b, '-')
	}
	return strconv.AppendUint(b, v.num, 10)
}

// write prints the counts, the largest first and equal ones as they came.
func (c *counter) write(w io.Writer, names []string, limit uint64, asJSON bool) {
	slices.SortStableFunc(c.order, func(a, b *tally) int { return cmp.Compare(b.n, a.n) })
	for _, t := range c.order[:min(limit, uint64(len(c.order)))] {
		if asJSON {
			t.writeJSON(w, names)
			continue
		}
		fmt.Fprintf(w, "  %7d", t.n)
		for _, v := range t.values {
			fmt.Fprintf(w, "  %s", v)
		}
		fmt.Fprintln(w)
	}
	rest := c.others
	for _, t := range c.order[min(limit, uint64(len(c.order))):] {
		rest += t.n
	}
	if rest > 0 && !asJSON {
		fmt.Fprintf(w, "  %7d  others\n", rest)
	}
}

// writeJSON writes one count a line: the values as views show them.
func (t *tally) writeJSON(w io.Writer, names []string) {
	b := strconv.AppendUint([]byte(`{"acts":`), t.n, 10)
	for i, name := range names {
		b = append(strconv.AppendQuote(append(b, ','), name), ':')
		b = append(b, trace.QuoteJSON(t.values[i])...)
	}
	w.Write(append(b, '}', '\n'))
}
