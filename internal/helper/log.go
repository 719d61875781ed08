package helper

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// Log is the helper's own account of what it was asked for: one JSON object a line.
type Log struct {
	file *os.File  // appended to
	also io.Writer // the journal
}

// Entry is one line: what was asked, by whom, and what became of it.
type Entry struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"` // granted, refused, ended
	Request string    `json:"request,omitempty"`
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	PID     int       `json:"pid"`             // of the peer; its own number, for as long as it lives
	Label   string    `json:"label,omitempty"` // of a security module
	Run     string    `json:"run,omitempty"`
	Argv    []string  `json:"argv,omitempty"` // cut: the record has all of it
	Status  *int      `json:"status,omitempty"`
	Why     string    `json:"why,omitempty"`
}

// Bounds of what a caller chooses in a line, in bytes: of each text, and of a command's
// together. One that is refused leaves nothing but its line.
const (
	maxText = 512
	maxArgv = 2048
)

// OpenLog appends to a file of root's, which is made if need be.
func OpenLog(path string, also io.Writer) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &Log{f, also}, nil
}

// Of is an Entry about a peer.
func Of(p *Peer, outcome, request string) Entry {
	return Entry{Outcome: outcome, Request: request, UID: p.UID, GID: p.GID, PID: p.PID, Label: p.Label}
}

// Write adds a line. Several processes write to the file: a line is one write(2).
func (l *Log) Write(e Entry) error {
	e.Time = time.Now().UTC()
	e.Why = cut(e.Why)
	e.Argv = cutAll(e.Argv)
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	_, err = l.file.Write(b)
	_, jerr := l.also.Write(b)
	return errors.Join(err, jerr)
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// cutAll cuts each word, and ends with the one that reaches maxArgv.
func cutAll(argv []string) (out []string) {
	for left := maxArgv; len(argv) > 0 && left > 0 && len(out) < 32; argv = argv[1:] {
		out = append(out, cut(argv[0]))
		left -= len(out[len(out)-1])
	}
	return out
}

func cut(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "..."
	}
	return s
}
