package netguard

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	udpHeader  = 8
	ip4Header  = 20
	ip6Header  = 40
	defaultTTL = 64
)

// packet makes an IP packet with one UDP datagram (RFC 791, 8200, 768).
func packet(from, to netip.AddrPort, payload []byte) []byte {
	if from.Addr().Is4() {
		return packet4(from, to, payload)
	}
	return packet6(from, to, payload)
}

func packet4(from, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, ip4Header+udpHeader+len(payload))
	header4(b, unix.IPPROTO_UDP, from.Addr(), to.Addr())
	datagram(b[ip4Header:], from, to, payload)
	return b
}

func packet6(from, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, ip6Header+udpHeader+len(payload))
	header6(b, unix.IPPROTO_UDP, from.Addr(), to.Addr())
	datagram(b[ip6Header:], from, to, payload)
	return b
}

// header4 and header6 fill in the IP header of a whole packet.
func header4(b []byte, proto byte, from, to netip.Addr) {
	b[0] = 4<<4 | ip4Header/4
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[8], b[9] = defaultTTL, proto // the kernel fills in the identification and the checksum
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
}

func header6(b []byte, proto byte, from, to netip.Addr) {
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ip6Header))
	b[6], b[7] = proto, defaultTTL
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
}

// datagram fills in the UDP header and the payload.
func datagram(b []byte, from, to netip.AddrPort, payload []byte) {
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(udpHeader+len(payload)))
	copy(b[udpHeader:], payload)
	check := checksum(unix.IPPROTO_UDP, from.Addr(), to.Addr(), b)
	if check == 0 { // 0 says that there is no checksum
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], check)
}

// checksum is that of a transport header and what follows it, whose own field is 0,
// with the pseudo-header.
func checksum(proto byte, from, to netip.Addr, b []byte) uint16 {
	sum := uint32(proto) + uint32(len(b))
	sum = add16(sum, from.AsSlice())
	sum = add16(sum, to.AsSlice())
	return fold(add16(sum, b))
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// add16 adds 16-bit words, folding the carry so that the sum never overflows.
func add16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
		sum = sum>>16 + sum&0xffff
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum>>16 + sum&0xffff
}
