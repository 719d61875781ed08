package netguard

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entry reads "tcp NAME|PREFIX LOW[-HIGH]".
func entry(t testing.TB, text string) Entry {
	t.Helper()
	var e Entry
	var host, ports string
	if _, err := fmt.Sscanf(text, "%s %s %s", &e.Proto, &host, &ports); err != nil {
		t.Fatal(text, err)
	}
	if _, err := fmt.Sscanf(ports, "%d-%d", &e.Ports.Low, &e.Ports.High); err != nil {
		e.Ports.High = e.Ports.Low
	}
	if p, err := netip.ParsePrefix(host); err == nil {
		e.Prefix = p
	} else {
		e.Host = host
	}
	return e
}

func compile(t testing.TB, list ...string) *Table {
	t.Helper()
	var entries []Entry
	for _, s := range list {
		entries = append(entries, entry(t, s))
	}
	table, err := Compile(entries)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestCompile(t *testing.T) {
	got := compile(t,
		"tcp a.example 443", "tcp a.example 444", "udp a.example 443", "tcp *.example 80", "tcp *.b.example 81", "tcp x.b.example 82",
		"tcp 10.0.0.0/8 1", "tcp 10.1.0.0/16 2", "udp 10.1.2.3/32 3", "tcp localhost 9", "tcp 2001:db8::/32 4-5",
	)
	p := func(list ...uint16) (out []Ports) {
		for i := 0; i < len(list); i += 2 {
			out = append(out, Ports{list[i], list[i+1]})
		}
		return out
	}
	want := &Table{
		Names: []Name{
			{Name: "*.b.example", First: 1 << 16, Bits: 15, TCP: p(80, 81)},
			{Name: "*.example", First: 1<<16 + 1<<15, Bits: 15, TCP: p(80, 80)},
			{Name: "a.example", First: 16, TCP: p(80, 80, 443, 444), UDP: p(443, 443)},
			{Name: "x.b.example", First: 17, TCP: p(80, 82)},
		},
		Nets: []Net{
			{Prefix: netip.MustParsePrefix("10.0.0.0/8"), TCP: p(1, 1)},
			{Prefix: netip.MustParsePrefix("10.1.0.0/16"), TCP: p(1, 2)},
			{Prefix: netip.MustParsePrefix("10.1.2.3/32"), TCP: p(1, 2), UDP: p(3, 3)},
			{Prefix: netip.MustParsePrefix("127.0.0.1/32"), TCP: p(9, 9)},
			{Prefix: netip.MustParsePrefix("::1/128"), TCP: p(9, 9)},
			{Prefix: netip.MustParsePrefix("2001:db8::/32"), TCP: p(4, 5)},
		},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompileBounds(t *testing.T) {
	many := func(n int, f func(i int) string) []Entry {
		var out []Entry
		for i := range n {
			out = append(out, entry(t, f(i)))
		}
		return out
	}
	for _, c := range []struct {
		name string
		list []Entry
		err  string
	}{
		{"10 000 names", many(10000, func(i int) string { return fmt.Sprintf("tcp n%d.example 443", i) }), ""},
		{"10 000 ranges", many(10000, func(i int) string { return fmt.Sprintf("tcp 10.%d.%d.0/24 443", i/250, i%250) }), ""},
		{"70 000 names", many(70000, func(i int) string { return fmt.Sprintf("tcp n%d.example 443", i) }), "more than 65520"},
		{"2 000 wildcards", many(2000, func(i int) string { return fmt.Sprintf("tcp *.n%d.example 443", i) }), "more than 1024"},
		{"ports of a name", many(100, func(i int) string { return fmt.Sprintf("tcp a.example %d", 2*i+1) }), "a.example: more than 16"},
		{"ports of a range", many(100, func(i int) string { return fmt.Sprintf("udp 10.0.0.0/8 %d", 2*i+1) }), "10.0.0.0/8: more than 16"},
		{"ports that touch", many(1000, func(i int) string { return fmt.Sprintf("tcp a.example %d", i+1) }), ""},
	} {
		_, err := Compile(c.list)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}

// Every address stands for one name at most, in both families.
func TestAddressesAreApart(t *testing.T) {
	var list []string
	for i := range 300 {
		list = append(list, fmt.Sprintf("tcp n%d.example 443", i), fmt.Sprintf("tcp *.w%d.example 443", i))
	}
	taken := map[uint32]string{}
	for _, n := range compile(t, list...).Names {
		for i := n.First; i < n.First+1<<n.Bits; i++ {
			if taken[i] != "" {
				t.Fatalf("%s and %s share %d", taken[i], n.Name, i)
			}
			taken[i] = n.Name
			a, b := synthetic4(i), synthetic6(i)
			if p := n.Prefixes(); !p[0].Contains(a) || !p[1].Contains(b) || !Synthetic(a) || !Synthetic(b) {
				t.Fatalf("%s: %v %v are not in %v", n.Name, a, b, p)
			}
			for _, addr := range []netip.Addr{a, b, netip.AddrFrom16(a.As16())} {
				if got, ok := indexOf(addr); !ok || got != i {
					t.Fatalf("index of %v is %d, want %d", addr, got, i)
				}
			}
		}
	}
	if taken[1] != "" || Synthetic(netip.MustParseAddr("198.20.0.0")) || Synthetic(netip.MustParseAddr("fd53:6167:7264:1::")) {
		t.Error("addresses that are no name's")
	}
}

func TestFind(t *testing.T) {
	d := newDirectory(compile(t, "tcp a.example 443", "tcp *.w.example 1-9", "udp u.example 53", "tcp 10.0.0.0/8 1-5", "tcp 10.1.0.0/16 7", "tcp 127.0.0.1/32 80"))
	sub, _, err := d.index("deep.er.w.example")
	if err != nil {
		t.Fatal(err)
	}
	addr := func(name string) string {
		i, ok, err := d.index(name)
		if !ok || err != nil {
			t.Fatalf("%s: %v %v", name, ok, err)
		}
		return synthetic4(i).String()
	}
	for _, c := range []struct {
		proto, addr string
		port        uint16
		name        string
		ok          bool
	}{
		{"tcp", addr("a.example"), 443, "a.example", true},
		{"tcp", addr("a.example"), 80, "a.example", false},
		{"udp", addr("a.example"), 443, "a.example", false},
		{"tcp", synthetic6(16).String(), 443, "a.example", true},
		{"tcp", "::ffff:" + addr("a.example"), 443, "a.example", true},
		{"tcp", synthetic4(sub).String(), 9, "deep.er.w.example", true},
		{"tcp", synthetic4(sub).String(), 10, "deep.er.w.example", false},
		{"tcp", synthetic4(sub + 1).String(), 9, "", false}, // given to nobody yet
		{"udp", addr("u.example"), 53, "u.example", true},
		{"tcp", Own4.String(), 443, "", false},
		{"tcp", "198.19.255.255", 443, "", false},
		{"tcp", "10.2.3.4", 5, "", true},
		{"tcp", "10.2.3.4", 7, "", false},
		{"tcp", "10.1.3.4", 5, "", true},
		{"tcp", "10.1.3.4", 7, "", true},
		{"udp", "10.1.3.4", 7, "", false},
		{"tcp", "11.0.0.1", 5, "", false},
		{"tcp", "127.0.0.1", 80, "", true},
		{"tcp", "127.0.0.2", 80, "", false},
		{"tcp", "::1", 80, "", false},
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(c.addr), c.port)
		if dest, ok := d.find(c.proto, to); ok != c.ok || dest.name != c.name {
			t.Errorf("%s %v: %q %v, want %q %v", c.proto, to, dest.name, ok, c.name, c.ok)
		}
	}
}

func TestWildcardRunsOut(t *testing.T) {
	table := compile(t, "tcp *.w.example 443")
	table.Names[0].Bits = 2
	d := newDirectory(table)
	for i := range 4 {
		if _, ok, err := d.index(fmt.Sprintf("n%d.w.example", i)); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	if _, ok, err := d.index("n4.w.example"); !ok || err != errFull {
		t.Errorf("%v %v", ok, err)
	}
	if i, ok, err := d.index("n3.w.example"); !ok || err != nil || i != table.Names[0].First+3 {
		t.Errorf("an old name: %d %v %v", i, ok, err)
	}
	if _, ok, _ := d.index("w.example"); ok {
		t.Error("the wildcard matches its own domain")
	}
}

// Exact names have their addresses from the start; those of a wildcard have none yet.
func TestGiven(t *testing.T) {
	table := compile(t, "tcp a.example 443", "tcp *.w.example 443", "tcp b.example 80", "tcp 10.1.0.0/16 443")
	got := map[string]int{}
	for a, name := range table.Given() {
		if !Synthetic(a) {
			t.Errorf("%s of %s is no synthetic address", a, name)
		}
		got[string(name)]++
	}
	if len(got) != 2 || got["a.example"] != 2 || got["b.example"] != 2 {
		t.Errorf("addresses by name: %v", got)
	}
}

// What stands for names inside is nothing to be allowed by itself; a wider range holds it by the way.
func TestSyntheticIsNotAllowed(t *testing.T) {
	for text, ok := range map[string]bool{
		"198.18.0.16/32": false, "198.18.0.0/15": false, "198.19.255.255/32": false, "fd53:6167:7264::10/128": false, "fd53:6167:7264::/64": false,
		"198.0.0.0/8": true, "198.20.0.1/32": true, "fd53::/16": true, "fd53:6167:7265::/64": true,
	} {
		_, err := Compile([]Entry{{Proto: "tcp", Prefix: netip.MustParsePrefix(text), Ports: Ports{1, 1}}})
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
