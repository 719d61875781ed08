package seal

import (
	"fmt"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// Fault is one way in which a run differs from what was signed.
type Fault struct {
	File   string `json:"file,omitempty"`   // below the run's directory; "": the run as a whole
	Line   int64  `json:"line,omitempty"`   // of the file as it is, from 1; 0 unknown
	Seq    int64  `json:"seq,omitempty"`    // of the record as it was sealed; 0 unknown
	Offset int64  `json:"offset,omitempty"` // bytes before that line
	Text   string `json:"text"`             // safe to print
}

func (f Fault) String() string {
	s := ""
	if f.File != "" {
		s = trace.Line(f.File)
	}
	if f.Line > 0 {
		s += fmt.Sprintf(" line %d (byte %d)", f.Line, f.Offset)
	}
	if s != "" {
		s += ": "
	}
	return s + trace.Line(f.Text)
}

// Report is what Verify found.
type Report struct {
	Run     string          `json:"run,omitempty"` // id, where something signed says it
	Verdict trace.Judgement `json:"verdict"`       // complete, degraded, incomplete, unsealed or altered
	State   string          `json:"state,omitempty"`
	SignBy  string          `json:"key,omitempty"` // the host's key that vouches for it
	Faults  []Fault         `json:"faults,omitempty"`
	Why     []string        `json:"why,omitempty"` // against completeness

	Records  int64     `json:"records"`  // lines of the record as it is
	Verified int64     `json:"verified"` // of them, from the first on, covered by a signature that fits
	Bytes    int64     `json:"bytes"`    // that these fill
	Until    time.Time `json:"until,omitzero"`

	Checkpoints int64 `json:"checkpoints"`        // notes in the file of that name, without the certificate
	Anchored    int   `json:"anchored,omitempty"` // anchored notes that match

	Statement *Statement `json:"statement,omitempty"`

	digest string // of seal.json
	bare   bool   // there is neither a seal nor a record
}
