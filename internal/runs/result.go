package runs

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentguard/agentguard/trace"
)

// Result is how a run ended: result.json, and what --json prints. Text in it may
// come from the command; its JSON form is safe to print on a terminal.
type Result struct {
	V       int       `json:"v"` // 1
	ID      string    `json:"id"`
	Version string    `json:"agentguard"` // of agentguard
	Argv    []string  `json:"argv"`       // raw bytes in memory
	ArgvB64 []string  `json:"argv_b64,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`

	Status int    `json:"status"`           // exit status of agentguard
	Reason string `json:"reason"`           // one of the Reason constants
	Signal string `json:"signal,omitempty"` // that ended the command: "SIGSEGV"
	Core   bool   `json:"core,omitempty"`
	Error  string `json:"error,omitempty"` // what agentguard could not do

	Mode     string     `json:"mode,omitempty"`     // root, userns or landlock: who made the envelope
	Degraded []Degraded `json:"degraded,omitempty"` // guarantees that the run did not have

	Usage   Usage      `json:"usage"`
	Limits  []LimitHit `json:"limits,omitempty"` // limits that were met
	Denials Denials    `json:"denials"`
	Lookups uint64     `json:"lookups,omitempty"` // connections to a name server where the run has none
	Stdout  Output     `json:"stdout"`
	Stderr  Output     `json:"stderr"`
	Record  Record     `json:"record"`

	Missing   []Missing     `json:"missing,omitempty"`   // of a run that failed: programs that it did not find and the host has
	Network   []Destination `json:"network,omitempty"`   // what went where, most sent first
	Brokers   []BrokerUse   `json:"brokers,omitempty"`   // what was asked of each
	Planted   []string      `json:"planted,omitempty"`   // paths that other programs act on, made or changed where writes are real
	Linked    []string      `json:"linked,omitempty"`    // files changed in place that have names outside what the run could write
	Unmapped  []string      `json:"unmapped,omitempty"`  // copy-on-write grants in which root's files could not be changed
	Continues string        `json:"continues,omitempty"` // the run whose staged changes this one began with
	Changes   *Changes      `json:"changes,omitempty"`   // staged by the run; nil: none
	Gaps      []Gap         `json:"gaps,omitempty"`      // accepted with --allow-gap
	Thin      []string      `json:"thin,omitempty"`      // resources with one layer only

	Dispatch []json.RawMessage `json:"dispatch,omitempty"` // outcomes of exec --dispatch; of what exec --json prints, never of result.json
}

// Why a run ended.
const (
	ReasonExit   = "exit"
	ReasonSignal = "signal"
	ReasonWall   = "wall"
	ReasonCPU    = "cpu"
	ReasonMemory = "memory"
	ReasonOutput = "output" // more was written than filesystem.max_output_bytes
	ReasonLoss   = "loss"   // on_loss: kill
	ReasonHidden = "hidden" // a process hid what a limit counts; Error says which
	ReasonError  = "error"  // agentguard could not run it, or not enforce
)

// Usage is what the whole tree of processes consumed.
type Usage struct {
	Wall      time.Duration `json:"wall_ns"`
	User      time.Duration `json:"user_ns"`
	System    time.Duration `json:"system_ns"`
	MaxMemory int64         `json:"max_memory"` // bytes; 0 unknown
	MaxTasks  int64         `json:"max_tasks"`  // 0 unknown
}

// LimitHit is a limit of the run that was met.
type LimitHit struct {
	Name  string `json:"name"`
	Value int64  `json:"value"` // bytes, count or ns
	Hits  int64  `json:"hits"`
}

// Denials counts refused acts and shows the first different ones; the record
// has all.
type Denials struct {
	Count uint64   `json:"count"`
	First []Denial `json:"first,omitempty"`
}

// Denial is one refused act.
type Denial struct {
	Text   string `json:"text"` // trace.Sentence
	Kind   string `json:"kind"`
	Object string `json:"object,omitempty"` // quoted
	Layer  string `json:"layer,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Source string `json:"rule_source,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Count  uint64 `json:"count"`
}

// NewDenial describes a denial of the record.
func NewDenial(e *trace.Event) Denial {
	return Denial{
		Text: trace.Sentence(e), Kind: string(e.Kind), Object: trace.Object(e), Layer: string(e.Layer),
		Rule: e.Rule, Source: e.RuleSource, Remedy: e.Remedy, Count: e.Times(),
	}
}

// Missing is a program that the command looked for in vain, in a run that failed.
type Missing struct {
	Name   string `json:"name"`   // quoted
	Host   string `json:"host"`   // where the host has it, for the caller; quoted
	Remedy string `json:"remedy"` // the flag that shows it
}

// String says it in one line.
func (m Missing) String() string {
	return fmt.Sprintf("%s was not found inside; the host has it as %s; %s", m.Name, m.Host, m.Remedy)
}

// Output is one output stream.
type Output struct {
	Bytes     uint64 `json:"bytes"` // written by the command
	Kept      uint64 `json:"kept"`  // of them, in the record
	SHA256    string `json:"sha256,omitempty"`
	Truncated bool   `json:"truncated,omitempty"` // Kept is less than Bytes
	Data      *Data  `json:"data,omitempty"`      // of what exec --json prints, never of result.json
}

// Data is text of a command's, as data: encoded, so that nobody takes it for
// words of anybody else's.
type Data struct {
	Untrusted bool   `json:"untrusted"` // always
	Encoding  string `json:"encoding"`  // "base64"
	Text      []byte `json:"text"`
	Bytes     int    `json:"bytes"`               // of Text
	SHA256    string `json:"sha256"`              // of Text
	Truncated bool   `json:"truncated,omitempty"` // Text is the beginning of what was written
}

// NewData makes data of what a command wrote; more says that it wrote more.
func NewData(b []byte, more bool) *Data {
	sum := sha256.Sum256(b)
	return &Data{Untrusted: true, Encoding: "base64", Text: b, Bytes: len(b), SHA256: hex.EncodeToString(sum[:]), Truncated: more}
}

// Destination adds up the connections to one host and port.
type Destination struct {
	Host        string `json:"host"` // a name, or an address where no name was asked for
	Port        uint16 `json:"port"`
	Proto       string `json:"proto"` // "tcp" or "udp"
	Connections uint64 `json:"connections"`
	Failed      uint64 `json:"failed,omitempty"` // of them, never made
	Error       string `json:"error,omitempty"`  // of the last that failed
	Sent        uint64 `json:"sent"`             // by the command, bytes
	Received    uint64 `json:"received"`
}

// BrokerUse adds up the calls of one broker.
type BrokerUse struct {
	Name     string `json:"name"`
	Calls    int64  `json:"calls"`   // that were sent
	Refused  int64  `json:"refused"` // that were not
	Sent     int64  `json:"sent"`    // bytes of bodies
	Received int64  `json:"received"`
}

// Changes counts what the run changed in its copy-on-write trees.
type Changes struct {
	Added    int      `json:"added"`
	Modified int      `json:"modified"`
	Deleted  int      `json:"deleted"`
	Renamed  int      `json:"renamed"`
	Protect  []string `json:"protect,omitempty"`  // paths that the run's policy protects
	SHA256   string   `json:"sha256,omitempty"`   // of the change set's index
	Findings []string `json:"findings,omitempty"` // why it is not complete
}

// Counted is "2 added, 1 deleted".
func (c *Changes) Counted() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Added, "added"}, {c.Modified, "modified"}, {c.Deleted, "deleted"}, {c.Renamed, "renamed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "times of change"
	}
	return strings.Join(parts, ", ")
}

// Record says where the record is and how complete.
type Record struct {
	Path     string   `json:"path"`
	Verdict  string   `json:"verdict"`        // trace.Judgement
	Tier     string   `json:"tier,omitempty"` // which sensor programs were at work, as in its start record
	Records  uint64   `json:"records"`
	Lost     uint64   `json:"lost"`
	Findings []string `json:"findings,omitempty"` // reasons against completeness
}

// Gap is a clause that this run does not enforce, accepted by the caller.
type Gap struct {
	Clause  string `json:"clause"`
	Source  string `json:"source,omitempty"`
	Missing string `json:"missing,omitempty"`
}

// Degraded is a guarantee that this run did not have although nobody gave it up: this mode
// has nothing for it.
type Degraded struct {
	Guarantee string `json:"guarantee"`
	Why       string `json:"why"`
	Remedy    string `json:"remedy"`
}

// String says it in one line.
func (d Degraded) String() string { return d.Guarantee + ": " + d.Why + "; " + d.Remedy }

// JSON encodes r as one line with its newline. Arguments that are not UTF-8 are
// repeated in argv_b64, whose other elements are "".
func (r *Result) JSON() ([]byte, error) {
	c := *r
	c.V = 1
	c.ArgvB64 = nil
	for i, a := range c.Argv {
		if utf8.ValidString(a) {
			continue
		}
		if c.ArgvB64 == nil {
			c.ArgvB64 = make([]string, len(c.Argv))
		}
		c.ArgvB64[i] = base64.StdEncoding.EncodeToString([]byte(a))
	}
	b, err := json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("runs: encode result: %w", err)
	}
	return append(trace.EscapeJSON(b), '\n'), nil
}

// ExpectResult does what the library does once a process when it first decodes a result,
// for a process that waits for one.
func ExpectResult() { _, _ = ParseResult([]byte(`{"v":1}`)) }

// ParseResult decodes what JSON returned.
func ParseResult(b []byte) (*Result, error) {
	r := &Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("runs: decode result: %w", err)
	}
	if r.V != 1 {
		return nil, fmt.Errorf("runs: result of version %d is not one that this version can read", r.V)
	}
	for i, s := range r.ArgvB64 {
		if s == "" || i >= len(r.Argv) {
			continue
		}
		a, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, fmt.Errorf("runs: decode result: argv_b64: %w", err)
		}
		r.Argv[i] = string(a)
	}
	r.ArgvB64 = nil
	return r, nil
}

// WriteResult writes result.json; durable as for WriteFile.
func (d *RunDir) WriteResult(r *Result, durable bool) error {
	b, err := r.JSON()
	if err != nil {
		return err
	}
	return d.WriteFile(ResultFile, b, durable)
}

// Result reads result.json; fs.ErrNotExist when the run has none yet, or its
// supervisor died. An empty one is what a loss of power leaves: there is none.
func (d *RunDir) Result() (*Result, error) {
	f, err := d.Open(ResultFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("runs: read result of %s: %w", d.id, err)
	}
	if len(b) > maxFileSize {
		return nil, fmt.Errorf("runs: result of %s is larger than a result can be", d.id)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("runs: the result of %s is empty: %w", d.id, fs.ErrNotExist)
	}
	return ParseResult(b)
}
