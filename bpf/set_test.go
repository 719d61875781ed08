package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

func TestOpenIsIdempotentAndConcurrent(t *testing.T) {
	h := newHost(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, err := Open(h.cfg)
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sets, err := filepath.Glob(filepath.Join(h.cfg.PinDir, setPrefix+"*"))
	if err != nil || len(sets) != 1 || !attached(t, h.cfg) {
		t.Errorf("sets %v %v", sets, err)
	}
}

// What does not verify is built again: a pin that is gone, a link that joins another program.
func TestDamagedSetIsReplaced(t *testing.T) {
	for name, damage := range map[string]func(p *Programs) error{
		"link gone": func(p *Programs) error { return os.Remove(p.pin("l_connect4")) },
		"standing link gone": func(p *Programs) error {
			if !p.resolves { // there is none
				return os.Remove(p.pin("l_connect4"))
			}
			return os.Remove(p.pin("l_path_rename"))
		},
		"process link gone": func(p *Programs) error { return os.Remove(p.pin("l_process_fork")) },
		"process links swapped": func(p *Programs) error {
			return unix.Renameat2(unix.AT_FDCWD, p.pin("l_process_fork"), unix.AT_FDCWD, p.pin("l_process_exec"), unix.RENAME_EXCHANGE)
		},
		"map gone":     func(p *Programs) error { return os.Remove(p.pin("runs")) },
		"program gone": func(p *Programs) error { return os.Remove(p.pin("p_sys_exit")) },
		"other program": func(p *Programs) error {
			if err := os.Remove(p.pin("l_connect4")); err != nil {
				return err
			}
			return os.Rename(p.pin("l_connect6"), p.pin("l_connect4"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !slices.Contains([]string{"standing link gone", "program gone", "other program"}, name) {
				return // twice all programs through the verifier of an emulated machine
			}
			h := newHost(t)
			if err := damage(h.open()); err != nil {
				t.Fatal(err)
			}
			p := h.open()
			if !attached(t, h.cfg) {
				t.Error("not attached again")
			}
			onlyOnce(t, p)
			rec := h.start(p, RunConfig{})
			if got := rec.lines(t, "egress"); got["tcp4"] != int(unix.EPERM) {
				t.Errorf("tcp4: %d", got["tcp4"])
			}
			rec.finish(t)
		})
	}
}

// onlyOnce checks that no program of a set that gave way is still attached: it would refuse what it does not know.
func onlyOnce(t *testing.T, p *Programs) {
	t.Helper()
	for i, name := range cgroupNames[:optionalFrom] {
		r, err := link.QueryPrograms(link.QueryOptions{Target: int(p.parent.Fd()), Attach: attachTypes[i]})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Programs) != 1 {
			t.Errorf("%s: %d programs are attached", name, len(r.Programs))
		}
	}
}

// A set of another build below the same parent gives way, unless it has live runs.
func TestOlderBuild(t *testing.T) {
	h := newHost(t)
	p := h.open()
	older := setPrefix + "older"
	if err := os.Rename(p.pin(""), filepath.Join(h.cfg.PinDir, older)); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(lockPath(h.cfg.PinDir, older, "0"))
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	if _, err := Open(h.cfg); err == nil || !strings.Contains(err.Error(), "1 live runs") {
		t.Errorf("beside a live run of another build: %v", err)
	}
	lock.Close()
	if _, err := p.Start(RunConfig{CgroupID: 1}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a run with programs that are no longer pinned: %v", err)
	}
	h.open()
	if _, err := os.Stat(filepath.Join(h.cfg.PinDir, older)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the older set is still there: %v", err)
	}
}

// The sets of parents that are gone are removed; those of other parents stay.
func TestStaleSetsAreRemoved(t *testing.T) {
	h := newHost(t)
	first := h.open()
	other := h.cfg
	other.Parent = h.cfg.Parent + "-2"
	if err := os.Mkdir(other.Parent, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := os.Stat(first.pin("runs")); err != nil {
		t.Errorf("the set of another parent: %v", err)
	}
	for range 2 { // the id of the new directory is a new one
		if err := removeCgroup(other.Parent); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(other.Parent, 0o755); err != nil {
			t.Fatal(err)
		}
		again, err := Open(other)
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	}
	if err := removeCgroup(other.Parent); err != nil {
		t.Fatal(err)
	}
	sets, err := filepath.Glob(filepath.Join(h.cfg.PinDir, setPrefix+"*"))
	if err != nil || len(sets) != 2 {
		t.Errorf("%d sets, want 2: %v %v", len(sets), sets, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	for name, cfg := range map[string]Config{
		"no parent":        {PinDir: h.cfg.PinDir, Parent: filepath.Join(dir, "none"), Level: 2},
		"not a cgroup":     {PinDir: h.cfg.PinDir, Parent: dir, Level: 2},
		"level":            {PinDir: h.cfg.PinDir, Parent: h.cfg.Parent},
		"pins not private": {PinDir: public(t), Parent: h.cfg.Parent, Level: 2},
	} {
		if p, err := Open(cfg); err == nil {
			p.Close()
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), "MEMLOCK") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// public is a bpffs that everybody may enter.
func public(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestNothingIsLeftOpen(t *testing.T) {
	h := newHost(t)
	p := h.open()
	h.observe(p, RunConfig{}, "getppid", "1")
	before, leaves := openFiles(t), h.leaves
	for range 5 {
		h.observe(p, RunConfig{}, "getppid", "1")
		q, err := Open(h.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	after := openFiles(t) - (h.leaves - leaves) // those the host keeps
	if after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestPlainErrors(t *testing.T) {
	inner := fmt.Errorf("load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	err := plain(fmt.Errorf("program x: %w", inner))
	if got := err.Error(); got != "program x: load program: operation not permitted" || !errors.Is(err, unix.EPERM) {
		t.Errorf("%v", got)
	}
}

// Released programs are detached and gone; a refusal keeps them.
func TestRelease(t *testing.T) {
	h := newHost(t)
	p := h.open()
	if err := Release(h.cfg.PinDir, func() error { return unix.EBUSY }); !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v", err)
	}
	if sets, _ := filepath.Glob(filepath.Join(h.cfg.PinDir, setPrefix+"*")); len(sets) != 1 || !attached(t, h.cfg) {
		t.Errorf("after a refusal: %q", sets)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for range 2 { // the second finds nothing
		if err := Release(h.cfg.PinDir, func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if sets, _ := filepath.Glob(filepath.Join(h.cfg.PinDir, setPrefix+"*")); len(sets) != 0 {
		t.Errorf("left: %q", sets)
	}
	h.open() // loads them again
}
