package bpf

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"
)

// The number is the one that a mounted tracefs shows, where there is one.
func TestExitEvent(t *testing.T) {
	require(t)
	id, err := exitEvent()
	if err != nil || id == 0 {
		t.Fatalf("%d, %v", id, err)
	}
	if text, err := os.ReadFile("/sys/kernel/tracing/events/raw_syscalls/sys_exit/id"); err == nil && strings.TrimSpace(string(text)) != strconv.FormatUint(id, 10) {
		t.Errorf("%d, tracefs says %s", id, text)
	}
}

// By way of perf the sensor sees the same: counts, refusals, opens; runs share
// the link, and the last one detaches it.
func TestExitByPerf(t *testing.T) {
	h := newHost(t)
	h.cfg.preempted = true
	p := h.open()
	if kind := p.tracing[3].Type(); kind != ebpf.TracePoint || len(p.tracing) != len(tracingNames) {
		t.Fatalf("%s, %d programs", kind, len(p.tracing))
	}
	first := h.start(p, RunConfig{RingBytes: 8 << 20})
	events, stats := h.observe(p, RunConfig{RingBytes: 8 << 20}, "deny-flood", denyDir(t), "5000")
	if got := len(ofType(events, Deny)); uint64(got)+stats.Missed < 5000 {
		t.Errorf("%d refusals of 5000, %d missed", got, stats.Missed)
	}
	if c := calls(stats, unix.SYS_OPENAT); c.Errors+stats.Missed < 5000 {
		t.Errorf("%+v", c)
	}
	if n := len(ofType(events, Exec)); n != 1 {
		t.Errorf("%d execs", n)
	}
	if len(ofType(events, File)) == 0 {
		t.Error("no file was opened")
	}
	first.finish(t)
	checkIdle(t, p)
}
