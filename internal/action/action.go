// Package action is what dispatch may do: the requests that the host makes for a
// command, each with a credential that the command never sees.
//
// A file of actions is data. This package reads it, says where it is wrong, reads
// credentials from where the file says they are, and knows which addresses a
// destination may have. It speaks to nobody: internal/dispatch does.
package action

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/agentguard/agentguard/policy"
)

// File is a file of actions that was read and found right.
type File struct {
	Name    string // path as given
	Text    []byte // its bytes
	SHA256  string // of them, hexadecimal
	Actions []*Action
	Brokers []*Broker
}

// Find returns the action of a name, or nil.
func (f *File) Find(name string) *Action {
	for _, a := range f.Actions {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Action is one narrow request.
type Action struct {
	Name        string
	About       string          // for people
	Source      policy.Source   // of its name
	Input       json.RawMessage // JSON Schema of the input
	InputSource policy.Source
	Method      string
	URL         URL
	Headers     []Header
	Body        Body
	Credential  *Credential // nil: none, and Auth is zero
	Auth        Auth
	Destination Destination
	Limits      Limits
	Response    Response
}

// Header is a header of the request. Value never has a line break.
type Header struct {
	Name  string // canonical
	Value Template
}

// Body is what the request carries.
type Body struct {
	Kind     string // BodyNone, BodyInput or BodyMapped
	Template json.RawMessage
	Source   policy.Source
}

// Kinds of bodies.
const (
	BodyNone   = "none"
	BodyInput  = "input"  // the input as it is, in JSON
	BodyMapped = "mapped" // Template with its fields filled in
)

// Destination bounds where a request may go besides what its URL says.
type Destination struct {
	AllowPrivate []netip.Prefix // special ranges that the name may lead to
	Resolve      netip.Addr     // the name's address; invalid: the host's resolver is asked
	Plain        bool           // http, to loopback only
	CAFile       string         // the only certificates that are trusted, in PEM; "": the system's
}

// Limits of an action. None can be lifted.
type Limits struct {
	RequestBytes  int64 // of one input
	ResponseBytes int64
	Timeout       time.Duration // of one request, from the look-up of the name to the last byte
	PerRun        int64         // requests in one call of dispatch, or for one run
	PerMinute     int64         // requests of the state directory's, whoever calls
}

// The limits of an action that names none.
var defaultLimits = Limits{RequestBytes: 1 << 20, ResponseBytes: 1 << 20, Timeout: 30 * time.Second, PerRun: 10, PerMinute: 60}

// Bounds of the limits.
const (
	maxRequestBytes  = 16 << 20
	maxResponseBytes = 64 << 20
	maxTimeout       = 10 * time.Minute
	maxCalls         = 100000
)

// Response says what of an answer is let through.
type Response struct {
	Status []int    // that mean success
	Fields []string // JSON Pointers (RFC 6901); none: nothing of the body
}
