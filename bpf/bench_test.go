package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// What calls cost a process of no run while none lives, while one lives, and a
// process of a run, by the sensor alone: ns a call, the least of twenty rounds.
func BenchmarkCall(b *testing.B) {
	h := newHost(b)
	p := h.open()
	dir := b.TempDir()
	for i := range timedFiles {
		if err := os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	measure := func(who string, leaf *os.File) {
		out, err := act(leaf, "time", dir).Output()
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			name, ns, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.Atoi(ns)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(n), who+"-"+name+"-ns")
		}
	}
	for b.Loop() {
		measure("native", h.outside())
		rec := h.start(p, RunConfig{})
		measure("bystander", h.outside())
		measure("observed", rec.leaf)
		rec.finish(b)
	}
}

func BenchmarkDecode(b *testing.B) {
	record := make([]byte, headerSize+bodies[Deny].size)
	record[0] = byte(Deny)
	record = append(record, "/etc/shadow\x00\x00\x00\x00\x00"...)
	var ev Event
	b.ReportAllocs()
	for b.Loop() {
		if err := ev.decode(record); err != nil {
			b.Fatal(err)
		}
	}
}

// What the standing programs cost: to open a set that has them, to make one, and
// a process of no run that renames files.
func BenchmarkStanding(b *testing.B) {
	for _, tier1 := range []bool{true, false} {
		b.Run(fmt.Sprintf("tier1=%v", tier1), func(b *testing.B) {
			h := newHost(b)
			h.cfg.tier1 = tier1
			start := time.Now()
			p := h.open()
			install := time.Since(start)
			b.Logf("tier %s", p.Tier())
			open, rename := time.Hour, time.Hour
			for b.Loop() {
				start := time.Now()
				again, err := Open(h.cfg)
				if err != nil {
					b.Fatal(err)
				}
				open = min(open, time.Since(start))
				again.Close()
				rename = min(rename, renameTime(b))
			}
			b.ReportMetric(float64(open.Nanoseconds())/1000, "open-us")
			b.ReportMetric(float64(rename.Nanoseconds()), "rename-ns")
			b.ReportMetric(install.Seconds()*1000, "install-ms")
		})
	}
}

// renameTime is how long a rename on a tmpfs takes.
func renameTime(b *testing.B) time.Duration {
	from, to := "/dev/shm/agentguard-bench-a", "/dev/shm/agentguard-bench-b"
	if err := os.WriteFile(from, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	defer os.Remove(from)
	const n = 1000
	start := time.Now()
	for range n / 2 {
		if err := errors.Join(os.Rename(from, to), os.Rename(to, from)); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / n
}
