package supervisor

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
)

// What the kernel is told of a table says the same as the table, name by name and
// address by address, beside its blocks too.
func TestKernelRules(t *testing.T) {
	ports := []netguard.Ports{{Low: 443, High: 443}, {Low: 80, High: 80}, {Low: 8000, High: 8010}}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		var entries []netguard.Entry
		for i := range random.IntN(200) {
			e := netguard.Entry{Proto: []string{"tcp", "udp"}[random.IntN(2)], Host: fmt.Sprintf("n%d.example", random.IntN(100)), Ports: ports[random.IntN(1+round%3)]}
			switch random.IntN(10) {
			case 0:
				e.Host = "*." + e.Host
			case 1:
				e.Host, e.Prefix = "", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32-random.IntN(5)).Masked()
			}
			entries = append(entries, e)
		}
		table, err := netguard.Compile(entries)
		must(t, err)
		rules := kernelRules(table)
		want := map[uint8]map[netip.Prefix][]netguard.Ports{unix.IPPROTO_TCP: {}, unix.IPPROTO_UDP: {}}
		for _, n := range table.Names {
			for _, p := range n.Prefixes() {
				want[unix.IPPROTO_TCP][p], want[unix.IPPROTO_UDP][p] = n.TCP, n.UDP
			}
		}
		for _, n := range table.Nets {
			want[unix.IPPROTO_TCP][n.Prefix], want[unix.IPPROTO_UDP][n.Prefix] = n.TCP, n.UDP
		}
		for proto, list := range want {
			for p := range list {
				for _, a := range []netip.Addr{p.Addr(), last(p), p.Addr().Prev(), last(p).Next()} {
					if got, want := narrowest(rules, proto, a), narrowestOf(list, a); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Fatalf("%d %v: %v, want %v; of %v", proto, a, got, want, rules)
					}
				}
			}
		}
	}
}

// narrowest is what a map of prefixes finds.
func narrowest(rules []bpf.Rule, proto uint8, a netip.Addr) (ports []bpf.PortRange) {
	bits := -1
	for _, r := range rules {
		if r.Proto == proto && r.Prefix.Contains(a) && r.Prefix.Bits() > bits {
			bits, ports = r.Prefix.Bits(), r.Ports
		}
	}
	return ports
}

// narrowestOf is what the table says.
func narrowestOf(list map[netip.Prefix][]netguard.Ports, a netip.Addr) (ports []netguard.Ports) {
	bits := -1
	for p, allowed := range list {
		if p.Contains(a) && p.Bits() > bits && len(allowed) > 0 {
			bits, ports = p.Bits(), allowed
		}
	}
	return ports
}

func last(p netip.Prefix) netip.Addr {
	a := p.Addr()
	for n := a.Next(); p.Contains(n); n = a.Next() {
		a = n
	}
	return a
}

// Ten thousand names are few rules: the kernel takes 7 us for each.
func TestManyNamesAreFewRules(t *testing.T) {
	var entries []netguard.Entry
	for i := range 10_000 {
		port := []uint16{443, 80, 22}[i%3]
		entries = append(entries, netguard.Entry{Proto: "tcp", Host: fmt.Sprintf("name%d.example.com", i), Ports: netguard.Ports{Low: port, High: port}})
	}
	table, err := netguard.Compile(entries)
	must(t, err)
	if n := len(kernelRules(table)); n > 200 {
		t.Errorf("%d rules", n)
	}
}
