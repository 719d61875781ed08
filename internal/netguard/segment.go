package netguard

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packets of a handshake that is held up: see hold.go.

const (
	tcpHeader = 20
	flagSYN   = 0x02
	flagRST   = 0x04
	flagACK   = 0x10
	maxQuoted = 8 // bytes of a segment that an ICMP error has at least (RFC 792)
)

// pair is the two ends of a connection, the command's first.
type pair struct{ from, to netip.AddrPort }

// syn is the first packet of a connection, from its IP header on.
type syn struct {
	pair
	packet  []byte // a copy
	segment []byte // its TCP part
}

// parseSYN reads a packet that the filter of a SYN socket let through. The
// bytes are the kernel's, but the command has chosen most of them.
func parseSYN(b []byte) (syn, bool) {
	var from, to netip.Addr
	var head, size int
	switch {
	case len(b) >= ip4Header && b[0]>>4 == 4:
		head, size = int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case len(b) >= ip6Header && b[0]>>4 == 6:
		head, size = ip6Header, ip6Header+int(binary.BigEndian.Uint16(b[4:]))
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	default:
		return syn{}, false
	}
	if head < ip4Header || size > len(b) || size < head+tcpHeader {
		return syn{}, false
	}
	s := syn{packet: append([]byte(nil), b[:size]...)}
	s.segment = s.packet[head:]
	if s.segment[13]&(flagSYN|flagACK|flagRST) != flagSYN {
		return syn{}, false
	}
	s.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(s.segment))
	s.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(s.segment[2:]))
	return s, true
}

// again is the packet as the command sent it. Its checksum was left to a device.
func (s *syn) again() []byte {
	binary.BigEndian.PutUint16(s.segment[16:], 0)
	binary.BigEndian.PutUint16(s.segment[16:], checksum(unix.IPPROTO_TCP, s.from.Addr(), s.to.Addr(), s.segment))
	return s.packet
}

// reset refuses the connection: ECONNREFUSED.
func (s *syn) reset() []byte {
	b, t := s.answer(unix.IPPROTO_TCP, tcpHeader)
	binary.BigEndian.PutUint16(t, s.to.Port())
	binary.BigEndian.PutUint16(t[2:], s.from.Port())
	binary.BigEndian.PutUint32(t[8:], binary.BigEndian.Uint32(s.segment[4:])+1)
	t[12], t[13] = tcpHeader/4<<4, flagRST|flagACK
	binary.BigEndian.PutUint16(t[16:], checksum(unix.IPPROTO_TCP, s.to.Addr(), s.from.Addr(), t))
	return b
}

// unreachable refuses it with ENETUNREACH or EHOSTUNREACH (RFC 792, 4443).
func (s *syn) unreachable(errno unix.Errno) []byte {
	quoted := s.packet[:len(s.packet)-len(s.segment)+maxQuoted]
	if s.from.Addr().Is6() {
		quoted = s.packet
		b, m := s.answer(unix.IPPROTO_ICMPV6, 8+len(quoted))
		m[0] = 1 // ICMPV6_DEST_UNREACH
		if errno != unix.ENETUNREACH {
			m[1] = 3 // ICMPV6_ADDR_UNREACH
		}
		copy(m[8:], quoted)
		binary.BigEndian.PutUint16(m[2:], checksum(unix.IPPROTO_ICMPV6, s.to.Addr(), s.from.Addr(), m))
		return b
	}
	b, m := s.answer(unix.IPPROTO_ICMP, 8+len(quoted))
	m[0] = 3 // ICMP_DEST_UNREACH
	if errno != unix.ENETUNREACH {
		m[1] = 1 // ICMP_HOST_UNREACH
	}
	copy(m[8:], quoted)
	binary.BigEndian.PutUint16(m[2:], fold(add16(0, m)))
	return b
}

// answer makes a packet back with so many bytes after its IP header.
func (s *syn) answer(proto byte, size int) (packet, rest []byte) {
	if s.from.Addr().Is4() {
		b := make([]byte, ip4Header+size)
		header4(b, proto, s.to.Addr(), s.from.Addr())
		return b, b[ip4Header:]
	}
	b := make([]byte, ip6Header+size)
	header6(b, proto, s.to.Addr(), s.from.Addr())
	return b, b[ip6Header:]
}
