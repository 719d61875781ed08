package action

import "encoding/json"

// The protocol between agentguard and the process that makes requests
// (internal/dispatch in agentguard-http). Each message is a line of JSON:
//
//	agentguard                        agentguard-http
//	  Job  ------------------------------>  gives up what it does not need,
//	                                        reads inputs from descriptor 3, checks them
//	        <------------------------------  Message{Ask}      may this be sent?
//	  Reply, with the secret once  ------>
//	        <------------------------------  Message{Outcome}  what came of an input
//	        <------------------------------  Message{Done}
//
// The secret is asked for when the first input has passed every check.

// Job is what the process is started for.
type Job struct {
	Filter []byte `json:"filter"` // of system calls
	File   []byte `json:"file"`   // of actions, as its owner was judged
	Name   string `json:"name"`   // of the file
	Action string `json:"action"` // "": only check the schemas of all
	Lines  string `json:"lines"`  // LinesOne, LinesAll, LinesEach
	DryRun bool   `json:"dry_run"`
	CA     []byte `json:"ca,omitempty"` // of Destination.CAFile
}

// How an input is read.
const (
	LinesOne  = ""     // it is one JSON text
	LinesAll  = "all"  // one in each line; none is sent unless all are right
	LinesEach = "each" // one in each line, each for itself
)

// MaxLines bounds the lines that are looked at.
const MaxLines = 10000

// DispatchMode is the argument of agentguard-http for this.
const DispatchMode = "dispatch"

// InputFD is the descriptor that the process reads inputs from.
const InputFD = 3

// Message is from the process.
type Message struct {
	Ask     []*Outcome `json:"ask,omitempty"` // what is about to be sent, all of it or nothing
	Outcome *Outcome   `json:"outcome,omitempty"`
	Done    bool       `json:"done,omitempty"`
	Problem string     `json:"problem,omitempty"` // the action cannot be used at all
}

// Reply answers an Ask.
type Reply struct {
	Refused string `json:"refused,omitempty"` // why they must not be sent
	Secret  []byte `json:"secret,omitempty"`
}

// What came of one input.
const (
	Done     = "done"     // sent, and the answer is as the action says
	DryRun   = "dry-run"  // Request is what would be sent
	Refused  = "refused"  // the input is not what the action takes; nothing was sent
	Limited  = "limited"  // a limit, or the credential; nothing was sent
	Failed   = "failed"   // no answer; Sent says whether the upstream may have the request
	Rejected = "rejected" // an answer that the action does not let through
)

// Exit statuses of dispatch. What agentguard could not do at all is 125.
const (
	StatusRefused  = 120
	StatusLimited  = 121
	StatusFailed   = 122
	StatusRejected = 123
)

// Whether the upstream has a request.
const (
	SentNo      = "no"
	SentYes     = "yes"
	SentUnknown = "unknown" // some of it was written, and no answer came
)

// Outcome is what came of one input, as machines read it: docs/dispatch.md.
type Outcome struct {
	V           int          `json:"v"`
	Action      string       `json:"action"`
	Run         string       `json:"run,omitempty"`
	Line        int          `json:"line,omitempty"` // of the input, from 1
	Outcome     string       `json:"outcome"`
	Why         string       `json:"why,omitempty"`
	Errors      []InputError `json:"errors,omitempty"`
	Sent        string       `json:"sent"`
	Method      string       `json:"method,omitempty"`
	Destination string       `json:"destination"`       // origin
	Address     string       `json:"address,omitempty"` // that was reached
	InputSHA256 string       `json:"input_sha256,omitempty"`
	InputBytes  int64        `json:"input_bytes"`
	// Bytes of the bodies.
	RequestBytes  int64 `json:"request_bytes"`
	ResponseBytes int64 `json:"response_bytes"`
	Status        int   `json:"status,omitempty"`
	LatencyNS     int64 `json:"latency_ns,omitempty"`
	// What the upstream said, by JSON Pointer; Untrusted is set with it.
	Response  map[string]json.RawMessage `json:"response,omitempty"`
	Missing   []string                   `json:"missing,omitempty"` // fields that the answer has not
	Untrusted bool                       `json:"untrusted,omitempty"`
	Request   *Request                   `json:"request,omitempty"`
}

// InputError is one fault of an input.
type InputError struct {
	Pointer string `json:"pointer"` // RFC 6901; "" is the whole
	Message string `json:"message"`
}

// Request is a request as it may be shown: the credential is Hidden.
type Request struct {
	Method  string   `json:"method"`
	URL     string   `json:"url"`
	Headers []string `json:"headers"` // "Name: value", sorted
	Body    string   `json:"body,omitempty"`
}

// ExitStatus is the status of dispatch for an outcome.
func (o *Outcome) ExitStatus() int {
	return map[string]int{Refused: StatusRefused, Limited: StatusLimited, Failed: StatusFailed, Rejected: StatusRejected}[o.Outcome]
}
