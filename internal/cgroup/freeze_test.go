package cgroup

import (
	"context"
	"testing"
	"time"
)

// A frozen leaf does nothing, goes on where it was, and can be killed while it
// is frozen.
func TestFreeze(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	cmd := born(t, l, "sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		user, system, err := l.CPU()
		if err != nil {
			t.Fatal(err)
		}
		return user + system
	}
	goesOn := func() bool {
		before := used()
		for range 400 {
			time.Sleep(5 * time.Millisecond)
			if used() > before {
				return true
			}
		}
		return false
	}
	for _, on := range []bool{true, false, true} {
		if err := l.Freeze(on); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			if v, err := keyed(l.Path, "cgroup.events", "frozen"); err == nil && (v[0] == 1) == on {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if on {
			before := used()
			time.Sleep(30 * time.Millisecond)
			if now := used(); now != before {
				t.Errorf("used %v while it was frozen", now-before)
			}
		} else if !goesOn() {
			t.Error("it does not go on")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := l.Kill(ctx); err != nil {
		t.Errorf("killing what is frozen: %v", err)
	}
	_ = cmd.Wait()
}
