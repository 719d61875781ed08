package netguard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// ask makes a query; opt adds EDNS.
func ask(t testing.TB, name string, kind dnsmessage.Type, opt bool) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 4711, RecursionDesired: true}}
	n, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	m.Questions = []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}}
	if opt {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(4096, dnsmessage.RCodeSuccess, true); err != nil {
			t.Fatal(err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("%v: %x", err, b)
	}
	return m
}

func addrOf(m dnsmessage.Message) string {
	if len(m.Answers) != 1 {
		return ""
	}
	switch r := m.Answers[0].Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(r.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(r.AAAA).String()
	}
	return "?"
}

func TestAnswer(t *testing.T) {
	d := newDirectory(compile(t, "tcp api.example.com 443", "tcp *.w.example 443", "tcp xn--bcher-kva.example 443"))
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3) + "example.org."
	for _, c := range []struct {
		name    string
		kind    dnsmessage.Type
		rcode   dnsmessage.RCode
		addr    string
		allowed bool
	}{
		{"api.example.com.", dnsmessage.TypeA, 0, "198.18.0.16", true},
		{"API.exAMPle.Com.", dnsmessage.TypeA, 0, "198.18.0.16", true},
		{"api.example.com.", dnsmessage.TypeAAAA, 0, "fd53:6167:7264::10", true},
		{"api.example.com.", dnsmessage.TypeMX, 0, "", true},
		{"api.example.com.", dnsmessage.TypeTXT, 0, "", true},
		{"api.example.com.", 65, 0, "", true}, // HTTPS
		{"api.example.com.", 255, 0, "", true},
		{"api.example.com.corp.example.", dnsmessage.TypeA, dnsmessage.RCodeNameError, "", false},
		{"x.w.example.", dnsmessage.TypeA, 0, "198.19.0.0", true},
		{"w.example.", dnsmessage.TypeA, dnsmessage.RCodeNameError, "", false},
		{"xn--bcher-kva.example.", dnsmessage.TypeA, 0, "198.18.0.17", true},
		{"example.com.", dnsmessage.TypeA, dnsmessage.RCodeNameError, "", false},
		{".", dnsmessage.TypeNS, dnsmessage.RCodeNameError, "", false},
		{long, dnsmessage.TypeTXT, dnsmessage.RCodeNameError, "", false},
		{"4.3.2.1.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, "", false},
		{"localhost.", dnsmessage.TypeA, 0, "127.0.0.1", true},
		{"x.LOCALHOST.", dnsmessage.TypeAAAA, 0, "::1", true},
	} {
		for _, opt := range []bool{false, true} {
			reply, q, ok := d.answer(ask(t, c.name, c.kind, opt), true)
			m := parse(t, reply)
			if !ok || m.RCode != c.rcode || addrOf(m) != c.addr || q.allowed != c.allowed || m.Truncated || !m.Response || m.ID != 4711 {
				t.Errorf("%s %v: %+v %+v", c.name, c.kind, m.Header, q)
			}
			if (len(m.Additionals) == 1) != opt || len(m.Questions) != 1 || m.Questions[0].Name.String() != c.name || len(reply) > 512 {
				t.Errorf("%s %v: edns %v: %d additionals, %v, %d bytes", c.name, c.kind, opt, len(m.Additionals), m.Questions, len(reply))
			}
		}
	}
	if reply, _, _ := d.answer(ask(t, "api.example.com.", dnsmessage.TypeAAAA, false), false); len(parse(t, reply).Answers) != 0 {
		t.Error("an IPv6 address where there is no IPv6")
	}
}

func TestAnswerRefuses(t *testing.T) {
	d := newDirectory(compile(t, "tcp a.example 443"))
	good := ask(t, "a.example.", dnsmessage.TypeA, false)
	edit := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	for name, c := range map[string]struct {
		packet []byte
		rcode  int // -1: no reply
	}{
		"nothing":       {nil, -1},
		"half a header": {good[:7], -1},
		"a response":    {edit(func(b []byte) { b[2] |= 0x80 }), -1},
		"an update":     {edit(func(b []byte) { b[2] |= 5 << 3 }), int(dnsmessage.RCodeNotImplemented)},
		"no question":   {edit(func(b []byte) { b[5] = 0 }), int(dnsmessage.RCodeFormatError)},
		"two questions": {edit(func(b []byte) { b[5] = 2 }), int(dnsmessage.RCodeFormatError)},
		"cut short":     {good[:len(good)-3], int(dnsmessage.RCodeFormatError)},
		"a loop":        {append(bytes.Clone(good[:12]), 0xc0, 12, 0, 1, 0, 1), int(dnsmessage.RCodeFormatError)},
		"class CHAOS":   {edit(func(b []byte) { b[len(b)-1] = 3 }), int(dnsmessage.RCodeRefused)},
	} {
		reply, _, ok := d.answer(c.packet, true)
		if ok || (reply == nil) != (c.rcode < 0) {
			t.Errorf("%s: %x %v", name, reply, ok)
			continue
		}
		if reply != nil && int(parse(t, reply).RCode) != c.rcode {
			t.Errorf("%s: %v", name, parse(t, reply).RCode)
		}
	}
}

// What stands before a wildcard's domain is the command's own choice: only a host's name has an
// address, since what reads a name after that takes others for addresses, or for the end of a line.
func TestOnlyHostNames(t *testing.T) {
	d := newDirectory(compile(t, "tcp *.w.example 443"))
	for name, want := range map[string]bool{
		"x.w.example.":                             true,
		"_dmarc.x-1--y.w.example.":                 true,
		"XN--bcher-kva.w.example.":                 true,
		strings.Repeat("a", 63) + ".w.example.":    true,
		"203.0.113.1.w.example.":                   true,
		"2001:db8::1%x.w.example.":                 false, // an address with a zone to net.Resolver
		"::ffff:203.0.113.1%x.w.example.":          false,
		"fe80::1%lo.w.example.":                    false,
		"a.example:22/x.w.example.":                false, // another host to a proxy
		"a.example:22 x.w.example.":                false,
		"a.example:22 http/1.1\r\n\r\n.w.example.": false,
		"a.example?.w.example.":                    false,
		"a.example#.w.example.":                    false,
		"a.example@.w.example.":                    false,
		"a.example\x00.w.example.":                 false,
		"b\u00fccher.w.example.":                   false,
		"*.w.example.":                             false,
		"[::1].w.example.":                         false,
		strings.Repeat("a.", 122) + "w.example.":   true,
	} {
		packet := ask(t, name, dnsmessage.TypeA, false)
		reply, q, ok := d.answer(packet, true)
		m := parse(t, reply)
		if !ok || q.allowed != want || (addrOf(m) != "") != want || (m.RCode == dnsmessage.RCodeSuccess) != want {
			t.Errorf("%q: allowed %v, %+v", name, q.allowed, m)
		}
	}
	if len(d.given) != 6 {
		t.Errorf("addresses are given to %d names: %v", len(d.given), d.given)
	}
}

// Questions count together only where they were answered alike: a name without an address of
// the type comes before one that has it, and a name is not another one with a word behind it.
func TestQueriesAreToldApart(t *testing.T) {
	s, events := newTestServer(t, &Config{Table: *compile(t, "tcp *.w.example 443"), IPv6: true, MaxConnections: 10, MaxBytes: -1})
	for _, q := range []struct {
		name string
		kind dnsmessage.Type
	}{
		{"a.w.example.", 65},
		{"a.w.example.", dnsmessage.TypeAAAA},
		{"a.w.example.", dnsmessage.TypeA},
		{"a.w.example.", dnsmessage.TypeA},
		{"a.w.example 6.", dnsmessage.TypeA},
	} {
		s.resolve(ask(t, q.name, q.kind, false))
	}
	var got []string
	for _, e := range events() {
		got = append(got, fmt.Sprintf("%s %v %v", e.Name, e.Asked.Addr().IsValid(), e.Denied))
	}
	want := []string{"a.w.example false false", "a.w.example true false", "a.w.example true false", "a.w.example 6 false true"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	s.events.flush()
	if list := events(); len(list) != len(want)+1 || list[len(want)].Count != 1 || !list[len(want)].Asked.Addr().Is4() {
		t.Errorf("%+v", list)
	}
}

// serveDNS starts the resolver on loopback.
func serveDNS(t *testing.T, table *Table) (s *server, udp net.PacketConn, tcp net.Listener, events func() []Event) {
	t.Helper()
	s, events = newTestServer(t, &Config{Table: *table, IPv6: true, MaxConnections: 10, MaxBytes: -1})
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err = net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close(); tcp.Close() })
	go s.serveUDP(udp)
	go s.serveTCP(tcp)
	return s, udp, tcp, events
}

func TestResolverOverUDPAndTCP(t *testing.T) {
	s, udp, tcp, events := serveDNS(t, compile(t, "tcp a.example 443"))
	c, err := net.Dial("udp4", udp.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 2000)
	for range 3 {
		if _, err := c.Write(ask(t, "no.example.", dnsmessage.TypeA, true)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil || parse(t, buf[:n]).RCode != dnsmessage.RCodeNameError {
			t.Fatal(err)
		}
	}
	k, err := net.Dial("tcp4", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for range 2 { // one connection, several queries, each in two pieces
		q := ask(t, "a.example.", dnsmessage.TypeA, false)
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
		for _, part := range [][]byte{q[:1], q[1:]} {
			if _, err := k.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		n, err := k.Read(buf)
		if err != nil || addrOf(parse(t, buf[2:n])) != "198.18.0.16" {
			t.Fatal(err)
		}
	}
	s.events.flush()
	var got []string
	for _, e := range events() {
		got = append(got, strings.TrimSpace(strings.Join([]string{e.Kind, string(e.Name), map[bool]string{true: "denied"}[e.Denied], strings.Repeat("+", int(e.Count))}, " ")))
	}
	want := map[string]bool{"dns no.example denied": true, "dns no.example denied ++": true, "dns a.example": true, "dns a.example  +": true}
	if len(got) != len(want) {
		t.Errorf("%q", got)
	}
	for _, g := range got {
		if !want[g] {
			t.Errorf("%q is not expected", g)
		}
	}
}

// Whatever comes, the answer can be parsed, is small, and never gives an
// address to a name that the table does not have.
func FuzzAnswer(f *testing.F) {
	f.Add(ask(f, "a.example.", dnsmessage.TypeA, true))
	f.Add(ask(f, "x.w.example.", dnsmessage.TypeAAAA, false))
	f.Add(append(ask(f, "b.example.", dnsmessage.TypeA, false), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDirectory(compile(t, "tcp a.example 443", "tcp *.w.example 443"))
		reply, q, ok := d.answer(b, true)
		if reply == nil {
			return
		}
		m := parse(t, reply)
		if !m.Response || len(reply) > 1024 || len(m.Answers) > 1 {
			t.Errorf("%+v", m)
		}
		name := strings.TrimSuffix(q.name, ".")
		if len(m.Answers) == 1 && (!ok || name != "a.example" && !strings.HasSuffix(name, ".w.example") && name != "localhost" && !strings.HasSuffix(name, ".localhost")) {
			t.Errorf("%q has an answer", q.name)
		}
	})
}
