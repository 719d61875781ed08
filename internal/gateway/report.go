package gateway

import (
	"encoding/json"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/broker"
)

// Bounds of what an event holds, and of the refusals of one clause that have
// events of their own; later ones are counted.
const (
	maxText    = 256
	maxRefused = 100
)

// reporter sends events to the supervisor, one message each.
type reporter struct {
	mu      sync.Mutex
	send    func([]byte) error
	refused map[refusedKey]int64
}

type refusedKey struct{ broker, clause string }

func newReporter(send func([]byte) error) *reporter {
	return &reporter{send: send, refused: map[refusedKey]int64{}}
}

func (r *reporter) emit(e broker.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == broker.KindRefused {
		key := refusedKey{e.Broker, e.Clause}
		if r.refused[key]++; r.refused[key] > maxRefused {
			return
		}
	}
	r.emitLocked(e)
}

func (r *reporter) emitLocked(e broker.Event) {
	e.Mono = bootTime()
	e.Text, e.Path, e.Method = cut(e.Text, maxText), cut(e.Path, maxText), cut(e.Method, 32)
	if b, err := json.Marshal(e); err == nil && len(b) <= broker.MaxEvent {
		_ = r.send(b) // the supervisor is gone, and this process with it
	}
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// flush tells of the refusals that were only counted.
func (r *reporter) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range r.refused {
		if n > maxRefused {
			r.emitLocked(broker.Event{Kind: broker.KindRefused, Broker: key.broker, Clause: key.clause, Count: n - maxRefused, Text: "and more of the same kind"})
		}
	}
	clear(r.refused)
}

// bootTime is now on CLOCK_BOOTTIME, in nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
