package supervisor

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
)

// kernelRules are what both kernel layers are told: every name by its synthetic
// addresses, every address by itself. Which name an address stands for is nothing
// to them, so neighbours with the same ports are one rule: ten thousand names are
// a few dozen, where the kernel took 0.2 s for one each.
func kernelRules(t *netguard.Table) []bpf.Rule {
	names := make([]*netguard.Name, 0, len(t.Names))
	for i := range t.Names {
		names = append(names, &t.Names[i])
	}
	slices.SortFunc(names, func(a, b *netguard.Name) int { return cmp.Compare(a.First, b.First) })
	var joined [4][]block
	for _, n := range names {
		for family, p := range n.Prefixes() {
			joined[family] = join(joined[family], block{unix.IPPROTO_TCP, p, n.TCP})
			joined[2+family] = join(joined[2+family], block{unix.IPPROTO_UDP, p, n.UDP})
		}
	}
	blocks := slices.Concat(joined[:]...)
	for _, n := range t.Nets {
		blocks = append(blocks, block{unix.IPPROTO_TCP, n.Prefix, n.TCP}, block{unix.IPPROTO_UDP, n.Prefix, n.UDP})
	}
	var out []bpf.Rule
	for _, b := range blocks {
		if len(b.ports) > 0 {
			out = append(out, bpf.Rule{Proto: b.proto, Prefix: b.prefix, Ports: portRanges(b.ports)})
		}
	}
	return out
}

// block is addresses with the same ports.
type block struct {
	proto  uint8
	prefix netip.Prefix
	ports  []netguard.Ports
}

// join appends a block to a list in the order of addresses. Two halves of a wider
// block are that one, and it may be half of one that is wider still.
func join(list []block, b block) []block {
	for n := len(list); n > 0 && slices.Equal(list[n-1].ports, b.ports); n = len(list) {
		first := list[n-1].prefix
		whole := netip.PrefixFrom(first.Addr(), first.Bits()-1).Masked()
		if b.prefix.Bits() != first.Bits() || b.prefix == first || !whole.Contains(b.prefix.Addr()) {
			break
		}
		list, b.prefix = list[:n-1], whole
	}
	return append(list, b)
}

func portRanges(list []netguard.Ports) []bpf.PortRange {
	out := make([]bpf.PortRange, 0, len(list))
	for _, p := range list {
		out = append(out, bpf.PortRange{Low: p.Low, High: p.High})
	}
	return out
}

// allows reports whether the plan lets the command reach an address, so that a
// canary must not expect a refusal there.
func (e *Egress) allows(proto uint8, to netip.AddrPort) bool {
	return e != nil && slices.ContainsFunc(e.rules, func(r bpf.Rule) bool {
		return r.Proto == proto && r.Prefix.Contains(to.Addr()) &&
			slices.ContainsFunc(r.Ports, func(p bpf.PortRange) bool { return p.Low <= to.Port() && to.Port() <= p.High })
	})
}
