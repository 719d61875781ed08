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
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
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
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if v, err := keyed(l.Path, "cgroup.events", "frozen"); err == nil && (v[0] == 1) == on {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("cgroup.events does not say that frozen is %v", on)
			}
		}
		if on {
			// The kernel says so just before the task sleeps (do_freezer_trap): on its way there it may be interrupted once more.
			var more time.Duration
			for range 3 {
				before := used()
				time.Sleep(30 * time.Millisecond)
				if more = used() - before; more == 0 {
					break
				}
			}
			if more != 0 {
				t.Errorf("used %v while it was frozen", more)
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
