package netguard

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of events.
const (
	KindReady   = "ready"   // the process serves
	KindDNS     = "dns"     // a name was asked for; Denied where nothing allows it
	KindConnect = "connect" // a connection or flow has ended
	KindDeny    = "deny"    // a connection that the allowlist or a limit refuses
	KindSocket  = "socket"  // a socket of the namespace was used up: another is wanted
)

// How a connection ended.
const (
	EndClosed  = "closed"  // both directions were closed in order
	EndReset   = "reset"   // one side broke it off
	EndIdle    = "idle"    // nothing moved for [IdleLimit]
	EndLimit   = "limit"   // the run's bytes are used up
	EndFailed  = "failed"  // the destination could not be reached: Errno and Text
	EndRefused = "refused" // its addresses are private or special ones that the policy does not name
	EndRun     = "run"     // the run ended
)

// Names of limits in a KindDeny event.
const (
	LimitConnections = "max_connections"
	LimitBytes       = "max_egress_bytes"
)

// Event is one line of the process's account. Nothing of what was sent or
// received is in it.
type Event struct {
	Kind  string `json:"kind"`
	Mono  uint64 `json:"mono"`            // CLOCK_BOOTTIME, ns
	Name  []byte `json:"name,omitempty"`  // bytes as asked for, lower case
	Count uint64 `json:"count,omitempty"` // equal events that this one stands for; 0 is 1

	Broker    string `json:"broker,omitempty"`    // dialled for this broker, or led to it: its name inside
	Published bool   `json:"published,omitempty"` // from outside, to a published port; Addr is the peer

	Denied bool   `json:"denied,omitempty"`
	Limit  string `json:"limit,omitempty"` // which limit refused it

	Proto string         `json:"proto,omitempty"`
	Asked netip.AddrPort `json:"asked,omitzero"` // inside: synthetic, or the address itself; dns: the address given
	Addr  netip.AddrPort `json:"addr,omitzero"`  // dialled, or of the last attempt
	Via   bool           `json:"via,omitempty"`  // through the proxy, which resolves names

	Sent     uint64        `json:"sent,omitempty"` // by the command, bytes
	Received uint64        `json:"received,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
	End      string        `json:"end,omitempty"`
	Errno    int           `json:"errno,omitempty"`
	Text     string        `json:"text,omitempty"` // what a failure said
}

// maxEvent bounds one encoded event: a name has 255 bytes, a text is cut.
const (
	maxEvent = 4096
	maxText  = 512
)

// reporter sends events to the supervisor, one message each. A supervisor that
// is slow to read holds up what causes them.
type reporter struct {
	mu   sync.Mutex
	send func([]byte) error
	seen map[queryKey]*repeated // dns queries that were told already
}

// queryKey is what makes two queries equal: an answer of another family, or none, is another one.
type queryKey struct {
	name    string
	allowed bool
	full    bool
	addr    netip.Addr
}

type repeated struct {
	ev    Event
	extra uint64
}

// maxSeen bounds the queries whose repetitions are only counted.
const maxSeen = 4096

func newReporter(send func([]byte) error) *reporter {
	return &reporter{send: send, seen: map[queryKey]*repeated{}}
}

func (r *reporter) emit(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emitLocked(&e)
}

func (r *reporter) emitLocked(e *Event) {
	if e.Mono == 0 {
		e.Mono = bootTime()
	}
	e.Text = e.Text[:min(len(e.Text), maxText)]
	b, err := json.Marshal(e)
	if err == nil && len(b) <= maxEvent {
		_ = r.send(b) // the supervisor is gone, and this process with it
	}
}

// query reports a question the first time, and counts it afterwards.
func (r *reporter) query(q query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := queryKey{q.name, q.allowed, q.full, q.addr}
	if have := r.seen[key]; have != nil {
		have.extra++
		return
	}
	e := Event{Kind: KindDNS, Name: []byte(q.name), Denied: !q.allowed, Asked: netip.AddrPortFrom(q.addr, 0)}
	if q.full {
		e.Text = errFull.Error()
	}
	if len(r.seen) < maxSeen {
		r.seen[key] = &repeated{ev: e}
	}
	r.emitLocked(&e)
}

// flush reports the repetitions.
func (r *reporter) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, have := range r.seen {
		if have.extra > 0 {
			have.ev.Count = have.extra
			r.emitLocked(&have.ev)
		}
		delete(r.seen, key)
	}
}

// parseEvent reads what the process sent. The process parses what the command
// wrote, so its words are taken with care: one object, bounded, known fields.
func parseEvent(b []byte) (Event, error) {
	var e Event
	if len(b) > maxEvent {
		return e, fmt.Errorf("event of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("event: %w", err)
	}
	return e, nil
}

// bootTime is now on CLOCK_BOOTTIME, in nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
