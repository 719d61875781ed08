package supervisor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/reexec"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// Egress is the part of a plan that says what a run may reach besides its own
// loopback. It is nil where that is nothing, and then none of it exists.
type Egress struct {
	Table          *netguard.Table       `json:"table"`                   // what is allowed, by name and by address
	Resolve        map[string]netip.Addr `json:"resolve,omitempty"`       // names that are pinned
	PrivateNames   []string              `json:"private_names,omitempty"` // that may lead to private addresses
	PrivateNets    []netip.Prefix        `json:"private_nets,omitempty"`  // that any allowed name may lead to
	Proxy          *EgressProxy          `json:"proxy,omitempty"`         // nil: none
	Brokers        []Broker              `json:"brokers,omitempty"`       // APIs that the command may call
	Publish        []uint16              `json:"publish,omitempty"`       // ports of the host's loopback
	PerAddress     bool                  `json:"per_address,omitempty"`   // a listener for each address and port: no look-up program
	MaxConnections int64                 `json:"max_connections"`         // at once
	MaxBytes       int64                 `json:"max_egress_bytes"`        // -1: none
	User           int                   `json:"user"`                    // of the process that dials
	ClauseSource   string                `json:"clause_source"`           // of the allowlist, for denials

	rules []bpf.Rule // of Table
}

// wantsEgress reports whether a policy lets anything in or out.
func wantsEgress(p *policy.Policy) bool {
	return p.Egress.Value == "allowlist" && len(p.Allow) > 0 || len(p.Publish) > 0 || len(p.Broker) > 0
}

// reservedFiles are descriptors of the dialling process besides connections:
// its listeners, its pipes (two ends each), and room.
const reservedFiles = 512

// newEgress decides what of a policy's network the run gets.
func newEgress(in *planInput) (*Egress, error) {
	p, h, c := in.policy, in.host, in.caller
	if !wantsEgress(p) {
		return nil, nil
	}
	e := &Egress{MaxConnections: limit(p.MaxConnections), MaxBytes: limit(p.MaxEgressBytes), User: dialIdentity(c).UID, Brokers: in.brokers}
	if err := checkBrokerNames(p); err != nil {
		return nil, err
	}
	entries := brokerEntries(e.Brokers)
	if p.Egress.Value == "allowlist" {
		entries = append(entries, endpointEntries(p.Allow)...)
		e.ClauseSource = p.Egress.Source.String()
	}
	var err error
	if len(entries) > 0 {
		if e.Proxy, err = newEgressProxy(p, in.environ); err != nil {
			return nil, err
		}
	}
	if e.Table, err = netguard.Compile(entries); err != nil {
		return nil, &Refusal{What: "the allowlist: " + err.Error(), Clause: "network.allowlist", Remedy: "allow less, or ranges of ports"}
	}
	e.rules = kernelRules(e.Table)
	if e.PerAddress = !h.Info.BPF || slices.Contains(seams(), "lookup"); e.PerAddress {
		if err = e.Table.Endpoints(); err != nil {
			return nil, &Refusal{
				What: "the allowlist without BPF, where every address and port has a socket: " + err.Error(), Clause: "network.allowlist",
				Remedy: perAddressRemedy(h),
			}
		}
	}
	for _, r := range p.Resolve {
		if e.Resolve == nil {
			e.Resolve = map[string]netip.Addr{}
		}
		e.Resolve[r.Name] = netip.MustParseAddr(r.Addr) // the policy has parsed it
	}
	for _, t := range p.AllowPrivate {
		if prefix, err := netip.ParsePrefix(t.Value); err == nil {
			e.PrivateNets = append(e.PrivateNets, prefix)
		} else {
			e.PrivateNames = append(e.PrivateNames, t.Value)
		}
	}
	if len(p.Publish) > 0 && h.Info.Mode == ModeUserNS && c.UID == h.overflowUID {
		return nil, &Refusal{
			What: "who connects to a published port cannot be told: in a user namespace all other users are shown as this one", Clause: "network.publish",
			Remedy: "run as a user that is not the overflow user of this host, or " + helperRemedy,
		}
	}
	for _, port := range p.Publish {
		if e.allows(unix.IPPROTO_TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port.N))) {
			return nil, &Refusal{
				What:   fmt.Sprintf("127.0.0.1:%d of the allowlist leads out to the port that network.publish leads in from there: one connection would go round for ever", port.N),
				Clause: "network.publish", Remedy: "publish another port, or allow another",
			}
		}
		e.Publish = append(e.Publish, uint16(port.N))
	}
	most := int64(1 << 14)
	if h.Info.MaxOpenFiles > 0 { // two descriptors each
		most = max(64, (h.Info.MaxOpenFiles-reservedFiles)/2)
	}
	if e.MaxConnections < 0 || e.MaxConnections > most {
		e.MaxConnections = most
	}
	return e, nil
}

func endpointEntries(list []policy.Endpoint) []netguard.Entry {
	entries := make([]netguard.Entry, 0, len(list))
	for _, a := range list {
		entry := netguard.Entry{Proto: a.Proto, Host: a.Host, Ports: netguard.Ports{Low: a.Port, High: a.PortEnd}}
		if a.Prefix != "" {
			entry.Prefix = netip.MustParsePrefix(a.Prefix) // the policy has parsed it
		}
		entries = append(entries, entry)
	}
	return entries
}

// perAddressRemedy is what makes a longer allowlist possible: a look-up program.
func perAddressRemedy(h *Host) string {
	if h.Info.Mode == ModeUserNS {
		return "allow less, or " + helperRemedy
	}
	return "allow less, or run on a kernel with BPF as root"
}

// limit is the value of a limit that the dialling process has met.
func (e *Egress) limit(name string) int64 {
	if name == netguard.LimitBytes {
		return e.MaxBytes
	}
	return e.MaxConnections
}

// dialIdentity is who dials for a run: its caller, with the caller's authority
// on the network and no more. For root it is a uid that owns nothing.
func dialIdentity(c Caller) reexec.Identity {
	if c.UID == 0 {
		return reexec.Identity{UID: dialUID, GID: dialUID}
	}
	return reexec.Identity{UID: c.UID, GID: c.GID, Groups: c.Groups}
}

// dialConfig is what the dialling process is told.
func (e *Egress) dialConfig(c Caller, v6 bool, filter []byte) *netguard.Config {
	var proxy *netguard.Proxy
	if e.Proxy != nil {
		proxy = &e.Proxy.proxy
	}
	return &netguard.Config{
		Proxy: proxy, Brokers: upstreams(e.Brokers), Table: *e.Table, Resolve: e.Resolve, PrivateNames: e.PrivateNames, PrivateNets: e.PrivateNets, IPv6: v6,
		PerAddress: e.PerAddress, MaxConnections: e.MaxConnections, MaxBytes: e.MaxBytes, Publish: e.Publish, CallerUID: c.UID, Seccomp: filter,
	}
}

// rows are the plan's text about it.
func (e *Egress) rows(row func(name, format string, a ...any)) {
	if e == nil {
		return
	}
	for i := range e.Table.Names {
		n := &e.Table.Names[i]
		if n.Broker {
			continue
		}
		row("egress", "%s %s(inside: %s)", trace.Quote(n.Name), portText(n.TCP, n.UDP), n.Prefixes()[0])
	}
	for _, n := range e.Table.Nets {
		row("egress", "%s %s", n.Prefix, portText(n.TCP, n.UDP))
	}
	brokerRows(e.Brokers, row)
	for name, addr := range e.Resolve {
		row("", "%s is %s", trace.Quote(name), addr)
	}
	if e.Proxy != nil {
		row("", "tcp by way of the proxy %s (%s), but for %s", trace.Quote(e.Proxy.Address), e.Proxy.Variable, trace.Quote(cmp.Or(e.Proxy.NoProxy, "nothing")))
	}
	for _, port := range e.Publish {
		row("publish", "127.0.0.1:%d of the host leads to the same port inside", port)
	}
	if e.PerAddress {
		row("", "a listener for each address and port: servers of the command's own cannot have those, nor such a port at 0.0.0.0 or [::]; %d names below a wildcard", netguard.FewNames)
	}
	row("", "dialled by user %d; at most %d connections at once", e.User, e.MaxConnections)
}

// portText lists ports as "tcp 443 8000-8010 udp 123 ".
func portText(tcp, udp []netguard.Ports) string {
	var b strings.Builder
	for _, l := range []struct {
		proto string
		list  []netguard.Ports
	}{{"tcp", tcp}, {"udp", udp}} {
		if len(l.list) > 0 {
			b.WriteString(l.proto + " ")
		}
		for _, p := range l.list {
			b.WriteString(strconv.Itoa(int(p.Low)))
			if p.High != p.Low {
				b.WriteString("-" + strconv.Itoa(int(p.High)))
			}
			b.WriteByte(' ')
		}
	}
	return b.String()
}
