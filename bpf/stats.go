package bpf

import (
	"fmt"
	"time"
)

// Stats is what the kernel counted for a run.
type Stats struct {
	Calls       []CallCount       // system calls of the command, by number; those that were made
	ThreadExits uint64            // threads that ended, besides the last of each process
	FileBytes   uint64            // written to regular files, or reached for by truncate and fallocate; mappings of what was there before are not seen
	Tx, Rx      Traffic           // IP packets, headers included; loopback counts on both sides
	TxRefused   uint64            // packets to another destination than loopback
	Classes     [classes]Delivery // by Class
	Dropped     []TypeCount       // lost for want of room, by type; the sum is that of Classes
	LostRepeats uint64            // acts that were lost with a Repeat, besides one each
	Waits       uint64            // how often a task waited for the reader
	WaitTime    time.Duration     // of all tasks
	Numbered    []uint64          // events by CPU, kept or lost: the last sequence number is one less
	Read        uint64            // events that Read has delivered
	Late        uint64            // of these, counted as lost before
	ReadTime    time.Duration     // CPU time of Read, and of what it called
	Gaps        []Gap             // where events are missing that Read has not delivered as Lost
	Freezes     uint64            // how often the run was frozen (RunConfig.Freeze)
	FrozenTime  time.Duration
	BrakeErr    error  // why it is not frozen any more
	Missed      uint64 // at most so many events and counted calls were lost since the kernel skipped a program, here or in any process of the host: above 0, the record is incomplete
}

// CallCount counts one system call by its number NR: Calls that ended, Errors of
// them. The number 511 stands for it and all above, and for 32-bit calls.
type CallCount struct {
	NR            int
	Calls, Errors uint64
	Bytes         uint64 // read, written, sent or received: sum of the results of such calls
}

// TypeCount is N, the number of events of one type.
type TypeCount struct {
	Type Type
	N    uint64
}

// Traffic counts Packets and their Bytes, with the IP header.
type Traffic struct{ Packets, Bytes uint64 }

// Delivery counts events: Sent + Dropped is every event there was. DroppedBytes is
// what those would have filled of the ring.
type Delivery struct{ Sent, Dropped, DroppedBytes uint64 }

// Stats reads the run's counters, until Close. They are exact when the cgroup is empty.
func (r *Run) Stats() (Stats, error) {
	cpus, err := r.slot.read()
	if err != nil {
		return Stats{}, fmt.Errorf("bpf: counters: %w", err)
	}
	missed, err := r.missed()
	if err != nil {
		return Stats{}, fmt.Errorf("bpf: program statistics: %w", err)
	}
	read, late, gaps := r.gaps.rest(cpus)
	var numbered []uint64
	for i := range cpus {
		numbered = append(numbered, cpus[i].Seq)
	}
	sum := &cpus[0] // of 12 KB: another would not fit on the stack
	for i := range cpus[1:] {
		sum.add(&cpus[1+i], 1)
	}
	s := sum.stats()
	s.Missed, s.Numbered = missed, numbered
	s.Read, s.Late, s.Gaps = read, late, gaps
	s.ReadTime = time.Duration(r.readTime.Load())
	s.Freezes, s.FrozenTime, s.BrakeErr = r.brake.report()
	return s, nil
}

// FileBytes is the same number as in Stats, for a look while the run lives.
func (r *Run) FileBytes() (uint64, error) {
	cpus, err := r.slot.read()
	if err != nil {
		return 0, fmt.Errorf("bpf: counters: %w", err)
	}
	var n uint64
	for i := range cpus {
		n += cpus[i].FileBytes
	}
	return n, nil
}

// Dropped is how many events were lost so far for want of room in the ring.
func (r *Run) Dropped() (uint64, error) {
	cpus, err := r.slot.read()
	if err != nil {
		return 0, fmt.Errorf("bpf: counters: %w", err)
	}
	var n uint64
	for i := range cpus {
		for _, class := range cpus[i].Class {
			n += class.Dropped
		}
	}
	return n, nil
}

// add adds o, sign times: with all bits set it subtracts.
func (c *counterValue) add(o *counterValue, sign uint64) {
	c.Seq += sign * o.Seq
	for i := range c.Class {
		c.Class[i].Sent += sign * o.Class[i].Sent
		c.Class[i].Dropped += sign * o.Class[i].Dropped
		c.Class[i].DroppedBytes += sign * o.Class[i].DroppedBytes
	}
	for i := range c.Dropped {
		c.Dropped[i] += sign * o.Dropped[i]
	}
	c.Waits += sign * o.Waits
	c.WaitTime += sign * o.WaitTime
	c.LostRepeats += sign * o.LostRepeats
	c.TxPackets += sign * o.TxPackets
	c.TxBytes += sign * o.TxBytes
	c.RxPackets += sign * o.RxPackets
	c.RxBytes += sign * o.RxBytes
	c.TxRefused += sign * o.TxRefused
	c.ThreadExits += sign * o.ThreadExits
	c.FileBytes += sign * o.FileBytes
	for i := range c.Call {
		c.Call[i].Calls += sign * o.Call[i].Calls
		c.Call[i].Errors += sign * o.Call[i].Errors
		c.Call[i].Bytes += sign * o.Call[i].Bytes
	}
}

func (c *counterValue) stats() Stats {
	s := Stats{
		ThreadExits: c.ThreadExits,
		FileBytes:   c.FileBytes,
		Tx:          Traffic{c.TxPackets, c.TxBytes},
		Rx:          Traffic{c.RxPackets, c.RxBytes},
		TxRefused:   c.TxRefused,
		Waits:       c.Waits,
		WaitTime:    time.Duration(c.WaitTime),
		LostRepeats: c.LostRepeats,
	}
	for t, n := range c.Dropped {
		if n > 0 {
			s.Dropped = append(s.Dropped, TypeCount{Type(t), n})
		}
	}
	for i, class := range c.Class {
		s.Classes[i] = Delivery(class)
	}
	for nr := range c.Call {
		if call := &c.Call[nr]; call.Calls > 0 {
			s.Calls = append(s.Calls, CallCount{nr, call.Calls, call.Errors, call.Bytes})
		}
	}
	return s
}
