package seal

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// RunKeyName is what the key of a run is called, and the origin of its
// checkpoints.
func RunKeyName(run string) string { return "agentguard/run/" + run }

// Certificate is the host's word for the key of a run.
type Certificate struct {
	Run    string // id
	Key    string // public, as note.NewVerifier reads it
	BootID string
	Time   time.Time
}

const certificateTitle = "agentguard run key v1"

// Sign returns the certificate as a note that is signed by the host's key.
func (c Certificate) Sign(host *Key) ([]byte, error) {
	text := certificateTitle + "\nrun " + c.Run + "\nkey " + c.Key + "\nboot " + c.BootID + "\ntime " + stamp(c.Time) + "\n"
	return note.Sign(&note.Note{Text: text}, host)
}

// ParseCertificate checks a certificate against the hosts' keys, and returns
// it with the run's key.
func ParseCertificate(text []byte, hosts Keys) (Certificate, note.Verifier, error) {
	n, err := openNote(text, hosts)
	if err != nil {
		return Certificate{}, nil, fmt.Errorf("the certificate of the run's key: %w", err)
	}
	f, err := fields(n.Text, certificateTitle, "run", "key", "boot", "time")
	if err != nil {
		return Certificate{}, nil, fmt.Errorf("the certificate of the run's key: %w", err)
	}
	c := Certificate{Run: f[0], Key: f[1], BootID: f[2]}
	v, err := note.NewVerifier(c.Key)
	if err == nil {
		c.Time, err = time.Parse(time.RFC3339Nano, f[3])
	}
	if err == nil && v.Name() != RunKeyName(c.Run) {
		err = errors.New("the key has another run's name")
	}
	if err != nil {
		return Certificate{}, nil, fmt.Errorf("the certificate of the run's key: %w", err)
	}
	return c, v, nil
}

// fields takes a text of a title and "name value" lines apart.
func fields(text, title string, names ...string) ([]string, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < len(names)+2 || lines[0] != title {
		return nil, fmt.Errorf("not %q", title)
	}
	values := make([]string, 0, len(names))
	for i, name := range names {
		v, ok := strings.CutPrefix(lines[i+1], name+" ")
		if !ok {
			return nil, fmt.Errorf("no %q in line %d", name, i+2)
		}
		values = append(values, v)
	}
	return values, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// Checkpoint is a signed word about the record of a Run, by its id, as it was at
// a Time, by the host's clock.
type Checkpoint struct {
	Run string
	Head
	Time time.Time
}

// Sign returns the checkpoint as a note: origin, leaves and root as in C2SP
// tlog-checkpoint, then records, bytes and time as extension lines.
func (c Checkpoint) Sign(key note.Signer) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\nrecords %d\nbytes %d\ntime %s\n", RunKeyName(c.Run), c.Blocks, c.Root, c.Records, c.Bytes, stamp(c.Time))
	return note.Sign(&note.Note{Text: text}, key)
}

// ParseCheckpoint checks a checkpoint of a run against the run's key.
func ParseCheckpoint(text []byte, run string, key note.Verifier) (Checkpoint, error) {
	c := Checkpoint{Run: run}
	n, err := openNote(text, Keys{key})
	if err != nil {
		return c, err
	}
	origin, rest, _ := strings.Cut(n.Text, "\n")
	size, rest, _ := strings.Cut(rest, "\n")
	root, rest, _ := strings.Cut(rest, "\n")
	f, err := fields("x\n"+rest, "x", "records", "bytes", "time")
	if err != nil || origin != RunKeyName(run) {
		return c, errors.Join(errors.New("not a checkpoint of this run"), err)
	}
	var errs [5]error
	c.Blocks, errs[0] = natural(size)
	c.Root, errs[1] = tlog.ParseHash(root)
	c.Records, errs[2] = natural(f[0])
	c.Bytes, errs[3] = natural(f[1])
	c.Time, errs[4] = time.Parse(time.RFC3339Nano, f[2])
	return c, errors.Join(errs[:]...)
}

func natural(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && (n < 0 || strconv.FormatInt(n, 10) != s) {
		err = fmt.Errorf("%q is not a number", s)
	}
	return n, err
}

// AppendNote adds a note to a file of notes; an empty line ends each.
func AppendNote(b, text []byte) []byte { return append(append(b, text...), '\n') }

// SplitNotes takes a file of notes apart. What follows the last whole note is
// rest: a note that was being written when its writer died, or bytes that do
// not belong there.
func SplitNotes(b []byte) (notes [][]byte, rest []byte) {
	for {
		text := bytes.Index(b, []byte("\n\n"))
		if text < 0 {
			return notes, b
		}
		end := bytes.Index(b[text+2:], []byte("\n\n"))
		if end < 0 {
			return notes, b
		}
		end += text + 2
		notes, b = append(notes, b[:end+1]), b[end+2:]
	}
}

// canonical refuses signatures that decode to the same bytes as others: one
// note has one form.
func canonical(n *note.Note) error {
	for _, list := range [][]note.Signature{n.Sigs, n.UnverifiedSigs} {
		for _, s := range list {
			if raw, err := base64.StdEncoding.Strict().DecodeString(s.Base64); err != nil || base64.StdEncoding.EncodeToString(raw) != s.Base64 {
				return errors.New("the signature is not in its one form")
			}
		}
	}
	return nil
}
