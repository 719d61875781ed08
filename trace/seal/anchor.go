package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/note"
)

// Kinds of anchored lines.
const (
	AnchorCheckpoint = "checkpoint" // of a live run
	AnchorSeal       = "seal"       // the checkpoint over a whole run
	AnchorLog        = "log"        // a head of the host's log
)

// AnchorLine is what is taken to other places: a signed note, as one JSON line.
type AnchorLine struct {
	Kind string `json:"kind"` // AnchorCheckpoint, AnchorSeal or AnchorLog
	Run  string `json:"run"`  // id of the run; for a head of the log, of the run that ended then
	Note string `json:"note"` // signed, as golang.org/x/mod/sumdb/note has it
}

// Line encodes l with its newline.
func (l *AnchorLine) Line() ([]byte, error) { return jsonLine(l) }

// Anchors are notes that were kept elsewhere.
type Anchors struct {
	Runs map[string][][]byte // checkpoints by run
	Logs [][]byte            // heads of the host's log
}

const maxAnchors = 1 << 30 // bytes of a file of anchored lines

// ReadAnchors reads anchored lines. What stands before the JSON of a line, such
// as the prefix of a system log, is skipped, and so are other lines.
func ReadAnchors(r io.Reader) (*Anchors, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnchors))
	if err != nil {
		return nil, fmt.Errorf("anchored lines: %w", err)
	}
	a := &Anchors{Runs: map[string][][]byte{}}
	for line := range bytes.Lines(b) {
		var l AnchorLine
		at := bytes.Index(line, []byte(`{"kind":"`))
		if at < 0 || strictJSON(line[at:], &l) != nil {
			continue
		}
		switch l.Kind {
		case AnchorCheckpoint, AnchorSeal:
			a.Runs[l.Run] = append(a.Runs[l.Run], []byte(l.Note))
		case AnchorLog:
			a.Logs = append(a.Logs, []byte(l.Note))
		}
	}
	return a, nil
}

// anchored holds the notes of a run that were kept elsewhere against the record
// as it is. key is the run's; a run that was recovered has one signed by the
// host.
func (v *verifier) anchored(run string, key note.Verifier) {
	if v.anchors == nil {
		return
	}
	for _, text := range v.anchors.Runs[run] {
		c, err := v.anchor(text, run, key)
		switch {
		case err != nil:
			v.fault("", "an anchored checkpoint is by another key than the record, or none: %v", err)
		case v.disagree([]Checkpoint{c}) != nil:
			v.fault(TraceFile, "an anchored checkpoint over the first %d records does not match the record", c.Records)
		default:
			v.report.Anchored++
		}
	}
}

func (v *verifier) anchor(text []byte, run string, key note.Verifier) (Checkpoint, error) {
	if key != nil {
		if c, err := ParseCheckpoint(text, run, key); err == nil {
			return c, nil
		}
	}
	for _, host := range v.hosts {
		if c, err := ParseCheckpoint(text, run, host); err == nil {
			return c, nil
		}
	}
	return Checkpoint{}, errors.New("its signature does not fit")
}

// CheckAnchors holds the heads of the log that were kept elsewhere against it,
// and returns how many agree.
func (l *Log) CheckAnchors(a *Anchors, hosts Keys) (agree int) {
	for _, text := range a.Logs {
		h, err := ParseLogHead(text, hosts)
		if foreign := new(ForeignKeyError); errors.As(err, &foreign) {
			continue // another host's
		}
		if err != nil {
			l.fault("head", 0, "an anchored head cannot be read: %v", err)
			continue
		}
		if why := l.Contradicts(&Place{Size: h.Size, Root: h.Root.String()}); why != "" {
			l.fault("entries", 0, "an anchored head of %d entries, of %s, does not match: %s", h.Size, stamp(h.Time), why)
			continue
		}
		agree++
	}
	return agree
}
