package bpf

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
)

// Where the pins of a parent's programs are not seen, as in another mount namespace, nothing
// is built: two sets would refuse each other's runs. When the first have gone, it is.
func TestForeign(t *testing.T) {
	h := newHost(t)
	p := h.open()
	other := h.cfg
	other.PinDir = filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() {
		if err := unmount(other.PinDir); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if _, err := Open(other); !errors.Is(err, ErrForeign) {
			t.Errorf("%v", err)
		}
	}
	if sets, _ := filepath.Glob(filepath.Join(other.PinDir, setPrefix+"*")); len(sets) != 0 || !attached(t, h.cfg) {
		t.Errorf("left %q", sets)
	}
	if again, err := Open(h.cfg); err != nil || again.Close() != nil {
		t.Error(err)
	}
	if err := errors.Join(p.Close(), Release(h.cfg.PinDir, func() error { return nil })); err != nil {
		t.Fatal(err)
	}
	q, err := Open(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(h.cfg); !errors.Is(err, ErrForeign) {
		t.Errorf("the first, after the other: %v", err)
	}
}

// Of two that begin at once, each under a lock of its own, one at most keeps the parent.
func TestForeignAtOnce(t *testing.T) {
	h := newHost(t)
	other := h.cfg
	other.PinDir = filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() {
		if err := unmount(other.PinDir); err != nil {
			t.Error(err)
		}
	})
	var wg sync.WaitGroup
	opened := make([]*Programs, 2)
	for i, cfg := range []Config{h.cfg, other} {
		wg.Go(func() {
			p, err := Open(cfg)
			if err != nil && !errors.Is(err, ErrForeign) {
				t.Error(err)
			}
			opened[i] = p
		})
	}
	wg.Wait()
	kept := 0
	for _, p := range opened {
		if p != nil {
			kept++
			if err := errors.Join(p.onlyAttached(1), p.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	if kept > 1 {
		t.Error("both have the parent")
	}
}
