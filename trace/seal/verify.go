package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

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

// verifier is one Verify at work.
type verifier struct {
	dir     fs.FS
	hosts   Keys
	anchors *Anchors // may be nil
	report  *Report
	leaves  []tlog.Hash // of the record as it is, in the blocks of the table
	head    Head        // of these
	file    [sha256.Size]byte
	broken  error // the table could not be used
	tree    tlog.Hash
	rows    int64 // of the table
}

// Verify checks a run's directory against the hosts' public keys, and against
// notes that were kept elsewhere, unless these are nil. The error is that the
// files could not be read; everything else is in the report.
func Verify(dir fs.FS, hosts Keys, anchors *Anchors) (*Report, error) {
	v := &verifier{dir: dir, hosts: hosts, anchors: anchors, report: &Report{}}
	text, err := readFile(dir, SealFile, MaxSeal)
	switch {
	case err == nil && len(text) > 0:
		err = v.sealed(text)
	case err == nil || errors.Is(err, fs.ErrNotExist): // an empty file is what a loss of power leaves, and says no more than none
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
	if p.State == Sealed && (p.Verdict == trace.Complete || p.Verdict == trace.Degraded) {
		r.Verdict = p.Verdict
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
	if err := v.checkpoints(s, key); err != nil {
		return err
	}
	v.anchored(p.Run, key)
	return nil
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
		sum, err := Sum(v.dir, sub.Name)
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

// Sum returns the SHA-256 of a file, in lower-case hexadecimal.
func Sum(dir fs.FS, name string) (string, error) {
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
