package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

// Files of a run that the seal reads or consists of.
const (
	TraceFile       = "trace.jsonl"
	BlocksFile      = "blocks"
	CheckpointsFile = "checkpoints"
	SealFile        = "seal.json"
)

// Fault is one way in which a run differs from what was signed.
type Fault struct {
	File   string `json:"file,omitempty"`
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
	Run     string          `json:"run,omitempty"`
	Verdict trace.Judgement `json:"verdict"` // complete, incomplete, unsealed or altered
	State   string          `json:"state,omitempty"`
	SignBy  string          `json:"key,omitempty"` // the host's key that vouches for it
	Faults  []Fault         `json:"faults,omitempty"`
	Why     []string        `json:"why,omitempty"` // against completeness

	Records  int64     `json:"records"`  // lines of the record as it is
	Verified int64     `json:"verified"` // of them, from the first on, covered by a signature that fits
	Bytes    int64     `json:"bytes"`    // that these fill
	Until    time.Time `json:"until,omitzero"`

	Checkpoints int64 `json:"checkpoints"`

	Statement *Statement `json:"statement,omitempty"`

	digest string // of seal.json
}

// verifier is one Verify at work.
type verifier struct {
	dir    fs.FS
	hosts  Keys
	report *Report
	leaves []tlog.Hash // of the record as it is, in the blocks of the table
	head   Head        // of these
	file   [sha256.Size]byte
	broken error // the table could not be used
	tree   tlog.Hash
	rows   int64 // of the table
}

// Verify checks a run's directory against the hosts' public keys. The error is
// that the files could not be read; everything else is in the report.
func Verify(dir fs.FS, hosts Keys) (*Report, error) {
	v := &verifier{dir: dir, hosts: hosts, report: &Report{}}
	text, err := readFile(dir, SealFile, MaxSeal)
	switch {
	case err == nil:
		err = v.sealed(text)
	case errors.Is(err, fs.ErrNotExist):
		err = v.unsealed()
	}
	if err != nil {
		return nil, err
	}
	return v.report, nil
}

func (v *verifier) fault(file, format string, a ...any) {
	v.report.Faults = append(v.report.Faults, Fault{File: file, Text: fmt.Sprintf(format, a...)})
	v.report.Verdict = trace.Altered
}

// sealed checks a run that has its seal.
func (v *verifier) sealed(text []byte) error {
	v.report.digest = fmt.Sprintf("%x", sha256.Sum256(text))
	s, key, err := Open(text, v.hosts)
	if err != nil {
		v.fault(SealFile, "%v", err)
		return nil
	}
	p := &s.Predicate
	r := v.report
	r.Statement, r.Run, r.State, r.Why = s, p.Run, p.State, why(p)
	r.Verdict = trace.Incomplete
	if p.Verdict == trace.Complete && p.State == Sealed {
		r.Verdict = trace.Complete
	}
	r.SignBy = signedBy(text, p)
	if err := v.record(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if err != nil {
		v.fault(TraceFile, "the file is missing")
	} else if err := v.compare(s); err != nil {
		return err
	}
	if err := v.subjects(s); err != nil {
		return err
	}
	return v.checkpoints(s, key)
}

func why(p *Predicate) []string {
	var out []string
	if p.State == Recovered {
		out = append(out, fmt.Sprintf("sealed by the host afterwards: the run's own key covers the first %d of %d records, the rest is as it was found", p.Verified, p.Tree.Records))
	}
	if p.Lost > 0 {
		out = append(out, fmt.Sprintf("records lost: %d", p.Lost))
	}
	for _, f := range p.Findings {
		out = append(out, trace.Line(f))
	}
	return out
}

// record reads the record in the blocks of the table, and what is beyond them
// in blocks of the full size.
func (v *verifier) record() error {
	f, err := v.dir.Open(TraceFile)
	if err != nil {
		return err
	}
	defer f.Close()
	in := newLines(f)
	blocks, err := v.dir.Open(BlocksFile)
	var t *table
	switch {
	case err == nil:
		defer blocks.Close()
		t = newTable(blocks)
	case errors.Is(err, fs.ErrNotExist):
		v.broken = errors.New("the file is missing")
	default:
		return err
	}
	if err := v.blocks(in, t); err != nil {
		return err
	}
	in.file.Sum(v.file[:0])
	v.report.Records = in.n
	return nil
}

// blocks computes the leaves of the record as it is, and the root of the rows.
func (v *verifier) blocks(in *lines, t *table) error {
	var rows frontier
	for {
		want, r := BlockRecords, row{}
		if v.nextRow(t, &rows, &r) {
			want = r.records
		}
		got, err := readBlock(in, want)
		if err != nil {
			return err
		}
		if got.records == 0 {
			break
		}
		if got.leaf == r.leaf && !bytes.Equal(appendRow(nil, got), appendRow(nil, r)) {
			v.broken = fmt.Errorf("row %d is not what it was", len(v.leaves)+1)
		}
		v.leaves = append(v.leaves, got.leaf)
	}
	for r := (row{}); v.nextRow(t, &rows, &r); { // rows of records that are not there
	}
	v.rows, v.tree = rows.size, rows.root()
	v.head = Head{Blocks: int64(len(v.leaves)), Root: rootOf(v.leaves), Records: in.n, Bytes: in.at}
	return nil
}

// nextRow reads a row of the table into r, if there is one, and adds its leaf
// to the tree of the rows.
func (v *verifier) nextRow(t *table, rows *frontier, r *row) bool {
	if t == nil || v.broken != nil {
		return false
	}
	var err error
	if *r, err = t.next(); err != nil {
		if !errors.Is(err, io.EOF) {
			v.broken = err
		}
		return false
	}
	rows.add(r.leaf)
	return true
}

// readBlock reads up to want lines and returns what their row would be.
func readBlock(in *lines, want int) (row, error) {
	digests := make([]byte, 0, BlockRecords*sha256.Size)
	var r row
	for ; r.records < want; r.records++ {
		d, size, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return r, err
		}
		digests = append(digests, d[:]...)
		r.bytes += size
	}
	r.leaf, r.marks = tlog.RecordHash(digests), marks(digests)
	return r, nil
}

func rootOf(leaves []tlog.Hash) tlog.Hash {
	var f frontier
	for _, l := range leaves {
		f.add(l)
	}
	return f.root()
}

// compare holds the record as it is against what was sealed.
func (v *verifier) compare(s *Statement) error {
	want, err := s.Predicate.Tree.head()
	if err != nil {
		v.fault(SealFile, "the root of the tree: %v", err)
		return nil
	}
	sum := ""
	for _, sub := range s.Subject {
		if sub.Name == TraceFile {
			sum = sub.Digest.SHA256
		}
	}
	same := sum == hex.EncodeToString(v.file[:])
	if v.broken == nil && (v.rows != want.Blocks || v.tree != want.Root) {
		v.broken = errors.New("does not match the seal")
	}
	if v.broken != nil {
		v.fault(BlocksFile, "%v", v.broken)
	}
	switch {
	case same && (v.broken != nil || v.head == want):
		v.report.Verified, v.report.Bytes = v.head.Records, v.head.Bytes
		return nil
	case v.broken != nil:
		v.fault(TraceFile, "the file does not match the seal; without its block table, where cannot be said")
		return nil
	}
	return v.locate()
}

// subjects checks the other files that the seal names.
func (v *verifier) subjects(s *Statement) error {
	for _, sub := range s.Subject {
		if sub.Name == TraceFile {
			continue
		}
		if !fs.ValidPath(sub.Name) {
			v.fault(SealFile, "a subject has the name %q", sub.Name)
			continue
		}
		sum, err := sumFile(v.dir, sub.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			v.fault(sub.Name, "the file is missing")
		case err != nil:
			return err
		case sum != sub.Digest.SHA256:
			v.fault(sub.Name, "the file is not what was sealed (SHA-256 %s, sealed %s)", sum, sub.Digest.SHA256)
		}
	}
	return nil
}

func sumFile(dir fs.FS, name string) (string, error) {
	f, err := dir.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// readFile reads a file of at most limit bytes.
func readFile(dir fs.FS, name string, limit int64) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, err
}

// checkpoints checks the notes of a sealed run against its tree. A recovered
// run has them from before its supervisor died.
func (v *verifier) checkpoints(s *Statement, key note.Verifier) error {
	list, bad, err := v.readCheckpoints(s.Predicate.Run)
	v.report.Checkpoints = int64(len(list.points))
	switch {
	case err != nil:
		return err
	case bad != nil:
		v.fault(CheckpointsFile, "%v", bad)
		return nil
	case int64(len(list.points)) != s.Predicate.Checkpoints:
		v.fault(CheckpointsFile, "%d checkpoints, sealed were %d", len(list.points), s.Predicate.Checkpoints)
		return nil
	case key != nil && list.key != nil && keyID(list.key) != keyID(key):
		v.fault(CheckpointsFile, "the checkpoints are by another key than the seal")
		return nil
	}
	if v.report.Verdict == trace.Altered {
		return nil // where, is said already
	}
	if at := v.disagree(list.points); at != nil {
		v.fault(CheckpointsFile, "the checkpoint after %d records does not match the record", at.Records)
	}
	return nil
}

// disagree returns the first checkpoint that is not of the tree of leaves.
func (v *verifier) disagree(points []Checkpoint) *Checkpoint {
	var f frontier
	for i := range points {
		p := &points[i]
		if p.Blocks < f.size || p.Blocks > int64(len(v.leaves)) {
			return p
		}
		for _, leaf := range v.leaves[f.size:p.Blocks] {
			f.add(leaf)
		}
		if f.root() != p.Root {
			return p
		}
	}
	return nil
}

// notes are the certificate and the checkpoints of a run.
type notes struct {
	key    note.Verifier
	cert   Certificate
	points []Checkpoint
	host   string
}

const maxCheckpoints = 256 << 20 // bytes: a note a second for ten days

// readCheckpoints reads the notes of a run; bad is what does not fit in them. A
// run that had no time for a checkpoint has none.
func (v *verifier) readCheckpoints(run string) (list notes, bad, err error) {
	b, err := readFile(v.dir, CheckpointsFile, maxCheckpoints)
	if errors.Is(err, fs.ErrNotExist) {
		return list, nil, nil
	}
	if err != nil {
		return list, nil, err
	}
	all, rest := SplitNotes(b)
	if len(rest) > 0 && run != "" {
		return list, errors.New("something follows the last note"), nil
	}
	if len(all) == 0 {
		return list, nil, nil
	}
	if list.cert, list.key, bad = ParseCertificate(all[0], v.hosts); bad != nil {
		return list, bad, nil
	}
	if run != "" && list.cert.Run != run {
		return list, fmt.Errorf("the notes are of run %s", list.cert.Run), nil
	}
	list.host = signerOf(all[0])
	for i, text := range all[1:] {
		c, err := ParseCheckpoint(text, list.cert.Run, list.key)
		if err != nil {
			return list, fmt.Errorf("checkpoint %d: %w", i+1, err), nil
		}
		list.points = append(list.points, c)
	}
	return list, nil, nil
}

// unsealed checks the prefix of a run that its checkpoints cover.
func (v *verifier) unsealed() error {
	v.report.Verdict = trace.Unsealed
	v.report.Why = []string{"no seal: the run is live, or agentguard was killed"}
	if err := v.record(); err != nil {
		return err
	}
	list, bad, err := v.readCheckpoints("")
	if err != nil {
		return err
	}
	if bad != nil {
		v.fault(CheckpointsFile, "%v", bad)
		return nil
	}
	v.report.Checkpoints = int64(len(list.points))
	if len(list.points) == 0 {
		return nil
	}
	v.report.Run, v.report.SignBy = list.cert.Run, list.host
	if v.broken != nil {
		v.fault(BlocksFile, "%v", v.broken)
		return nil
	}
	if at := v.disagree(list.points); at != nil {
		return v.locate()
	}
	last := list.points[len(list.points)-1]
	v.report.Verified, v.report.Bytes, v.report.Until = last.Records, last.Bytes, last.Time
	return nil
}

// signedBy is the keyid of the host's key behind a seal that was checked.
func signedBy(text []byte, p *Predicate) string {
	if p.State == Sealed {
		return signerOf([]byte(p.Certificate))
	}
	var env envelope
	if strictJSON(text, &env) != nil || len(env.Signatures) == 0 {
		return ""
	}
	return env.Signatures[0].KeyID
}

// signerOf is the keyid of a note's first signature.
func signerOf(text []byte) string {
	_, err := openNote(text, nil)
	if foreign := new(ForeignKeyError); errors.As(err, &foreign) {
		return foreign.ID
	}
	return ""
}
