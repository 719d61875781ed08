package bpf

import (
	"bytes"
	"testing"
	"time"
)

// The fast path: everything is pinned already.
func BenchmarkOpen(b *testing.B) {
	h := newHost(b)
	h.open()
	for b.Loop() {
		p, err := Open(h.cfg)
		if err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

// A run while another one lives, so that the tracepoints are attached already.
func BenchmarkStartClose(b *testing.B) {
	h := newHost(b)
	p := h.open()
	h.start(p, RunConfig{})
	id, err := cgroupID(h.leaf())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := p.Start(RunConfig{CgroupID: id})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// The only run of the host, 5 ms after the one before: the tracepoints are
// attached and detached.
func BenchmarkStartCloseAlone(b *testing.B) {
	h := newHost(b)
	p := h.open()
	id, err := cgroupID(h.leaf())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := p.Start(RunConfig{CgroupID: id})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		time.Sleep(5 * time.Millisecond)
		b.StartTimer()
	}
}

func BenchmarkDecode(b *testing.B) {
	record := make([]byte, headerSize+56)
	record[0] = byte(Deny)
	order.PutUint16(record[headerSize+48:], 12)
	record = append(record, "/etc/shadow\x00"...)
	record = append(record, bytes.Repeat([]byte{0}, 4)...)
	var ev Event
	b.ReportAllocs()
	for b.Loop() {
		if err := ev.decode(record); err != nil {
			b.Fatal(err)
		}
	}
}
