package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefusalText(t *testing.T) {
	for _, c := range []struct {
		r    Refusal
		want string
	}{
		{Refusal{What: "no command"}, "no command"},
		{Refusal{What: "cannot", Err: unix.EACCES}, "cannot: permission denied"},
		{Refusal{What: "cannot", Clause: "a.b (f:1:2)"}, "cannot [a.b (f:1:2)]"},
		{Refusal{What: "cannot", Remedy: "do this"}, "cannot; do this"},
		{Refusal{What: "cannot", Err: unix.ENOENT, Clause: "a.b (f:1:2)", Remedy: "do this"}, "cannot: no such file or directory [a.b (f:1:2)]; do this"},
	} {
		if got := c.r.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if c.r.Err != nil && !errors.Is(&c.r, c.r.Err) {
			t.Errorf("%v hides its cause", &c.r)
		}
	}
}

func TestStatusOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{errors.New("any"), 125},
		{&Refusal{What: "x"}, 125},
		{&Refusal{Status: StatusNotFound}, 127},
		{fmt.Errorf("wrapped: %w", &Refusal{Status: StatusNoExec}), 126},
		{errors.Join(errors.New("first"), &Refusal{Status: StatusNotFound}), 127},
		{&Refusal{Err: &Refusal{Status: StatusNotFound}}, 125}, // the outer one speaks
	} {
		if got := StatusOf(c.err); got != c.want {
			t.Errorf("%v: status %d, want %d", c.err, got, c.want)
		}
	}
	if StatusWall != 124 || StatusKilled != 137 {
		t.Error("statuses that users know have changed")
	}
}

func TestReleases(t *testing.T) {
	var r releases
	var order []string
	broken := errors.New("broken")
	for _, name := range []string{"first", "second", "third"} {
		r.push(name, func() error {
			order = append(order, name)
			if name != "first" {
				return broken
			}
			return nil
		})
	}
	err := r.run()
	if !slices.Equal(order, []string{"third", "second", "first"}) {
		t.Errorf("released in the order %v", order)
	}
	if err == nil || err.Error() != "third: broken\nsecond: broken" || !errors.Is(err, broken) {
		t.Errorf("errors %v", err)
	}
	if err := r.run(); err != nil || len(order) != 3 {
		t.Errorf("released twice: %v, %v", err, order)
	}
	r.push("later", func() error { order = append(order, "later"); return nil })
	if err := r.run(); err != nil || len(order) != 4 {
		t.Errorf("not usable again: %v, %v", err, order)
	}
}
