package netguard

import (
	"encoding/binary"
	"net/netip"
)

// The synthetic ranges: benchmarking addresses (RFC 2544), which no network
// carries, and a unique local prefix (RFC 4193) of agentguard's own. Both are
// local to the run's namespace, and both number the same names.
var (
	Synthetic4 = netip.MustParsePrefix("198.18.0.0/15")
	Synthetic6 = netip.MustParsePrefix("fd53:6167:7264::/64")
)

// Own addresses of the namespace: getaddrinfo with AI_ADDRCONFIG answers only
// for families of which the machine has an address besides loopback (RFC 3493).
var (
	Own4 = synthetic4(1)
	Own6 = synthetic6(1)
)

const indexBits = 17 // as many as Synthetic4 has

func synthetic4(index uint32) netip.Addr {
	a := Synthetic4.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+index)
	return netip.AddrFrom4(a)
}

func synthetic6(index uint32) netip.Addr {
	a := Synthetic6.Addr().As16()
	binary.BigEndian.PutUint32(a[12:], index)
	return netip.AddrFrom16(a)
}

// indexOf returns the number of a synthetic address.
func indexOf(a netip.Addr) (uint32, bool) {
	a = a.Unmap()
	switch {
	case Synthetic4.Contains(a):
		b := a.As4()
		return binary.BigEndian.Uint32(b[:]) & (1<<indexBits - 1), true
	case Synthetic6.Contains(a):
		b := a.As16()
		index := binary.BigEndian.Uint32(b[12:])
		return index, index < 1<<indexBits && binary.BigEndian.Uint32(b[8:]) == 0
	}
	return 0, false
}

// Synthetic reports whether a is an address that only stands for a name.
func Synthetic(a netip.Addr) bool {
	a = a.Unmap()
	return Synthetic4.Contains(a) || Synthetic6.Contains(a)
}
