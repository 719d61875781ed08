package bpf

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A reserve sees what is born into it, is denied the network, has nobody pay for calls,
// and is a run once it begins.
func TestReserve(t *testing.T) {
	h := newHost(t)
	p := h.open()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Reserve(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if l, err := p.joinLink(); l != nil || err != nil {
		t.Fatalf("sys_exit is attached while nothing runs: %v, %v", l, err)
	}
	if err := r.Begin(RunConfig{}); err == nil {
		t.Error("it begins before its processes are born")
	}
	rec := &recorder{run: r, leaf: leaf, done: make(chan error, 1)}
	if got := rec.lines(t, "egress"); got["tcp4"] != int(unix.EPERM) {
		t.Errorf("tcp4 of a reserve: %d", got["tcp4"])
	}
	if err := r.Rest(); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []RunConfig{{RingBytes: minRing}, {Freeze: func(bool) error { return nil }}} {
		if r.Begin(cfg) == nil {
			t.Errorf("%+v: the ring is another", cfg)
		}
	}
	if err := r.Begin(RunConfig{ChangesOnly: true, Position: func() uint64 { return 7 }}); err != nil {
		t.Fatal(err)
	}
	if l, err := p.joinLink(); l == nil || err != nil {
		t.Errorf("sys_exit is not attached: %v", err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
	go func() { rec.done <- r.Read(rec.keep) }()
	var value runValue
	if err := p.runs.Lookup(id, &value); err != nil || value.Flags != runChanges {
		t.Errorf("flags %d, %v", value.Flags, err)
	}
	events, _ := rec.finish(t)
	if !slices.ContainsFunc(events, func(e Event) bool { return e.Type == Exec }) {
		t.Error("what was born into the reserve was not seen")
	}
}

// mended opens the damaged set of p anew, which a reserve, unlike a run, does not keep from it.
func mended(t *testing.T, h *host, p *Programs) {
	t.Helper()
	again := h.open()
	if again.meta == p.meta {
		t.Error("the damaged programs are in use")
	}
	id, err := cgroupID(h.leaf())
	if err != nil {
		t.Fatal(err)
	}
	next, err := again.Reserve(id)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := next.Rest(); err != nil {
		t.Fatal(err)
	}
	if err := next.Begin(RunConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(again.pin("l_connect4")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(again.cfg); err == nil || !strings.Contains(err.Error(), "1 live runs") {
		t.Errorf("a set of a live run was replaced: %v", err)
	}
}

// A reserve of programs that were pinned anew, exchanged or detached does not begin.
func TestReserveOfOtherPrograms(t *testing.T) {
	for name, change := range map[string]func(p *Programs) error{
		"gone":     func(p *Programs) error { return removePins(p.pin("")) },
		"detached": func(p *Programs) error { return os.Remove(p.pin("l_connect4")) },
		"swapped": func(p *Programs) error {
			return unix.Renameat2(unix.AT_FDCWD, p.pin("l_bind4"), unix.AT_FDCWD, p.pin("l_bind6"), unix.RENAME_EXCHANGE)
		},
		"another build": func(p *Programs) error { return os.Remove(p.pin("meta")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			p := h.open()
			id, err := cgroupID(h.leaf())
			if err != nil {
				t.Fatal(err)
			}
			r, err := p.Reserve(id)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := r.Rest(); err != nil {
				t.Fatal(err)
			}
			if err := change(p); err != nil {
				t.Fatal(err)
			}
			if err := r.Begin(RunConfig{}); err == nil {
				t.Error("it begins")
			}
			mended(t, h, p)
		})
	}
}
