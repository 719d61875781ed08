package supervisor

import (
	"fmt"

	"github.com/agentguard/agentguard/trace"
)

// denials counts refused acts for the result and the summary line: totals are
// exact, details are kept for the first few different ones.
type denials struct {
	total uint64
	first []trace.Event
	keys  map[string]int
}

// maxDenials bounds the different denials that a result shows; the record has all.
const maxDenials = 20

func (d *denials) add(e *trace.Event) {
	d.total += e.Times()
	where := e.Addr.String()
	if len(e.Name) > 0 { // a name has addresses of both families
		where = string(e.Name)
	}
	key := fmt.Sprintf("%s|%s|%s|%s|%d|%s", e.Kind, e.Syscall, e.Layer, where, e.Port, e.Path)
	if i, ok := d.keys[key]; ok {
		d.first[i].Count = d.first[i].Times() + e.Times()
		return
	}
	if len(d.first) >= maxDenials {
		return
	}
	if d.keys == nil {
		d.keys = map[string]int{}
	}
	d.keys[key] = len(d.first)
	keep := *e
	keep.Path = append([]byte(nil), e.Path...)
	keep.To = append([]byte(nil), e.To...)
	keep.Argv = nil
	d.first = append(d.first, keep)
}
