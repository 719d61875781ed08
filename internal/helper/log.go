package helper

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

// Log is the helper's own account of what it was asked for: one JSON object a line.
// Several processes write to it, and it may be moved away at any time: a line goes to
// where the path leads when it is written (logfile.go).
type Log struct {
	also io.Writer // the journal

	mu   sync.Mutex
	path string
	file *os.File // appended to
	size int64    // when it is put aside, in bytes; 0: never
	keep int      // how many of those that were put aside stay
}

// Entry is one line: what was asked, by whom, and what became of it.
type Entry struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"` // granted, refused, ended, gone; rotated: the first line of a file
	Request string    `json:"request,omitempty"`
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	PID     int       `json:"pid"`             // of the peer; its own number, for as long as it lives
	Label   string    `json:"label,omitempty"` // of a security module
	Run     string    `json:"run,omitempty"`
	Of      string    `json:"of,omitempty"`   // whose records an auditor has asked for
	Argv    []string  `json:"argv,omitempty"` // cut: the record has all of it
	Status  *int      `json:"status,omitempty"`
	Why     string    `json:"why,omitempty"`
	Unsaid  int       `json:"unsaid,omitempty"`  // refusals of this user that have no line of their own
	Dropped int64     `json:"dropped,omitempty"` // lines that are no longer kept, since the first; of a rotated line
}

// Bounds of what a caller chooses in a line, in bytes as they are written there: of each text, and of a command's
// together. One that is refused leaves nothing but its line.
const (
	maxText = 512
	maxArgv = 2048
)

// OpenLog appends to a file of root's, which is made if need be. Its bounds are those of no
// configuration until [Log.Bound].
func OpenLog(path string, also io.Writer) (*Log, error) {
	l := &Log{also: also, path: path}
	l.Bound(&Config{})
	var err error
	l.file, err = openLog(path)
	return l, err
}

// Bound sets when the file is put aside, and how many of those stay.
func (l *Log) Bound(c *Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size, l.keep = c.logBounds()
}

// Warm does what takes time once in a process that waits for a caller, whoever that is.
func Warm() error {
	_, err := ourWorld()
	_, lerr := Entry{}.line()
	return errors.Join(err, lerr)
}

// Of is an Entry about a peer.
func Of(p *Peer, outcome, request string) Entry {
	return Entry{Outcome: outcome, Request: request, UID: p.UID, GID: p.GID, PID: p.PID, Label: p.Label}
}

// Write adds a line. Several processes write to the file: a line is one write(2).
func (l *Log) Write(e Entry) error {
	b, err := e.line()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err = l.append(b)
	_, jerr := l.also.Write(b)
	return errors.Join(err, jerr)
}

func (e Entry) line() ([]byte, error) {
	e.Time = time.Now().UTC()
	for _, text := range []*string{&e.Outcome, &e.Request, &e.Label, &e.Run, &e.Of, &e.Why} { // most are ours, and one that is not is enough
		*text = cut(*text)
	}
	e.Argv = cutAll(e.Argv)
	b, err := json.Marshal(e)
	return append(b, '\n'), err
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// cutAll cuts each word, and ends with the one that reaches maxArgv.
func cutAll(argv []string) (out []string) {
	for left := maxArgv; len(argv) > 0 && left > 0 && len(out) < 32; argv = argv[1:] {
		word, size := cutTo(argv[0])
		out = append(out, word)
		left -= size
	}
	return out
}

func cut(s string) string {
	s, _ = cutTo(s)
	return s
}

// cutTo cuts a text to what takes maxText bytes in the line, and returns how many it takes.
func cutTo(s string) (out string, size int) {
	for i, r := range s {
		n := utf8.RuneLen(r)
		switch {
		case r < ' ', r == '<', r == '>', r == '&', r == utf8.RuneError, r == 0x2028, r == 0x2029:
			n = len(`\u0000`) // as encoding/json writes them
		case r == '"', r == '\\':
			n = 2
		}
		if size += n; size > maxText {
			return s[:i] + "...", maxText
		}
	}
	return s, size
}
