package bpf

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ruleMap is a map of rules of a test's own, with room for so many.
func ruleMap(t *testing.T, room uint32) *ebpf.Map {
	t.Helper()
	require(t)
	spec, err := loadLookup()
	if err != nil {
		t.Fatal(err)
	}
	ms := spec.Maps["edge"]
	ms.MaxEntries = room
	m, err := ebpf.NewMap(ms)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func contents(t *testing.T, m *ebpf.Map) map[ruleKey]ruleValue {
	t.Helper()
	out := map[ruleKey]ruleValue{}
	var k ruleKey
	var v ruleValue
	entries := m.Iterate()
	for entries.Next(&k, &v) {
		out[k] = v
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// randomRules have keys of their own each.
func randomRules(n int) []Rule {
	random := rand.New(rand.NewPCG(3, 4))
	seen := map[ruleKey]bool{}
	var out []Rule
	for len(out) < n {
		var a [16]byte
		for i := range a {
			a[i] = byte(random.Uint32())
		}
		r := Rule{Proto: unix.IPPROTO_TCP, Prefix: netip.PrefixFrom(netip.AddrFrom16(a), 64+random.IntN(65)).Masked()}
		if random.IntN(2) == 0 {
			r = Rule{Proto: unix.IPPROTO_UDP, Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte(a[:4])), 8+random.IntN(25)).Masked()}
		}
		for range 1 + random.IntN(MaxRanges) {
			low := uint16(random.Uint32())
			r.Ports = append(r.Ports, PortRange{low, low + uint16(random.IntN(int(^low)+1))})
		}
		if k := r.key(0); !seen[k] {
			seen[k] = true
			out = append(out, r)
		}
	}
	return out
}

// A filling is exact: every rule is there as it was given, and nothing else is.
func TestFillRules(t *testing.T) {
	m := ruleMap(t, 1<<18)
	rules := randomRules(2000)
	if err := fillRules(m, 7, rules); err != nil {
		t.Fatal(err)
	}
	got := contents(t, m)
	var keys []ruleKey
	for i := range rules {
		want, err := rules[i].value()
		if err != nil {
			t.Fatal(err)
		}
		k := rules[i].key(7)
		if v, ok := got[k]; !ok || v != want {
			t.Fatalf("%+v: %v %+v", rules[i], ok, v)
		}
		keys = append(keys, k)
	}
	if len(got) != len(rules) {
		t.Errorf("%d rules are there, of %d", len(got), len(rules))
	}
	// Some are gone already, at the beginning, in the middle and at the end.
	for _, i := range []int{0, 1, 900, 1999} {
		if err := m.Delete(keys[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := deleteRules(m, keys); err != nil || len(contents(t, m)) != 0 {
		t.Errorf("%v, and %d rules are left", err, len(contents(t, m)))
	}
}

// A filling that fails half-way is an error, with which a run does not start, and what it
// has put in can be taken out again.
func TestFillRulesHalfWay(t *testing.T) {
	const room = 100
	m := ruleMap(t, room)
	rules := randomRules(2 * room)
	if err := fillRules(m, 7, rules); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("too many rules: %v", err)
	}
	if n := len(contents(t, m)); n == 0 || n > room {
		t.Errorf("%d rules are there, and there is room for %d", n, room)
	}
	var keys []ruleKey
	for i := range rules {
		keys = append(keys, rules[i].key(7))
	}
	if err := deleteRules(m, keys); err != nil || len(contents(t, m)) != 0 {
		t.Errorf("%v, and %d rules are left", err, len(contents(t, m)))
	}
}
