// Package special knows the addresses that a name of the internet must not lead
// to: both the relay of a run and the process that sends requests for one ask it.
package special

import (
	"encoding/binary"
	"net/netip"
)

// ranges are addresses that no name is followed to, unless the policy
// allows it for that name or has the address itself: the host, its networks,
// metadata services, and forms in which they can be written otherwise
// (IANA's special-purpose registries; RFC 6890, 6052, 8215, 3056, 4380, 5214).
var ranges = parsePrefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32",                        // Azure's wire server, in public space
	"::/64",                                   // unspecified, loopback, IPv4-compatible and IPv4-translated (RFC 2765)
	"64:ff9b:1::/48", "100::/64", "5f00::/16", // the last: segments of a network's own (RFC 9602)
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func parsePrefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
	teredo    = netip.MustParsePrefix("2001::/32")
)

// isatap begins the lower half of an address below any prefix that carries an IPv4
// address; the bit of it that says "global" may be set (RFC 5214, 6.1).
const isatap = 0x00005efe

// Contains reports whether a is in one of the ranges, or carries an IPv4
// address that is.
func Contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	if !a.Is6() {
		return false
	}
	b := a.As16()
	if binary.BigEndian.Uint32(b[8:])&^0x02000000 == isatap && Contains(netip.AddrFrom4([4]byte(b[12:]))) {
		return true
	}
	switch {
	case nat64.Contains(a):
		return Contains(netip.AddrFrom4([4]byte(b[12:])))
	case sixToFour.Contains(a):
		return Contains(netip.AddrFrom4([4]byte(b[2:])))
	case teredo.Contains(a): // the server as it is, the client with all bits turned
		var client [4]byte
		binary.BigEndian.PutUint32(client[:], ^binary.BigEndian.Uint32(b[12:]))
		return Contains(netip.AddrFrom4([4]byte(b[4:]))) || Contains(netip.AddrFrom4(client))
	}
	return false
}

// Names reports whether a granted range was meant for a special address that it
// holds: it lies within the special range. A wider one, such as 169.0.0.0/8 for
// 169.254.169.254, holds the address only by the way.
func Names(granted netip.Prefix, a netip.Addr) bool {
	if granted.IsSingleIP() {
		return true
	}
	for _, p := range ranges {
		if p.Contains(a) && granted.Bits() >= p.Bits() {
			return true
		}
	}
	return false
}
