package netguard

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// directory knows which name a synthetic address belongs to. An address is
// given to a name once and stays its own for the run, so that the name of a
// connection is certain whatever it carries.
type directory struct {
	exact map[string]*Name
	wild  map[string]*Name // by "*." and domain
	block []*Name          // in the order of First
	nets  map[netip.Prefix]*Net
	bits  [2][]int // prefix lengths in nets, of IPv4 and IPv6, the longest first

	mu    sync.Mutex
	given map[string]uint32 // names below wildcards
	named map[uint32]string
	next  map[*Name]uint32 // how many of a wildcard's addresses are given
	most  uint32           // of each; 0: as many as its block has
}

// errFull means that all addresses of a wildcard are given.
var errFull = errors.New("the wildcard has no address left for another name")

func newDirectory(t *Table) *directory {
	d := &directory{
		exact: map[string]*Name{}, wild: map[string]*Name{}, nets: map[netip.Prefix]*Net{},
		given: map[string]uint32{}, named: map[uint32]string{}, next: map[*Name]uint32{},
	}
	for i := range t.Names {
		n := &t.Names[i]
		d.block = append(d.block, n)
		if n.wild() {
			d.wild[n.Name] = n
		} else {
			d.exact[n.Name] = n
		}
	}
	slices.SortFunc(d.block, func(a, b *Name) int { return int(a.First) - int(b.First) })
	for i := range t.Nets {
		n := &t.Nets[i]
		d.nets[n.Prefix] = n
		family := familyIndex(n.Prefix.Addr())
		if !slices.Contains(d.bits[family], n.Prefix.Bits()) {
			d.bits[family] = append(d.bits[family], n.Prefix.Bits())
		}
	}
	for _, bits := range d.bits {
		slices.Sort(bits)
		slices.Reverse(bits)
	}
	return d
}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// index returns the number of the synthetic address of a name, in lower case
// and without the root dot; false where nothing allows it.
func (d *directory) index(name string) (uint32, bool, error) {
	if n := d.exact[name]; n != nil {
		return n.First, true, nil
	}
	if !hostName(name) { // the command has chosen all that stands before a wildcard's domain
		return 0, false, nil
	}
	for above := range wildcardsOf(name) {
		w := d.wild[above]
		if strings.HasSuffix(name, brokerDomain) {
			break // only those that are configured exist
		}
		if w == nil {
			continue
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if i, ok := d.given[name]; ok {
			return i, true, nil
		}
		if d.next[w] >= 1<<w.Bits || d.most > 0 && d.next[w] >= d.most {
			return 0, true, errFull
		}
		i := w.First + d.next[w]
		d.next[w]++
		name = strings.Clone(name)
		d.given[name], d.named[i] = i, name
		return i, true, nil
	}
	return 0, false, nil
}

// hostName reports whether a name is one that a host can have: letters, digits,
// hyphens and underscores, in lower case (RFC 1123, 2.1; underscores are in use). A
// question of DNS may have any bytes, and what reads a name afterwards reads other
// things in it: "::ffff:192.0.2.1%x.example.com" is an address with a zone to
// [net.Resolver], and a slash, a space or a line's end ends the name that a proxy reads.
func hostName(name string) bool {
	if len(name) > maxHostName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Bytes of a name, without the root dot, and of one of its labels (RFC 1035, 2.3.4).
const (
	maxHostName = 253
	maxLabel    = 63
)

// destination is what an address inside stands for.
type destination struct {
	name string     // "" where the address is meant itself
	addr netip.Addr // the address that was asked for
	port uint16

	broker bool // it is no destination: another process serves it
}

// find says what a connection to addr:port is meant for, and whether the
// allowlist has it.
func (d *directory) find(proto string, to netip.AddrPort) (destination, bool) {
	addr := to.Addr().Unmap()
	dest := destination{addr: addr, port: to.Port()}
	index, synthetic := indexOf(addr)
	if !synthetic {
		n := d.net(addr)
		return dest, n != nil && n.allows(proto, to.Port())
	}
	i, ok := slices.BinarySearchFunc(d.block, index, func(n *Name, index uint32) int {
		switch {
		case index < n.First:
			return 1
		case index-n.First >= 1<<n.Bits:
			return -1
		}
		return 0
	})
	if !ok {
		return dest, false
	}
	n := d.block[i]
	dest.name, dest.broker = n.Name, n.Broker
	if n.wild() {
		d.mu.Lock()
		dest.name, ok = d.named[index]
		d.mu.Unlock()
	}
	return dest, ok && n.allows(proto, to.Port())
}

// net returns the narrowest allowed range that addr is in.
func (d *directory) net(addr netip.Addr) *Net {
	for _, bits := range d.bits[familyIndex(addr)] {
		if n := d.nets[netip.PrefixFrom(addr, bits).Masked()]; n != nil {
			return n
		}
	}
	return nil
}
