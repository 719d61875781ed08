package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

// Types of what is signed: in-toto Statement v1 in a DSSE v1 envelope.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://github.com/agentguard/agentguard/seal/v1"
	PayloadType   = "application/vnd.in-toto+json"
)

// Statement is what seal.json says: an in-toto Statement of Type StatementType, with
// a predicate of PredicateType.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject is a file of the run and its digest.
type Subject struct {
	Name   string `json:"name"` // path below the run's directory, with slashes
	Digest Digest `json:"digest"`
}

// Digest of a file's bytes, in lower-case hexadecimal.
type Digest struct {
	SHA256 string `json:"sha256"` // 64 digits
}

// Who made a seal.
const (
	Sealed    = "sealed"    // the supervisor, with the run's own key
	Recovered = "recovered" // the host, after the supervisor had died
)

// Predicate is what is claimed about the run. Fields that are absent are zero,
// empty or unknown.
type Predicate struct {
	Run         string `json:"run"`   // id
	State       string `json:"state"` // Sealed or Recovered
	Tool        string `json:"tool"`
	BootID      string `json:"boot_id"`
	Started     string `json:"started"` // RFC 3339
	Ended       string `json:"ended"`
	Certificate string `json:"certificate,omitempty"` // note by the host's key; absent when the host signed itself
	Checkpoint  string `json:"checkpoint"`            // note over the whole record, for proofs and anchors

	Tree        Tree   `json:"tree"`
	Checkpoints int64  `json:"checkpoints"` // notes in the file of that name, without the certificate
	Durable     bool   `json:"durable"`     // all of it was on disk before this was signed
	Verified    int64  `json:"verified"`    // recovered: records that a checkpoint of the run's own key covers
	HostLog     *Place `json:"host_log,omitempty"`
	AnchorError string `json:"anchor_error,omitempty"` // why checkpoints did not reach every anchor

	Verdict  trace.Judgement   `json:"verdict"` // trace.Complete, trace.Degraded or trace.Incomplete
	Lost     uint64            `json:"lost"`
	Losses   []Loss            `json:"losses,omitempty"`
	Findings []string          `json:"findings,omitempty"`
	Counts   map[string]uint64 `json:"counts,omitempty"` // of the summary

	PlanSHA256 string `json:"plan_sha256"`      // of plan.json, lower-case hex
	Status     int    `json:"status"`           // exit status of agentguard exec
	Reason     string `json:"reason"`           // why the run ended, as in docs/result.md
	Signal     string `json:"signal,omitempty"` // name of the signal that ended the command
	Usage      Usage  `json:"usage"`
}

// Tree is the head of the tree over the whole record.
type Tree struct {
	Blocks  int64  `json:"blocks"` // leaves
	Root    string `json:"root"`   // base64
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`
}

// NewTree returns the form of a head in the statement.
func NewTree(h Head) Tree {
	return Tree{Blocks: h.Blocks, Root: h.Root.String(), Records: h.Records, Bytes: h.Bytes}
}

func (t Tree) head() (Head, error) {
	root, err := tlog.ParseHash(t.Root)
	return Head{Blocks: t.Blocks, Root: root, Records: t.Records, Bytes: t.Bytes}, err
}

// Place is where the host's log has the start of the run (Index, from 0), and the
// log's head then (Size in entries, Root in base64): a log that was set back since
// contradicts it.
type Place struct {
	Index int64  `json:"index"`
	Size  int64  `json:"size"`
	Root  string `json:"root"`
}

// Loss is the Count of the records that were lost of one Class for one Cause, as in docs/record.md (Losses).
type Loss struct {
	Class string `json:"class"`
	Cause string `json:"cause,omitempty"`
	Count uint64 `json:"count"`
}

// Usage is what the run consumed.
type Usage struct {
	WallNS    int64 `json:"wall_ns"`    // from start to end
	UserNS    int64 `json:"user_ns"`    // CPU time of the whole tree, in user mode
	SystemNS  int64 `json:"system_ns"`  // and in the kernel
	MaxMemory int64 `json:"max_memory"` // bytes; 0 unknown
	MaxTasks  int64 `json:"max_tasks"`  // 0 unknown
}

// Stamp is the form of a time in a statement.
func Stamp(t time.Time) string { return stamp(t) }

// envelope is a DSSE v1 envelope.
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"`
}

// preauth is DSSE's PAE: what is signed.
func preauth(payload []byte) []byte {
	b := append([]byte("DSSEv1 "), strconv.Itoa(len(PayloadType))+" "+PayloadType+" "+strconv.Itoa(len(payload))+" "...)
	return append(b, payload...)
}

// Sign returns seal.json: the statement, signed, as one line.
func (s *Statement) Sign(key *Key) ([]byte, error) {
	s.Type, s.PredicateType = StatementType, PredicateType
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("seal: encode: %w", err)
	}
	payload = trace.EscapeJSON(payload)
	sig, err := key.Sign(preauth(payload))
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(envelope{PayloadType, payload, []signature{{key.ID(), sig}}})
	if err != nil {
		return nil, fmt.Errorf("seal: encode: %w", err)
	}
	return append(b, '\n'), nil
}

// MaxSeal bounds seal.json, in bytes.
const MaxSeal = 64 << 20

// Open checks seal.json against the hosts' keys and returns what it states,
// and the key of the run, which is nil when the host signed itself. A key that
// is not known is a *ForeignKeyError.
func Open(b []byte, hosts Keys) (*Statement, note.Verifier, error) {
	var env envelope
	if err := strictJSON(b, &env); err != nil {
		return nil, nil, fmt.Errorf("not a DSSE envelope: %w", err)
	}
	if again, err := json.Marshal(env); err != nil || !bytes.Equal(append(again, '\n'), b) {
		return nil, nil, errors.New("the envelope is not in its one form")
	}
	if env.PayloadType != PayloadType || len(env.Signatures) != 1 {
		return nil, nil, fmt.Errorf("not one signature over %s", PayloadType)
	}
	s := &Statement{}
	if err := json.Unmarshal(env.Payload, s); err != nil { // a later version may have added fields
		return nil, nil, fmt.Errorf("not an in-toto statement of this version: %w", err)
	}
	if s.Type != StatementType || s.PredicateType != PredicateType {
		return nil, nil, errors.New("a statement of another type")
	}
	key, err := s.signer(env.Signatures[0].KeyID, hosts)
	if err != nil {
		return nil, nil, err
	}
	if !key.Verify(preauth(env.Payload), env.Signatures[0].Sig) {
		return nil, nil, fmt.Errorf("the signature by %s does not fit what it signs", keyID(key))
	}
	if s.Predicate.State == Recovered {
		key = nil
	}
	return s, key, nil
}

// signer returns the key that must have signed: the run's, which the host has
// certified, or for a recovered run the host's.
func (s *Statement) signer(id string, hosts Keys) (note.Verifier, error) {
	p := &s.Predicate
	switch p.State {
	case Recovered:
		if v := hosts.by(id); v != nil {
			return v, nil
		}
		return nil, &ForeignKeyError{ID: id}
	case Sealed:
	default:
		return nil, fmt.Errorf("a seal of an unknown kind %q", p.State)
	}
	c, v, err := ParseCertificate([]byte(p.Certificate), hosts)
	switch {
	case err != nil:
		return nil, err
	case c.Run != p.Run:
		return nil, fmt.Errorf("the key is that of run %s", c.Run)
	case c.BootID != p.BootID:
		return nil, errors.New("the key was made at another boot")
	case keyID(v) != id:
		return nil, &ForeignKeyError{ID: id}
	}
	return v, nil
}

// strictJSON decodes one JSON value with known fields only.
func strictJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}
