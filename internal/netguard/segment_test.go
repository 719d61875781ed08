package netguard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// synPacket is the first packet of a connection, with some bytes of data.
func synPacket(from, to string, data int) []byte {
	f, t := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	head, fill := ip4Header, header4
	if f.Addr().Is6() {
		head, fill = ip6Header, header6
	}
	b := make([]byte, head+tcpHeader+data)
	fill(b, unix.IPPROTO_TCP, f.Addr(), t.Addr())
	s := b[head:]
	binary.BigEndian.PutUint16(s, f.Port())
	binary.BigEndian.PutUint16(s[2:], t.Port())
	binary.BigEndian.PutUint32(s[4:], 0xffffffff)
	s[12], s[13] = tcpHeader/4<<4, flagSYN
	s[16], s[17] = 0xab, 0xcd // what is there while a device is to fill it in
	return b
}

func TestParseSYN(t *testing.T) {
	for _, c := range [][2]string{{"127.0.0.1:40000", "198.18.0.16:443"}, {"[::1]:40000", "[fd53:6167:7264::10]:443"}} {
		b := synPacket(c[0], c[1], 7)
		p, ok := parseSYN(append(b, 0, 0, 0)) // padding of a short frame
		if !ok || p.from.String() != c[0] || p.to.String() != c[1] || len(p.packet) != len(b) {
			t.Fatalf("%v: %+v", c, p)
		}
		again := p.again()
		head := len(b) - tcpHeader - 7
		if got := checksum(unix.IPPROTO_TCP, p.from.Addr(), p.to.Addr(), again[head:]); got != 0 {
			t.Errorf("%v: the checksum is off by %x", c, got)
		}
		again[head+16], again[head+17] = b[head+16], b[head+17]
		if !bytes.Equal(again, b) {
			t.Errorf("%v: more than the checksum differs", c)
		}
		for n := range b { // cut anywhere
			if _, ok := parseSYN(b[:n]); ok {
				t.Errorf("%v: %d bytes of %d are enough", c, n, len(b))
			}
		}
		for _, flags := range []byte{0, flagACK, flagSYN | flagACK, flagSYN | flagRST} {
			b[head+13] = flags
			if _, ok := parseSYN(b); ok {
				t.Errorf("%v: flags %x", c, flags)
			}
		}
	}
}

// What goes back comes from where the SYN went to, and is sound.
func TestAnswersToSYN(t *testing.T) {
	for _, c := range [][2]string{{"127.0.0.1:40000", "198.18.0.16:443"}, {"[::1]:40000", "[fd53:6167:7264::10]:443"}} {
		p, ok := parseSYN(synPacket(c[0], c[1], 0))
		if !ok {
			t.Fatal(c)
		}
		six := p.from.Addr().Is6()
		head := ip4Header
		if six {
			head = ip6Header
		}
		b := p.reset()
		if s := b[head:]; binary.BigEndian.Uint32(s[8:]) != 0 || s[13] != flagRST|flagACK || // 0xffffffff + 1
			checksum(unix.IPPROTO_TCP, p.to.Addr(), p.from.Addr(), s) != 0 || binary.BigEndian.Uint16(s[2:]) != p.from.Port() {
			t.Errorf("%v: reset %x", c, b)
		}
		for _, errno := range []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH} {
			m := p.unreachable(errno)[head:]
			sum := fold(add16(0, m))
			code := map[unix.Errno]byte{unix.ENETUNREACH: 0, unix.EHOSTUNREACH: 1}[errno]
			if six {
				sum = checksum(unix.IPPROTO_ICMPV6, p.to.Addr(), p.from.Addr(), m)
				code *= 3
			}
			if sum != 0 || m[1] != code || !bytes.HasPrefix(p.packet, m[8:]) || len(m) < 8+head+maxQuoted {
				t.Errorf("%v: %v: %x", c, errno, m)
			}
		}
	}
}

func TestConnectErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want unix.Errno
	}{
		{&net.OpError{Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}, unix.ECONNREFUSED},
		{unix.ENETUNREACH, unix.ENETUNREACH},
		{unix.EHOSTUNREACH, unix.EHOSTUNREACH},
		{unix.EACCES, unix.ECONNREFUSED},
		{unix.EMFILE, unix.EHOSTUNREACH},
		{unix.ETIMEDOUT, unix.ETIMEDOUT},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), unix.ETIMEDOUT},
		{&net.DNSError{IsNotFound: true}, unix.EHOSTUNREACH},
		{errPrivate, unix.ECONNREFUSED},
		{refusal(403), unix.ECONNREFUSED},
		{refusal(502), unix.EHOSTUNREACH},
		{errors.New("x"), unix.EHOSTUNREACH},
	} {
		if got := connectErrno(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// Packets are the kernel's, but the command has chosen most of what is in them.
func FuzzParseSYN(f *testing.F) {
	f.Add(synPacket("127.0.0.1:1", "198.18.0.16:443", 3))
	f.Add(synPacket("[::1]:1", "[fd53:6167:7264::10]:443", 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseSYN(b)
		if !ok {
			return
		}
		if len(p.again()) > len(b) || len(p.reset()) == 0 || len(p.unreachable(unix.EHOSTUNREACH)) == 0 {
			t.Fatal("a packet from nothing")
		}
	})
}
