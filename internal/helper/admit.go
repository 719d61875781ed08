package helper

import (
	"fmt"
	"sync"
	"time"
)

// Limits of what a uid may ask for. Root of the host is not among the callers.
const (
	MaxPerUser = 128  // requests at once, runs included
	MaxAtOnce  = 1024 // of all users
	burst      = 256  // requests that may come together
	perSecond  = 64   // and that are given back each second
)

// gate counts the requests of each uid.
type gate struct {
	now func() time.Time

	mu    sync.Mutex
	all   int
	users map[int]*account
}

type account struct {
	live    int
	tokens  float64
	seen    time.Time
	refused int       // since told
	told    time.Time // when a refusal was last worth a line of the log
}

func newGate() *gate { return &gate{now: time.Now, users: map[int]*account{}} }

// enter admits a request, which leave ends. loud says that the refusal goes into the
// log: of a flood one a second does, with the number of those before it.
func (g *gate) enter(uid int) (err error, loud bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	a := g.users[uid]
	if a == nil {
		a = &account{tokens: burst, seen: now}
		g.users[uid] = a
	}
	a.tokens = min(burst, a.tokens+perSecond*now.Sub(a.seen).Seconds())
	a.seen = now
	switch {
	case a.live >= MaxPerUser:
		err = fmt.Errorf("user %d has %d requests under way, and more are not taken; wait until one has ended", uid, a.live)
	case g.all >= MaxAtOnce:
		err = fmt.Errorf("the helper has %d requests under way, and more are not taken; wait until one has ended", g.all)
	case a.tokens < 1:
		err = fmt.Errorf("user %d asks too often: %d requests a second are taken; wait a moment", uid, perSecond)
	default:
		a.tokens--
		a.live++
		g.all++
		return nil, false
	}
	a.refused++
	if now.Sub(a.told) < time.Second {
		return err, false
	}
	if a.refused > 1 {
		err = fmt.Errorf("%w (%d refused since the last line)", err, a.refused)
	}
	a.refused, a.told = 0, now
	return err, true
}

func (g *gate) leave(uid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	g.users[uid].live--
}
