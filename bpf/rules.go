package bpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Rule is a destination that a run may reach besides loopback. Of two rules
// whose prefixes contain an address the narrower one alone holds.
type Rule struct {
	Proto  uint8 // unix.IPPROTO_TCP or IPPROTO_UDP
	Prefix netip.Prefix
	Ports  []PortRange // at most MaxRanges
}

// PortRange is Low to High, both of them in it.
type PortRange struct{ Low, High uint16 }

// MaxRanges bounds the port ranges of one rule: RULE_RANGES of c/rules.h.
const MaxRanges = 16

// ruleKey and ruleValue are struct rule_key and struct rule of c/rules.h.
type ruleKey struct {
	Bits  uint32
	Proto uint32
	Run   uint64
	Addr  [16]byte
}

type ruleValue struct {
	Port [MaxRanges]PortRange
}

const ruleFixedBits = 96 // RULE_FIXED_BITS: protocol and run

func (r *Rule) key(run uint64) ruleKey {
	bits := r.Prefix.Bits()
	if r.Prefix.Addr().Is4() {
		bits += 96 // as a mapped address
	}
	return ruleKey{Bits: uint32(ruleFixedBits + bits), Proto: uint32(r.Proto), Run: run, Addr: r.Prefix.Addr().As16()}
}

func (r *Rule) value() (ruleValue, error) {
	var v ruleValue
	if len(r.Ports) > MaxRanges || !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() {
		return v, fmt.Errorf("rule for %v with %d port ranges: %w", r.Prefix, len(r.Ports), unix.EINVAL)
	}
	for i := copy(v.Port[:], r.Ports); i < MaxRanges; i++ {
		v.Port[i] = PortRange{Low: 1, High: 0} // no port
	}
	return v, nil
}

// fillRules puts the rules of a run into a map of rules.
func fillRules(m *ebpf.Map, run uint64, rules []Rule) error {
	keys, values := make([]ruleKey, 0, len(rules)), make([]ruleValue, 0, len(rules))
	for i := range rules {
		v, err := rules[i].value()
		if err != nil {
			return err
		}
		keys, values = append(keys, rules[i].key(run)), append(values, v)
	}
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(keys, values, nil)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("all live runs together have too many destinations: %w", err)
	}
	return err
}

// openRules opens the map that the cgroup programs judge by. Runs without rules
// never need it.
func (p *Programs) openRules() (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(p.pin("allow"), nil)
}

// Allow lets the run reach what the rules say; it is called once, for a run
// that was started with Egress. Close takes the rules back.
func (r *Run) Allow(rules []Rule) error {
	if len(rules) == 0 {
		return nil
	}
	m, err := r.programs.openRules()
	if err != nil {
		return fmt.Errorf("bpf: rules: %w", err)
	}
	defer m.Close()
	r.rules = rules // from here on Close has something to remove
	if err := fillRules(m, r.id, rules); err != nil {
		return fmt.Errorf("bpf: rules: %w", err)
	}
	return nil
}

// leaveRules removes what Allow put in.
func (r *Run) leaveRules() error {
	if len(r.rules) == 0 {
		return nil
	}
	m, err := r.programs.openRules()
	if err != nil {
		return err
	}
	defer m.Close()
	keys := make([]ruleKey, 0, len(r.rules))
	for i := range r.rules {
		keys = append(keys, r.rules[i].key(r.id))
	}
	r.rules = nil
	return deleteRules(m, keys)
}

// deleteRules removes keys from a map; those that are not there, as after a filling that
// failed half-way, are passed over.
func deleteRules(m *ebpf.Map, keys []ruleKey) error {
	for len(keys) > 0 {
		n, err := m.BatchDelete(keys, nil)
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		keys = keys[min(n+1, len(keys)):]
	}
	return nil
}

// sweepRules removes the rules of runs whose supervisor was killed. Rules of a
// run that is not entered do nothing: this gives back their room.
func (p *Programs) sweepRules(dead []uint64) error {
	if len(dead) == 0 {
		return nil
	}
	m, err := p.openRules()
	if err != nil {
		return err
	}
	defer m.Close()
	gone := map[uint64]bool{}
	for _, id := range dead {
		gone[id] = true
	}
	var key ruleKey
	var value ruleValue
	var keys []ruleKey
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		if gone[key.Run] {
			keys = append(keys, key)
		}
	}
	return errors.Join(entries.Err(), deleteRules(m, keys))
}
