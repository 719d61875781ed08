package supervisor

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// destinations adds up what went where.
type destinations struct {
	by     map[destinationKey]*runs.Destination
	limits map[string]int64 // refusals by limit
}

type destinationKey struct {
	proto, host string
	port        uint16
}

// maxDestinations bounds those that are told apart; the others are one.
const maxDestinations = 256

func (d *destinations) add(e *netguard.Event) {
	d.met(e.Limit)
	if e.Kind != netguard.KindConnect {
		return
	}
	one := d.at(destinationKey{e.Proto, hostOf(e), e.Asked.Port()})
	one.Connections++
	one.Sent += e.Sent
	one.Received += e.Received
	switch e.End {
	case netguard.EndFailed, netguard.EndRefused:
		one.Failed++
		one.Error = e.Text
	case netguard.EndLimit:
		d.met(netguard.LimitBytes)
	}
}

// met counts a limit that was met; what is no name of one is not counted.
func (d *destinations) met(limit string) {
	if limit != netguard.LimitBytes && limit != netguard.LimitConnections {
		return
	}
	if d.limits == nil {
		d.limits = map[string]int64{}
	}
	d.limits[limit]++
}

func (d *destinations) at(key destinationKey) *runs.Destination {
	if d.by == nil {
		d.by = map[destinationKey]*runs.Destination{}
	}
	if d.by[key] == nil && len(d.by) >= maxDestinations {
		key = destinationKey{host: "others"}
	}
	if d.by[key] == nil {
		d.by[key] = &runs.Destination{Host: key.host, Port: key.port, Proto: key.proto}
	}
	return d.by[key]
}

// hostOf is the name of a destination, or its address where it has none.
func hostOf(e *netguard.Event) string {
	if e.Published {
		return "published"
	}
	if len(e.Name) > 0 {
		return string(e.Name)
	}
	return e.Asked.Addr().String()
}

// list is in the order of bytes sent.
func (d *destinations) list() []runs.Destination {
	var out []runs.Destination
	for _, one := range d.by {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b runs.Destination) int {
		return cmp.Or(cmp.Compare(b.Sent, a.Sent), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}

// counts are the bytes by destination, for the summary.
func (d *destinations) counts() []trace.Count {
	var out []trace.Count
	for _, one := range d.list() {
		at := one.Proto + "." + one.Host + ":" + strconv.Itoa(int(one.Port))
		out = append(out, trace.Count{Name: "sent." + at, N: one.Sent}, trace.Count{Name: "received." + at, N: one.Received})
	}
	return out
}

// network writes an event of the dialling process into the record.
func (r *recorder) network(n *netguard.Event, plan *Egress) {
	e := trace.Event{
		Phase: trace.PhaseCommand, Mono: n.Mono, Name: n.Name, Count: n.Count, Proto: n.Proto,
		Bytes: n.Sent, Received: n.Received, Duration: uint64(max(n.Duration, 0)), End: n.End, Errno: int32(n.Errno), Text: n.Text,
		Verdict: trace.VerdictAllow,
	}
	switch n.Kind {
	case netguard.KindDNS:
		e.Kind, e.Addr = trace.KindDNS, n.Asked.Addr()
	case netguard.KindConnect, netguard.KindDeny:
		e.Kind, e.Addr, e.Port = trace.KindConnect, n.Addr.Addr(), n.Asked.Port()
		if !e.Addr.IsValid() && (len(n.Name) == 0 || n.Denied) {
			e.Addr = n.Asked.Addr()
		}
	default:
		return
	}
	if n.Via && plan.Proxy != nil {
		e.Text = "through the proxy " + plan.Proxy.Address
		if n.Text != "" {
			e.Text += ": " + n.Text
		}
	}
	if n.Broker != "" {
		e.Rule = "network.broker" // it is the broker's, and not of the allowlist
		e.Text = cmp.Or(n.Text, "for the broker "+n.Broker)
	}
	if n.Published {
		e.Text = "network.publish: from outside, to the published port"
	}
	if n.Denied {
		r.refused(&e, n, plan)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A question about another type has no address: sockets that have none either are not that name's.
	if n.Kind == netguard.KindDNS && !n.Denied && n.Asked.Addr().IsValid() && len(r.names) < 2*maxGivenNames {
		if r.names == nil {
			r.names = map[netip.Addr][]byte{}
		}
		r.names[n.Asked.Addr()] = n.Name
	}
	r.write(&e)
	if e.Kind == trace.KindDNS && e.Verdict == trace.VerdictAllow && e.Addr.IsValid() {
		r.nameUnnamed(e.Addr, e.Name)
	}
}

// maxGivenNames is how many names have addresses at most, of one family.
const maxGivenNames = 1 << 17

// refused says by which clause the resolver or the relay refused something.
func (r *recorder) refused(e *trace.Event, n *netguard.Event, plan *Egress) {
	e.Verdict, e.Layer, e.Certainty = trace.VerdictDeny, trace.LayerNetwork, trace.Certain
	e.Rule, e.RuleSource = "network.allowlist", plan.ClauseSource
	switch {
	case n.Limit != "":
		e.Layer, e.Rule = trace.LayerLimit, "network."+n.Limit
	case n.Broker != "":
		e.Rule = "network.broker"
	case n.End == netguard.EndRefused && len(n.Name) > 0: // a special address in a wide range is allowed by itself
		e.Rule = "network.allow_private"
	case n.Kind == netguard.KindDeny && n.Published:
		e.Rule = "network.publish"
	default:
		e.Remedy = trace.Remedy(e)
	}
}
