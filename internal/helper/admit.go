package helper

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Limits of what a uid may ask for. Root of the host is not among the callers.
const (
	MaxPerUser = 128  // requests at once, runs included
	MaxAtOnce  = 1024 // of all users
	burst      = 256  // requests that may come together
	perSecond  = 64   // and that are given back each second

	lineBurst     = 32 // refusals that may have a line of the log together
	linePerSecond = 1
	unsaidEvery   = 10 * time.Second // the others are a number in one line, so often
)

// gate counts the requests of each user. Uids that a user has been given besides its own
// (subuid(5)) are its own here.
type gate struct {
	now   func() time.Time
	owner func(uid int) int
	later func(time.Duration, func())
	tell  func(uid, unsaid int)

	mu    sync.Mutex
	all   int
	users map[int]*account
}

type account struct {
	owner  int
	live   int
	tokens bucket
	lines  bucket
	told   time.Time // when the last refusal to let one in had a line
	unsaid int       // refusals without one
}

// bucket is how much may come together, and fills up again with time.
type bucket struct {
	left float64
	seen time.Time
}

func (b *bucket) take(now time.Time, most, rate float64) bool {
	b.fill(now, most, rate)
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (b *bucket) fill(now time.Time, most, rate float64) {
	if b.seen.IsZero() {
		b.left = most
	} else {
		b.left = min(most, b.left+rate*now.Sub(b.seen).Seconds())
	}
	b.seen = now
}

// newGate returns a gate that tells how many refusals of a user have no line, some time
// after the first of them.
func newGate(owner func(uid int) int, tell func(uid, unsaid int)) *gate {
	return &gate{
		now: time.Now, owner: owner, tell: tell, users: map[int]*account{},
		later: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}
}

func (g *gate) account(uid int) *account {
	owner := g.owner(uid)
	a := g.users[owner]
	if a == nil {
		a = &account{owner: owner}
		g.users[owner] = a
	}
	return a
}

// enter admits a request of the account, which leave ends: who owns a uid may change in
// between. loud says that its refusal, by whomever, goes into the log; where it does not,
// unsaid counts it.
func (g *gate) enter(uid int) (a *account, loud bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	a = g.account(uid)
	switch {
	case a.live >= MaxPerUser:
		err = fmt.Errorf("user %d has %d requests under way, and more are not taken; wait until one has ended", a.owner, a.live)
	case g.all >= MaxAtOnce:
		err = fmt.Errorf("the helper has %d requests under way, and more are not taken; wait until one has ended", g.all)
	case !a.tokens.take(now, burst, perSecond):
		err = fmt.Errorf("user %d asks too often: %d requests a second are taken; wait a moment", a.owner, perSecond)
	default:
		a.live++
		g.all++
		a.lines.fill(now, lineBurst, linePerSecond)
		return a, a.lines.left >= 1, nil
	}
	// These are all alike: one a second is enough, and there always is one.
	if loud = now.Sub(a.told) >= time.Second; loud {
		a.told = now
	} else {
		g.count(a)
	}
	return nil, loud, err
}

// leave ends a request. refused says that it was refused, and said that the log has a line
// of that.
func (g *gate) leave(a *account, refused, said bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	a.live--
	switch {
	case refused && said:
		a.lines.take(g.now(), lineBurst, linePerSecond)
	case refused:
		g.count(a)
	}
}

// count counts a refusal that has no line of its own.
func (g *gate) count(a *account) {
	if a.unsaid++; a.unsaid > 1 {
		return
	}
	g.later(unsaidEvery, func() { g.flush(a) })
}

// flush tells what was counted.
func (g *gate) flush(a *account) {
	g.mu.Lock()
	n := a.unsaid
	a.unsaid = 0
	g.mu.Unlock()
	if n > 0 {
		g.tell(a.owner, n)
	}
}

// flushAll tells of all users.
func (g *gate) flushAll() {
	g.mu.Lock()
	list := slices.Collect(maps.Values(g.users))
	g.mu.Unlock()
	for _, a := range list {
		g.flush(a)
	}
}
