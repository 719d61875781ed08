package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A slot is a ring and a set of counters, lent to one run after the other: an
// update of a map of maps waits for an RCU grace period (5-30 ms), which only
// the first run in each slot pays. Who runs in a slot holds a flock on its
// file, so that the end of a killed supervisor shows.

const maxSlots = 256 // SLOTS of c/run.h

// errNoSlot means that all slots are lent.
var errNoSlot = fmt.Errorf("%d runs are live already", maxSlots)

// runValue is struct run of c/abi.h.
type runValue struct {
	Slot      uint32
	Flags     uint32
	Watermark uint32
	Brake     uint32
	Room      [classes]uint32
	InitTGID  uint32
	Started   uint32
	Noted     uint32
	Filters   uint32
	_         uint32
	Domain    uint64
}

type callCounter struct{ Calls, Errors, Bytes uint64 }

// counterValue is struct counters of c/abi.h.
type counterValue struct {
	Seq         uint64
	Class       [classes]struct{ Sent, Dropped, DroppedBytes uint64 }
	Dropped     [eventTypes]uint64
	Waits       uint64
	WaitTime    uint64 // ns
	LostRepeats uint64
	TxPackets   uint64
	TxBytes     uint64
	RxPackets   uint64
	RxBytes     uint64
	TxRefused   uint64
	ThreadExits uint64
	FileBytes   uint64
	Call        [callCount]callCounter
}

const counterBytes = uint32(unsafe.Sizeof(counterValue{}))

type slot struct {
	index  uint32
	lock   *os.File
	ring   *ebpf.Map
	counts *ebpf.Map
	base   []counterValue // what earlier runs counted, by CPU: to read it is ten times cheaper than to write zeros
}

func (p *Programs) slotPath(i uint32) string {
	return lockPath(p.cfg.PinDir, p.id, strconv.Itoa(int(i)))
}

// takeSlot finds a slot that no live run and no entry of runs uses: one whose
// ring has the size, or which has none yet, in preference to one whose ring has
// to be replaced.
func (p *Programs) takeSlot(ringBytes int) (*slot, error) {
	used, err := p.sweepRuns()
	if err != nil {
		return nil, err
	}
	for _, replace := range []bool{false, true} {
		for i := range uint32(maxSlots) {
			if used[i] {
				continue
			}
			s, err := p.trySlot(i, ringBytes, replace)
			if s != nil || err != nil {
				return s, err
			}
		}
	}
	return nil, errNoSlot
}

// trySlot takes one slot; nil when another run holds it, or when its ring has
// another size and may not be replaced.
func (p *Programs) trySlot(i uint32, ringBytes int, replace bool) (*slot, error) {
	lock, err := tryLock(p.slotPath(i))
	if lock == nil {
		return nil, err
	}
	s := &slot{index: i, lock: lock}
	if s.ring, err = innerMap(p.rings, i); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.ring != nil && s.ring.MaxEntries() != uint32(ringBytes) {
		if !replace {
			return nil, s.close()
		}
		if err := s.ring.Close(); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		s.ring = nil
	}
	if err := p.fillSlot(s, ringBytes); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// sweepRuns removes the entries of runs whose owner and whose processes are
// gone, and returns the slots of all others. A run whose supervisor was killed
// keeps its entry while it has processes: they stay bound.
func (p *Programs) sweepRuns() (map[uint32]bool, error) {
	used := map[uint32]bool{}
	var dead []uint64
	var id uint64
	var value runValue
	entries := p.runs.Iterate()
	for entries.Next(&id, &value) {
		gone, err := p.isDead(id, value.Slot)
		if err != nil {
			return nil, err
		}
		if gone {
			dead = append(dead, id)
		} else {
			used[value.Slot] = true
		}
	}
	if err := entries.Err(); err != nil {
		return nil, err
	}
	for _, id := range dead {
		if err := p.runs.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, err
		}
	}
	return used, p.sweepRules(dead)
}

func (p *Programs) isDead(id uint64, slot uint32) (bool, error) {
	lock, err := tryLock(p.slotPath(slot))
	if err != nil || lock == nil {
		return false, err
	}
	defer lock.Close()
	busy, err := cgroupBusy(p.parent, id)
	return err == nil && !busy, err
}

// fillSlot opens the counters that the slot has from an earlier run, and makes
// what it lacks.
func (p *Programs) fillSlot(s *slot, ringBytes int) error {
	var err error
	if s.counts, err = innerMap(p.counts, s.index); err != nil {
		return err
	}
	if err := p.makeMissing(s, ringBytes); err != nil {
		return err
	}
	s.base, err = readCounters(s.counts.FD())
	return err
}

// makeMissing makes the ring and the counters that the slot lacks, both at once
// since each waits for the same grace period.
func (p *Programs) makeMissing(s *slot, ringBytes int) error {
	done := make(chan error, 2)
	pending := 0
	put := func(outer, inner *ebpf.Map) {
		pending++
		go func() { done <- outer.Put(s.index, inner) }()
	}
	var errs []error
	if s.ring == nil {
		ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ring", Type: ebpf.RingBuf, MaxEntries: uint32(ringBytes)})
		if err != nil {
			return err
		}
		s.ring = ring
		put(p.rings, ring)
	}
	if s.counts == nil {
		counts, err := ebpf.NewMap(&ebpf.MapSpec{
			Name: "counts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: counterBytes, MaxEntries: 1,
		})
		if err == nil {
			s.counts = counts
			put(p.counts, counts)
		}
		errs = append(errs, err)
	}
	for range pending {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// innerMap opens the map that a map of maps has at index; nil if there is none.
func innerMap(outer *ebpf.Map, index uint32) (*ebpf.Map, error) {
	var inner *ebpf.Map
	err := outer.Lookup(index, &inner)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return inner, err
}

// read returns what the run counted so far, by CPU.
func (s *slot) read() ([]counterValue, error) {
	cpus, err := readCounters(s.counts.FD())
	if err != nil {
		return nil, err
	}
	for i := range cpus {
		cpus[i].add(&s.base[i], ^uint64(0))
	}
	return cpus, nil
}

func (s *slot) close() error {
	var errs []error
	for _, m := range []*ebpf.Map{s.ring, s.counts} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// reserved is what the lock of a slot holds while a reserve has it.
const reserved = "reserve"

// mark says in the lock of the slot whether it is a reserve's. The lock of the set is held.
func (s *slot) mark(reserve bool) error {
	if err := s.lock.Truncate(0); err != nil || !reserve {
		return err
	}
	_, err := s.lock.WriteAt([]byte(reserved), 0)
	return err
}

// liveSlots counts the slots of a set that live runs hold. A reserve is none: it finds that
// its programs are gone when it begins ([Run.Begin]), and nothing of it has run.
func liveSlots(pinDir, set string) (int, error) {
	files, err := os.ReadDir(lockPath(pinDir, set))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	live := 0
	for _, file := range files {
		lock, err := tryLock(filepath.Join(lockPath(pinDir, set), file.Name()))
		if err != nil {
			return live, err
		}
		if lock != nil {
			lock.Close()
			continue
		}
		if mark, err := os.ReadFile(filepath.Join(lockPath(pinDir, set), file.Name())); err != nil || string(mark) != reserved {
			live++
		}
	}
	return live, nil
}
