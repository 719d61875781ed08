package netguard

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A datagram's checksum, over the pseudo-header and all of it, adds up to nothing.
func TestPacket(t *testing.T) {
	for _, c := range []struct{ from, to string }{{"198.18.0.16:53", "127.0.0.1:40000"}, {"[fd53:6167:7264::10]:53", "[::1]:40000"}} {
		from, to := netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)
		for _, payload := range []string{"", "a", "ab", strings.Repeat("\xff", 65507-1), strings.Repeat("x", 1001)} {
			b := packet(from, to, []byte(payload))
			header := ip4Header
			if from.Addr().Is6() {
				header = ip6Header
			}
			udp := b[header:]
			sum := add16(uint32(unix.IPPROTO_UDP)+uint32(len(udp)), from.Addr().AsSlice())
			sum = add16(add16(sum, to.Addr().AsSlice()), udp)
			for sum > 0xffff {
				sum = sum>>16 + sum&0xffff
			}
			if sum != 0xffff || string(udp[udpHeader:]) != payload || len(udp) != udpHeader+len(payload) {
				t.Errorf("%v %d bytes: sum %#x", from, len(payload), sum)
			}
		}
	}
}

func TestOwnerOf(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from, to := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	if uid, err := ownerOf(from, to); err != nil || uid != os.Getuid() {
		t.Errorf("%d %v", uid, err)
	}
	if uid, err := ownerOf(from, netip.MustParseAddrPort("127.0.0.1:1")); err == nil {
		t.Errorf("%d has another connection from there", uid)
	}
	if uid, err := ownerOf(netip.MustParseAddrPort("127.0.0.1:1"), to); err == nil {
		t.Errorf("%d owns nothing", uid)
	}
	c.Close() // what the kernel still has of it shows uid 0
	if uid, err := ownerOf(from, to); err == nil {
		t.Errorf("%d owns what was closed", uid)
	}
	mapped := "  sl  local_address\n   0: 0000000000000000FFFF00000100007F:9C40 0000000000000000FFFF00000100007F:0050 01 0:0 0:0 0 1234 0 1\n"
	if uid, err := ownerIn(bufio.NewReader(strings.NewReader(mapped)), netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:80")); err != nil || uid != 1234 {
		t.Errorf("a mapped address: %d %v", uid, err)
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"kind":"dns","name":"YQ==","asked":"198.18.0.16:0"}`))
	f.Add([]byte(`{"kind":1}`))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseEvent(b) }) // no panic, whatever the process says
}

func FuzzProcAddr(f *testing.F) {
	f.Add("0100007F:9C40")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parseProcAddr(s) })
}

func FuzzAcknowledged(f *testing.F) {
	f.Add(make([]byte, 36))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = acknowledged(b) })
}
