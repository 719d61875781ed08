package supervisor

import (
	"net/netip"

	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/trace"
)

// unnamed holds acts on an address that stands for a name which has not been
// told yet: the resolver answers the command and the supervisor at once, and the
// command's connect may come first.
type unnamed []trace.Event

const (
	maxUnnamed  = 256
	nameTimeout = 1e9 // ns; an address that was never given to anybody has no name
)

// awaits reports whether a name for the address of e may still come, and keeps e until then.
func (u *unnamed) awaits(e *trace.Event) bool {
	if len(e.Name) > 0 || !netguard.Synthetic(e.Addr) || len(*u) >= maxUnnamed {
		return false
	}
	*u = append(*u, *e) // has no text of its own
	return true
}

// nameUnnamed writes what was held for the address.
func (r *recorder) nameUnnamed(addr netip.Addr, name []byte) {
	kept := r.unnamed[:0]
	for _, e := range r.unnamed {
		if e.Addr.Unmap() != addr.Unmap() {
			kept = append(kept, e)
			continue
		}
		e.Name = name
		if e.Denied() && e.Kind != trace.KindBind {
			e.Remedy = trace.Remedy(&e)
		}
		r.write(&e)
	}
	r.unnamed = kept
}

// dropUnnamed writes without a name what was held since before a time.
func (r *recorder) dropUnnamed(before uint64) {
	n := 0
	for n < len(r.unnamed) && r.unnamed[n].Mono < before {
		r.write(&r.unnamed[n])
		n++
	}
	r.unnamed = append(r.unnamed[:0], r.unnamed[n:]...)
}
