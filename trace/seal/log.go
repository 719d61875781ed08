package seal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

// LogOrigin is the first line of the signed head of a host's log.
const LogOrigin = "agentguard/host-log"

// What happened to a run, as the host's log has it.
const (
	LogStart     = "start"      // its command was started; SHA256 is of the certificate of its key
	LogSeal      = "seal"       // it was sealed; SHA256 is of seal.json
	LogRecovered = "recovered"  // its supervisor had died, and the host sealed what was there
	LogPruned    = "pruned"     // its record was deleted on purpose
	LogUnanchor  = "unanchored" // its seal could not be anchored
	LogKey       = "key"        // of no run: the host has a new key
	LogDamaged   = "damaged"    // of no run: what was signed before this entry is not what was found

	LogDispatch   = "dispatch"   // a request is about to be made; SHA256 is of its input, Run the run that printed it, if one did
	LogDispatched = "dispatched" // what came of an input
)

// LogEntry is a leaf of the host's log: one JSON line.
type LogEntry struct {
	Kind   string `json:"kind"`           // LogStart and the like
	Run    string `json:"run,omitempty"`  // id
	User   int    `json:"user,omitempty"` // uid whose runs are kept apart under sudo; 0: root's own
	Time   string `json:"time"`
	SHA256 string `json:"sha256,omitempty"`
	By     string `json:"by,omitempty"`  // pruned: who asked for it
	Why    string `json:"why,omitempty"` // pruned, unanchored, damaged; key: its public half

	Dispatch *Dispatched `json:"dispatch,omitempty"` // of LogDispatch and LogDispatched
}

// Dispatched is a request of an action, without anything of its contents.
type Dispatched struct {
	Action        string `json:"action"`  // name
	Actions       string `json:"actions"` // SHA-256 of the file that the action is in
	Method        string `json:"method"`
	Destination   string `json:"destination"`          // origin
	Address       string `json:"address,omitempty"`    // that was reached
	Credential    string `json:"credential,omitempty"` // keyed digest of where it is from
	Outcome       string `json:"outcome,omitempty"`
	Sent          string `json:"sent,omitempty"` // "no", "yes" or "unknown"
	Line          int    `json:"line,omitempty"` // of the input, where each line is one
	Status        int    `json:"status,omitempty"`
	InputBytes    int64  `json:"input_bytes,omitempty"`
	RequestBytes  int64  `json:"request_bytes,omitempty"`
	ResponseBytes int64  `json:"response_bytes,omitempty"`
	LatencyNS     int64  `json:"latency_ns,omitempty"`
}

// Line encodes an entry with its newline.
func (e *LogEntry) Line() ([]byte, error) {
	b, err := jsonLine(e)
	if err == nil && len(b) > maxEntry {
		err = fmt.Errorf("seal: an entry of %d bytes is too long for the log", len(b))
	}
	return b, err
}

func jsonLine(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("seal: encode: %w", err)
	}
	return append(trace.EscapeJSON(b), '\n'), nil
}

const maxEntry = 4 << 10 // bytes of a line of the log

// ParseLogEntry reads what Line wrote.
func ParseLogEntry(line []byte) (LogEntry, error) {
	var e LogEntry
	if len(line) > maxEntry {
		return e, errors.New("longer than an entry can be")
	}
	if err := strictJSON(line, &e); err != nil {
		return e, err
	}
	if e.Kind == "" {
		return e, errors.New("an entry of no kind")
	}
	return e, nil
}

// LogHead is the signed head of the host's log.
type LogHead struct {
	Size  int64     // entries
	Root  tlog.Hash // of the tree over them
	Bytes int64     // of the entries
	Time  time.Time
}

// Sign returns the head as a note, as a checkpoint of C2SP tlog-checkpoint.
func (h LogHead) Sign(host *Key) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\nbytes %d\ntime %s\n", LogOrigin, h.Size, h.Root, h.Bytes, stamp(h.Time))
	return note.Sign(&note.Note{Text: text}, host)
}

// ParseLogHead checks a head against the host's keys.
func ParseLogHead(text []byte, hosts Keys) (LogHead, error) {
	n, err := openNote(text, hosts)
	if err != nil {
		return LogHead{}, err
	}
	return parseLogHead(n.Text)
}

// TrimHead takes off the newlines that fill up the file of a head.
func TrimHead(b []byte) []byte {
	if b = bytes.TrimRight(b, "\n"); len(b) > 0 {
		b = append(b, '\n')
	}
	return b
}

// PeekLogHead reads a head without asking who signed it.
func PeekLogHead(text []byte) (LogHead, error) {
	body, _, ok := strings.Cut(string(text), "\n\n")
	if !ok {
		return LogHead{}, errors.New("not a signed note")
	}
	return parseLogHead(body + "\n")
}

func parseLogHead(text string) (LogHead, error) {
	var h LogHead
	c := strings.SplitN(text, "\n", 4)
	if len(c) != 4 || c[0] != LogOrigin {
		return h, errors.New("not the head of a host's log")
	}
	f, err := fields("x\n"+c[3], "x", "bytes", "time")
	if err != nil {
		return h, err
	}
	var errs [4]error
	h.Size, errs[0] = natural(c[1])
	h.Root, errs[1] = tlog.ParseHash(c[2])
	h.Bytes, errs[2] = natural(f[0])
	h.Time, errs[3] = time.Parse(time.RFC3339Nano, f[1])
	return h, errors.Join(errs[:]...)
}

// Log is a host's log that was read and checked.
type Log struct {
	Head   LogHead
	Runs   map[RunID]*LoggedRun
	Faults []Fault
	Gaps   []string // times at which the log was found damaged, and how

	Dispatches []LogEntry // in their order

	roots []tlog.Hash // after each entry
}

// RunID names a run in the log.
type RunID struct {
	User int // see LogEntry
	ID   string
}

// LoggedRun is what the log says about one run.
type LoggedRun struct {
	Started   int64  // index of its start; -1: none
	Key       string // SHA-256 of the certificate of its key
	Seal      string // SHA-256 of its seal
	Recovered bool
	Pruned    *LogEntry
	Unanchor  string // why its seal did not reach every anchor
}

// ReadLog reads the entries and checks them against the signed head, which may
// be empty for a log that has none yet. What follows the head's entries was
// being added when its writer died; it is read too.
func ReadLog(entries io.Reader, head []byte, hosts Keys) (*Log, error) {
	l := &Log{Runs: map[RunID]*LoggedRun{}}
	if len(head) > 0 {
		var err error
		if l.Head, err = ParseLogHead(head, hosts); err != nil {
			l.fault("head", 0, "%v", err)
		}
	}
	in := bufio.NewScanner(entries)
	in.Buffer(make([]byte, 0, 64<<10), maxEntry)
	in.Split(wholeLines)
	var f frontier
	for in.Scan() {
		f.add(tlog.RecordHash(in.Bytes()))
		l.roots = append(l.roots, f.root())
		e, err := ParseLogEntry(in.Bytes())
		if err != nil {
			l.fault("entries", f.size, "%v", err)
			continue
		}
		l.add(e, f.size-1)
		if f.size == l.Head.Size && l.roots[f.size-1] != l.Head.Root {
			l.fault("entries", 0, "the entries do not match the signed head of %d", l.Head.Size)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("the host's log, entry %d: %w", f.size+1, err)
	}
	if f.size < l.Head.Size {
		l.fault("entries", 0, "%d entries, signed were %d: the end is missing", f.size, l.Head.Size)
	}
	return l, nil
}

func (l *Log) fault(file string, line int64, format string, a ...any) {
	l.Faults = append(l.Faults, Fault{File: "log/" + file, Line: line, Text: fmt.Sprintf(format, a...)})
}

func (l *Log) add(e LogEntry, index int64) {
	switch e.Kind {
	case LogDamaged:
		l.Gaps = append(l.Gaps, trace.Line(e.Time+": "+e.Why))
		return
	case LogDispatch, LogDispatched:
		l.Dispatches = append(l.Dispatches, e)
		return
	case LogKey:
		return
	}
	id := RunID{e.User, e.Run}
	r := l.Runs[id]
	if r == nil {
		r = &LoggedRun{Started: -1}
		l.Runs[id] = r
	}
	switch e.Kind {
	case LogStart:
		r.Started, r.Key = index, e.SHA256
	case LogSeal, LogRecovered:
		if r.Seal != "" && r.Seal != e.SHA256 {
			l.fault("entries", index+1, "run %s was sealed before", e.Run)
		}
		r.Seal, r.Recovered = e.SHA256, e.Kind == LogRecovered
	case LogPruned:
		// A run is deleted only when this is signed. Behind the head anybody who
		// passes on a copy can have written it.
		if index < l.Head.Size {
			r.Pruned = &e
		}
	case LogUnanchor:
		r.Unanchor = e.Why
	}
}

// Check holds what Verify found of a run against the log, and adds what differs
// to the report. A log that was damaged may lack entries.
func (l *Log) Check(r *Report, id RunID) {
	logged, whole := l.Runs[id], len(l.Gaps) == 0
	if logged == nil {
		r.refuse(r.digest != "" && whole, "the host's log does not know this run")
		return
	}
	r.refuse(r.digest == "" && logged.Seal != "", "the file is missing: the host's log has its digest %s", logged.Seal)
	if r.bare {
		r.Faults = append(r.Faults, Fault{File: TraceFile, Text: "the file is missing: the host's log has the start of the run"})
		r.Verdict, r.Why = trace.Altered, nil
	}
	if r.digest == "" || r.Statement == nil {
		return
	}
	p := &r.Statement.Predicate
	own := p.State == Sealed && logged.Key == fmt.Sprintf("%x", sha256.Sum256([]byte(p.Certificate)))
	r.refuse(p.State == Sealed && !own && logged.Started >= 0, "sealed by another key than the one that the host's log has of the run's start")
	switch {
	case logged.Seal == r.digest:
	case logged.Seal != "":
		r.refuse(true, "not the seal that the host's log has (SHA-256 %s, logged %s)", r.digest, logged.Seal)
	case own:
		r.Why = append(r.Why, "agentguard was killed after it had sealed the run, before the host's log had the seal")
	default:
		r.refuse(whole, "the host's log does not know this seal")
	}
	if logged.Unanchor != "" {
		r.Why = append(r.Why, "not every note reached its anchor: "+trace.Line(logged.Unanchor))
	}
	if why := l.Contradicts(p.HostLog); why != "" {
		r.refuse(whole, "the run began at another state of the host's log: %s", why)
	}
}

// refuse notes that the seal is not what it should be, if that is so.
func (r *Report) refuse(bad bool, format string, a ...any) {
	if bad {
		r.Faults = append(r.Faults, Fault{File: SealFile, Text: fmt.Sprintf(format, a...)})
		r.Verdict = trace.Altered
	}
}

// Missing are the runs of a user that were started or sealed, were not deleted
// on purpose, and are not among those that there are.
func (l *Log) Missing(user int, there []string) []string {
	var gone []string
	have := make(map[string]bool, len(there))
	for _, id := range there {
		have[id] = true
	}
	for id, r := range l.Runs {
		if id.User == user && r.Pruned == nil && !have[id.ID] {
			gone = append(gone, id.ID)
		}
	}
	slices.Sort(gone)
	return gone
}

// Contradicts says how the place that a seal remembers differs from the log, or
// "": a log that was set back to an earlier state and went on from there does
// not hold what later seals saw.
func (l *Log) Contradicts(p *Place) string {
	if p == nil {
		return ""
	}
	if p.Size > int64(len(l.roots)) || p.Size < 1 {
		return fmt.Sprintf("the log had %d entries then, and has %d now: it was set back", p.Size, len(l.roots))
	}
	if l.roots[p.Size-1].String() != p.Root {
		return fmt.Sprintf("the first %d entries of the log are not those of then", p.Size)
	}
	return ""
}
