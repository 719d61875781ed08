package query

import (
	"bytes"
	"cmp"
	"net/netip"
	"regexp"
	"slices"

	"github.com/agentguard/agentguard/trace"
)

// node is one part of an expression. v is room for the value of a field.
type node interface {
	match(e *trace.Event, v *value) bool
	// may says whether the node can be true, and whether it can be false, of a
	// record of the same kind that is denied or not as e is.
	may(e *trace.Event, v *value) (yes, no bool)
}

type (
	allOf   []node
	anyOf   []node
	inverse struct{ of node }
	present struct{ field *field }

	// literal compares a text with another, byte by byte.
	literal struct {
		field *field
		op    string
		want  []byte
	}
	// search looks for a regular expression in a text.
	search struct {
		field  *field
		re     *regexp.Regexp
		absent bool
	}
	// number compares numbers of up to 64 bits and a sign.
	number struct {
		field *field
		op    string
		neg   bool
		num   uint64
	}
	// within looks for an address in a prefix.
	within struct {
		field   *field
		prefix  netip.Prefix
		outside bool
	}
)

func (n allOf) match(e *trace.Event, v *value) bool {
	for _, m := range n {
		if !m.match(e, v) {
			return false
		}
	}
	return true
}

func (n anyOf) match(e *trace.Event, v *value) bool {
	for _, m := range n {
		if m.match(e, v) {
			return true
		}
	}
	return false
}

func (n inverse) match(e *trace.Event, v *value) bool { return !n.of.match(e, v) }

func (n present) match(e *trace.Event, v *value) bool { return v.load(n.field, e) }

// load sets v to the field of a record and reports whether it is there.
func (v *value) load(f *field, e *trace.Event) bool {
	v.there, v.neg = false, false
	f.get(e, v)
	return v.there
}

// some reports whether the test holds of the text, or of one text of a list.
func (v *value) some(f *field, holds func([]byte) bool) bool {
	if f.typ == List {
		return slices.ContainsFunc(v.list, holds)
	}
	return holds(v.text)
}

func (n literal) match(e *trace.Event, v *value) bool {
	if !v.load(n.field, e) {
		return false
	}
	if n.op == "!=" {
		return !v.some(n.field, func(s []byte) bool { return bytes.Equal(s, n.want) })
	}
	return v.some(n.field, func(s []byte) bool { return holds(n.op, bytes.Compare(s, n.want)) })
}

func (n search) match(e *trace.Event, v *value) bool {
	return v.load(n.field, e) && v.some(n.field, n.re.Match) != n.absent
}

func (n number) match(e *trace.Event, v *value) bool {
	return v.load(n.field, e) && holds(n.op, compare(v.neg, v.num, n.neg, n.num))
}

// compare orders numbers that are given by sign and size.
func compare(aNeg bool, a uint64, bNeg bool, b uint64) int {
	switch {
	case a == 0 && b == 0:
		return 0
	case aNeg && bNeg:
		return cmp.Compare(b, a)
	case aNeg:
		return -1
	case bNeg:
		return 1
	}
	return cmp.Compare(a, b)
}

func holds(op string, order int) bool {
	switch op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	case "!=":
		return order != 0
	}
	return order == 0 // = and ==, in
}

func (n within) match(e *trace.Event, v *value) bool {
	return v.load(n.field, e) && n.prefix.Contains(v.addr.Unmap().WithZone("")) != n.outside
}
