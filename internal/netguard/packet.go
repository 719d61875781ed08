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
	b[0] = 4<<4 | ip4Header/4
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[8], b[9] = defaultTTL, unix.IPPROTO_UDP // the kernel fills in the identification and the checksum
	copy(b[12:], from.Addr().AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	datagram(b[ip4Header:], from, to, payload)
	return b
}

func packet6(from, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, ip6Header+udpHeader+len(payload))
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(udpHeader+len(payload)))
	b[6], b[7] = unix.IPPROTO_UDP, defaultTTL
	copy(b[8:], from.Addr().AsSlice())
	copy(b[24:], to.Addr().AsSlice())
	datagram(b[ip6Header:], from, to, payload)
	return b
}

// datagram fills in the UDP header and the payload.
func datagram(b []byte, from, to netip.AddrPort, payload []byte) {
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(udpHeader+len(payload)))
	copy(b[udpHeader:], payload)
	sum := uint32(unix.IPPROTO_UDP) + uint32(len(b)) // of the pseudo-header
	sum = add16(sum, from.Addr().AsSlice())
	sum = add16(sum, to.Addr().AsSlice())
	sum = add16(sum, b)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	check := ^uint16(sum)
	if check == 0 { // 0 says that there is no checksum
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], check)
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
