package supervisor

import (
	"sync"
	"testing"
)

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		left  int64
		takes []int
		want  []int
	}{
		{-1, []int{5, 1 << 30}, []int{5, 1 << 30}},
		{0, []int{5, 0}, []int{0, 0}},
		{7, []int{5, 5, 5}, []int{5, 2, 0}},
		{5, []int{5, 1}, []int{5, 0}},
	} {
		b := share{budget: &budget{left: c.left}}
		for i, n := range c.takes {
			if got := b.take(n); got != c.want[i] {
				t.Errorf("of %d: take %d of %d, got %d", c.left, i, n, got)
			}
		}
	}
	// Shared by two streams: no byte is given twice.
	b := share{budget: &budget{left: 100000}}
	var all sync.WaitGroup
	var got [8]int
	for i := range got {
		all.Go(func() {
			for range 5000 {
				got[i] += b.take(7)
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range got {
		total += n
	}
	if total != 100000 {
		t.Errorf("%d bytes of 100000 were given", total)
	}
}

// A flood on one stream leaves the other its floor, which is small beside what both share, and is nobody else's.
func TestBudgetFloor(t *testing.T) {
	for _, c := range []struct{ most, flooded, other int64 }{
		{1 << 20, 1 << 20, 64 << 10},
		{16 << 20, 16 << 20, 64 << 10},
		{160, 160, 10},
		{10, 10, 0},
		{0, 0, 0},
		{-1, 32 << 20, 32 << 20},
	} {
		b := newBudget(c.most)
		flood, other := share{budget: b}, share{budget: b}
		var kept [2]int64
		for range 1 << 10 {
			for i, s := range []*share{&flood, &flood, &flood} {
				if i == 2 && kept[0] >= c.most { // the other one comes when nothing is left
					s = &other
				}
				n := int64(s.take(32 << 10))
				if s == &other {
					kept[1] += n
				} else {
					kept[0] += n
				}
			}
			if c.most < 0 && kept[0] >= c.flooded {
				break
			}
		}
		if c.most >= 0 && (kept[0] != c.flooded || kept[1] != c.other) {
			t.Errorf("%+v: %v", c, kept)
		}
	}
	b := newBudget(320) // who has had its floor of what is shared gets no more
	one, two := share{budget: b}, share{budget: b}
	if n := two.take(30); n != 30 {
		t.Error(n)
	}
	if n := one.take(1000); n != 290 {
		t.Error(n)
	}
	if n := two.take(5); n != 0 {
		t.Error(n)
	}
}
