package netguard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Entry is one allowed destination, as a policy has it.
type Entry struct {
	Proto  string       // "tcp" or "udp"
	Host   string       // a lower-case ASCII name, or "*." and a name; "" where Prefix is set
	Prefix netip.Prefix // an address or a range
	Ports  Ports
	Broker bool // Host is no destination: a [Broker] serves it
}

// Ports is a range of ports, both ends included.
type Ports struct {
	Low  uint16 `json:"low"`
	High uint16 `json:"high"`
}

// Table is an allowlist made ready: every destination once, with the union of
// what its entries allow, and with the synthetic addresses that stand for it.
// It is a pure function of the entries, so that it can be printed, and loaded
// into the kernel, before anything runs.
type Table struct {
	Names []Name `json:"names,omitempty"`
	Nets  []Net  `json:"nets,omitempty"`
}

// Name is an allowed name and the block of synthetic addresses that is its own:
// one address, or for a wildcard one for each name below it that is asked for.
type Name struct {
	Name  string  `json:"name"`  // lower case, without the root dot; a wildcard is "*." and its domain
	First uint32  `json:"first"` // index of the first address of the block
	Bits  uint8   `json:"bits"`  // the block has 1<<Bits addresses
	TCP   []Ports `json:"tcp,omitempty"`
	UDP   []Ports `json:"udp,omitempty"`

	Broker bool `json:"broker,omitempty"` // it is no destination
}

// Net is an allowed address or range. The ports of a range hold for every
// narrower one inside it, so that the narrowest match says everything.
type Net struct {
	Prefix netip.Prefix `json:"prefix"`
	TCP    []Ports      `json:"tcp,omitempty"`
	UDP    []Ports      `json:"udp,omitempty"`
}

// Bounds of a table. Indexes are those of synthetic addresses: one half of the
// range is for exact names, the other is shared out among the wildcards.
const (
	firstName    = 16      // below: the address of the namespace itself, and room
	firstWild    = 1 << 16 // of 1<<17
	maxNames     = firstWild - firstName
	maxWildcards = 1024 // each has 64 names or more
	maxNets      = 1 << 16

	// MaxRanges bounds the port ranges of one destination and protocol.
	MaxRanges = 16
)

// Compile makes the table of the entries. "localhost" stands for the host's
// loopback addresses: it is no name that a resolver is asked for.
func Compile(entries []Entry) (*Table, error) {
	c := compiler{names: map[string]*Name{}, nets: map[netip.Prefix]*Net{}}
	for _, e := range entries {
		c.add(e)
	}
	t := &Table{Names: c.allNames(), Nets: c.allNets()}
	if err := t.number(); err != nil {
		return nil, err
	}
	return t, t.check()
}

type compiler struct {
	names map[string]*Name
	nets  map[netip.Prefix]*Net
}

func (c *compiler) add(e Entry) {
	if e.Host == "localhost" {
		for _, p := range []string{"127.0.0.1/32", "::1/128"} {
			c.add(Entry{Proto: e.Proto, Prefix: netip.MustParsePrefix(p), Ports: e.Ports})
		}
		return
	}
	tcp, udp := c.place(e)
	if e.Proto == "udp" {
		*udp = append(*udp, e.Ports)
	} else {
		*tcp = append(*tcp, e.Ports)
	}
}

// place returns where the ports of the entry's destination are kept.
func (c *compiler) place(e Entry) (tcp, udp *[]Ports) {
	if e.Host != "" {
		n := c.names[e.Host]
		if n == nil {
			n = &Name{Name: e.Host, Broker: e.Broker}
			c.names[e.Host] = n
		}
		return &n.TCP, &n.UDP
	}
	n := c.nets[e.Prefix]
	if n == nil {
		n = &Net{Prefix: e.Prefix}
		c.nets[e.Prefix] = n
	}
	return &n.TCP, &n.UDP
}

// allNames gives each name the ports of the wildcards above it as well.
func (c *compiler) allNames() []Name {
	var out []Name
	for _, n := range c.names {
		all := *n
		for above := range wildcardsOf(n.Name) {
			if w := c.names[above]; w != nil && w != n && !n.Broker {
				all.TCP, all.UDP = slices.Concat(all.TCP, w.TCP), slices.Concat(all.UDP, w.UDP)
			}
		}
		all.TCP, all.UDP = union(all.TCP), union(all.UDP)
		out = append(out, all)
	}
	slices.SortFunc(out, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// allNets gives each range the ports of the wider ones around it as well.
func (c *compiler) allNets() []Net {
	var out []Net
	for p, n := range c.nets {
		all := Net{Prefix: p, TCP: n.TCP, UDP: n.UDP}
		for bits := range p.Bits() {
			if w := c.nets[netip.PrefixFrom(p.Addr(), bits).Masked()]; w != nil {
				all.TCP, all.UDP = slices.Concat(all.TCP, w.TCP), slices.Concat(all.UDP, w.UDP)
			}
		}
		all.TCP, all.UDP = union(all.TCP), union(all.UDP)
		out = append(out, all)
	}
	slices.SortFunc(out, func(a, b Net) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

// wildcardsOf yields the wildcards that match a name, the most specific first.
// A wildcard does not match its own domain.
func wildcardsOf(name string) func(func(string) bool) {
	return func(yield func(string) bool) {
		name = strings.TrimPrefix(name, "*.")
		for {
			_, rest, more := strings.Cut(name, ".")
			if !more || !yield("*."+rest) {
				return
			}
			name = rest
		}
	}
}

// number gives every name its block of addresses.
func (t *Table) number() error {
	var wild uint32
	for i := range t.Names {
		if t.Names[i].wild() {
			wild++
		}
	}
	switch {
	case len(t.Names)-int(wild) > maxNames:
		return fmt.Errorf("%d names are allowed, more than %d", len(t.Names)-int(wild), maxNames)
	case wild > maxWildcards:
		return fmt.Errorf("%d wildcards are allowed, more than %d", wild, maxWildcards)
	}
	bits := uint8(16)
	for wild > 1<<(16-bits) {
		bits--
	}
	block := uint32(firstWild)
	for i := range t.Names {
		if n := &t.Names[i]; n.wild() {
			n.First, n.Bits = block, bits
			block += 1 << bits
		}
	}
	for i, n := range t.exactByPorts() {
		n.First = firstName + uint32(i)
	}
	return nil
}

// exactByPorts are the names besides wildcards, in an order in which those with the
// same ports are neighbours: what the kernel is told of them is the shorter for it.
func (t *Table) exactByPorts() []*Name {
	var groups [][]*Name // in the order of their first names
	index := map[string]int{}
	for i := range t.Names {
		n := &t.Names[i]
		if n.wild() {
			continue
		}
		key := n.ports()
		at, known := index[key]
		if !known {
			at = len(groups)
			index[key], groups = at, append(groups, nil)
		}
		groups[at] = append(groups[at], n)
	}
	return slices.Concat(groups...)
}

// ports are all ports of the name, as a key.
func (n *Name) ports() string {
	var key []byte
	for _, p := range n.TCP {
		key = append(key, 't', byte(p.Low>>8), byte(p.Low), byte(p.High>>8), byte(p.High))
	}
	for _, p := range n.UDP {
		key = append(key, 'u', byte(p.Low>>8), byte(p.Low), byte(p.High>>8), byte(p.High))
	}
	return string(key)
}

func (t *Table) check() error {
	if len(t.Nets) > maxNets {
		return fmt.Errorf("%d addresses and ranges are allowed, more than %d", len(t.Nets), maxNets)
	}
	for i := range t.Names {
		if n := &t.Names[i]; max(len(n.TCP), len(n.UDP)) > MaxRanges {
			return tooMany(n.Name)
		}
	}
	for i := range t.Nets {
		switch n := &t.Nets[i]; {
		case max(len(n.TCP), len(n.UDP)) > MaxRanges:
			return tooMany(n.Prefix.String())
		case Synthetic(n.Prefix.Addr()) && n.Prefix.Bits() >= least(n.Prefix.Addr()):
			return fmt.Errorf("%s is among the addresses that stand for names inside", n.Prefix)
		}
	}
	return nil
}

// least is how many bits the synthetic range of a's family has: a wider range only holds it by the way.
func least(a netip.Addr) int {
	if a.Is4() {
		return Synthetic4.Bits()
	}
	return Synthetic6.Bits()
}

func tooMany(host string) error {
	return fmt.Errorf("%s: more than %d separate ranges of ports", host, MaxRanges)
}

// union sorts the ranges and joins those that touch.
func union(list []Ports) []Ports {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Ports) int { return int(a.Low) - int(b.Low) })
	var out []Ports
	for _, p := range list {
		if n := len(out); n > 0 && int(p.Low) <= int(out[n-1].High)+1 {
			out[n-1].High = max(out[n-1].High, p.High)
			continue
		}
		out = append(out, p)
	}
	return out
}

func (n *Name) wild() bool { return strings.HasPrefix(n.Name, "*.") }

// Prefixes are the synthetic addresses of the name, of both families.
func (n *Name) Prefixes() [2]netip.Prefix {
	return [2]netip.Prefix{
		netip.PrefixFrom(synthetic4(n.First), 32-int(n.Bits)),
		netip.PrefixFrom(synthetic6(n.First), 128-int(n.Bits)),
	}
}

// Given are the addresses of the names that are not wildcards: theirs from the
// start, whether anybody has asked for them or not.
func (t *Table) Given() map[netip.Addr][]byte {
	out := make(map[netip.Addr][]byte, 2*len(t.Names))
	for i := range t.Names {
		if n := &t.Names[i]; !n.wild() {
			for _, p := range n.Prefixes() {
				out[p.Addr()] = []byte(n.Name)
			}
		}
	}
	return out
}

func covers(list []Ports, port uint16) bool {
	return slices.ContainsFunc(list, func(p Ports) bool { return p.Low <= port && port <= p.High })
}

// allows reports whether a protocol and port of the name are allowed.
func (n *Name) allows(proto string, port uint16) bool {
	if proto == "udp" {
		return covers(n.UDP, port)
	}
	return covers(n.TCP, port)
}

func (n *Net) allows(proto string, port uint16) bool {
	if proto == "udp" {
		return covers(n.UDP, port)
	}
	return covers(n.TCP, port)
}

// UDP reports whether anything is allowed by UDP.
func (t *Table) UDP() bool {
	return slices.ContainsFunc(t.Names, func(n Name) bool { return len(n.UDP) > 0 }) ||
		slices.ContainsFunc(t.Nets, func(n Net) bool { return len(n.UDP) > 0 })
}
