package suggest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// Egress is what is read of a plan's network: where its names were to lead.
type Egress struct {
	Resolve      map[string]netip.Addr `json:"resolve"`
	PrivateNames []string              `json:"private_names"`
	PrivateNets  []netip.Prefix        `json:"private_nets"`
}

// relayed notes a connection that the run's network process made, or passed in: it alone
// knows the address behind a name, and which loopback is the host's.
func (n *Needs) relayed(p *Plan, e *trace.Event) {
	switch {
	case e.Errno != 0 || e.Rule == "network.broker" || !e.Addr.IsValid() || len(n.hosts)+len(n.publish) >= maxPaths:
		return
	case strings.HasPrefix(e.Text, "network.publish"):
		n.publish[fmt.Sprint(e.Port)] = true
		return
	}
	n.hosts[endpoint(e)] = true
	name := strings.TrimSuffix(string(e.Name), ".")
	if name == "" {
		return
	}
	if addr, ok := p.Egress.Resolve[name]; ok {
		n.resolve[name] = addr.String()
	}
	for _, private := range p.Egress.PrivateNames {
		if domain, wild := strings.CutPrefix(private, "*"); private == name || wild && strings.HasSuffix(name, domain) {
			n.private[private] = true
		}
	}
	for _, private := range p.Egress.PrivateNets {
		switch {
		case !private.Contains(e.Addr.Unmap()):
		case private.IsSingleIP():
			n.private[private.Addr().String()] = true
		default:
			n.private[private.String()] = true
		}
	}
}

// brokerDomain is what the names of brokers end with inside.
const brokerDomain = ".broker.internal"

func brokerName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && strings.Trim(s, "-") == s
}

// endpoint is an entry of the allowlist for a peer, by name where there is one.
func endpoint(e *trace.Event) string {
	host := string(e.Name)
	if host == "" {
		host = netip.AddrPortFrom(e.Addr.Unmap().WithZone(""), e.Port).String()
	} else {
		host = fmt.Sprintf("%s:%d", strings.TrimSuffix(host, "."), e.Port)
	}
	if e.Proto == "udp" {
		return "udp://" + host
	}
	return host
}

// start notes what a run had of files whose record tells of none: which of it was used
// is not known.
func (n *Needs) start(p *Plan, e *trace.Event) {
	if e.Tier != "notify" && e.Tier != "none" {
		return
	}
	n.untold = true
	for i := range p.View {
		in := &p.View[i]
		switch {
		case in.granted() && in.mode() == "ro":
			n.used(in, "r")
		case in.granted():
			n.used(in, "w")
		case in.Cache != "":
			n.caches[in.Cache] = true
		case in.toolchain() && !strings.HasSuffix(in.Clause, " (default)"):
			n.tools[in.From] = true
		}
	}
}
