package broker

import (
	"encoding/json"
	"fmt"
	"time"
)

// Kinds of events.
const (
	KindReady   = "ready"   // the process serves
	KindCall    = "call"    // a call was sent, and has ended
	KindRefused = "refused" // a call was not sent
	KindUsage   = "usage"   // at the end, of each endpoint
)

// Event is one line of the process's account. Neither a query, nor a header or a
// body, nor the credential is in it.
type Event struct {
	Kind     string        `json:"kind"`
	Mono     uint64        `json:"mono"` // CLOCK_BOOTTIME, ns
	Broker   string        `json:"broker,omitempty"`
	Method   string        `json:"method,omitempty"`
	Path     string        `json:"path,omitempty"`   // call: as its route has it; refused: as it was asked for, without the query
	Status   int           `json:"status,omitempty"` // call: the upstream's, 0 where none came; refused: ours
	Sent     int64         `json:"sent,omitempty"`   // bytes of bodies
	Received int64         `json:"received,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
	Hidden   int64         `json:"hidden,omitempty"`  // times that an answer held the credential
	Clause   string        `json:"clause,omitempty"`  // what refused it, or cut it off
	Text     string        `json:"text,omitempty"`    // why, in words
	Count    int64         `json:"count,omitempty"`   // equal refusals that this one stands for; usage: calls
	Refused  int64         `json:"refused,omitempty"` // usage: refusals
}

// MaxEvent bounds one encoded event, in bytes.
const MaxEvent = 4096

// ParseEvent reads what the process sent. The process parses what the command and
// the upstream wrote, so its words are taken with care.
func ParseEvent(b []byte) (Event, error) {
	var e Event
	if len(b) > MaxEvent {
		return e, fmt.Errorf("event of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("event: %w", err)
	}
	return e, nil
}
