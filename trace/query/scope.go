package query

import (
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// A record ends with a summary that counts the acts of each kind and those that
// were denied. A query that could hold of none of them need not read the record:
// this file finds out, by asking each part of the expression whether it can be
// true, and whether it can be false, of any record of a kind.

// Skip reports whether no record that ends with this summary can match.
func (q *Query) Skip(sum *trace.Event) bool {
	if sum.Kind != trace.KindSummary || q.may(trace.KindSummary, false) || q.may(trace.KindStart, false) {
		return false
	}
	if len(sum.Counts) == 0 { // not written by this program
		return false
	}
	denials := true // as far as is known
	for _, c := range sum.Counts {
		if c.Name == "denied" {
			denials = c.N > 0
		}
	}
	for _, c := range sum.Counts {
		k, ok := strings.CutPrefix(c.Name, "kind.")
		if ok && (q.may(trace.Kind(k), false) || denials && q.may(trace.Kind(k), true)) {
			return false
		}
	}
	return true
}

func (q *Query) may(k trace.Kind, denied bool) bool {
	yes, _ := q.root.may(&trace.Event{Kind: k, Phase: trace.PhaseCommand, Verdict: verdict(denied)}, &q.value)
	return yes
}

func verdict(denied bool) trace.Verdict {
	if denied {
		return trace.VerdictDeny
	}
	return ""
}

func (n allOf) may(e *trace.Event, v *value) (yes, no bool) {
	yes = true
	for _, m := range n {
		y, f := m.may(e, v)
		yes, no = yes && y, no || f
	}
	return yes, no
}

func (n anyOf) may(e *trace.Event, v *value) (yes, no bool) {
	no = true
	for _, m := range n {
		y, f := m.may(e, v)
		yes, no = yes || y, no && f
	}
	return yes, no
}

func (n inverse) may(e *trace.Event, v *value) (yes, no bool) {
	yes, no = n.of.may(e, v)
	return no, yes
}

func (n present) may(e *trace.Event, v *value) (yes, no bool) { return decide(n, n.field, e, v) }
func (n literal) may(e *trace.Event, v *value) (yes, no bool) { return decide(n, n.field, e, v) }
func (n search) may(e *trace.Event, v *value) (yes, no bool)  { return decide(n, n.field, e, v) }
func (n number) may(*trace.Event, *value) (yes, no bool)      { return true, true }
func (n within) may(*trace.Event, *value) (yes, no bool)      { return true, true }

// decide answers for the fields that the kind and the denial settle; of every
// other field a record may have any value.
func decide(n node, f *field, e *trace.Event, v *value) (yes, no bool) {
	if f.name == "kind" || f.name == "denied" {
		yes = n.match(e, v)
		return yes, !yes
	}
	return true, true
}
