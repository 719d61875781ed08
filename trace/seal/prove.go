package seal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

// ProofType is the type of a proof.
const ProofType = "agentguard-proof-v1"

// Proof shows that one record is in a signed record, and tells nothing about
// the others but their digests.
type Proof struct {
	Type        string           `json:"type"` // ProofType
	Run         string           `json:"run"`
	Line        string           `json:"line"`    // the record, without its newline
	Digests     [][]byte         `json:"digests"` // SHA-256 of each line of its block
	At          int              `json:"at"`      // which of them, from 0
	Block       int64            `json:"block"`   // which leaf, from 0
	Path        tlog.RecordProof `json:"path"`    // RFC 6962, section 2.1.1
	Checkpoint  string           `json:"checkpoint"`
	Certificate string           `json:"certificate,omitempty"` // absent when the host's key signed the checkpoint
}

// ErrNoRecord says that a record has no line with that sequence number.
var ErrNoRecord = errors.New("no record with that sequence number")

// Prove makes the proof of the record with that seq. The run must not be
// altered, and the record must be covered by its seal or by a checkpoint.
func Prove(dir fs.FS, hosts Keys, seq uint64) (*Proof, error) {
	v := &verifier{dir: dir, hosts: hosts}
	r, err := Verify(dir, hosts, nil)
	if err != nil {
		return nil, err
	}
	if r.Verdict == trace.Altered {
		return nil, fmt.Errorf("the record is altered: %s", r.Faults[0])
	}
	v.report = &Report{}
	p := &Proof{Type: ProofType, Run: r.Run}
	size, err := v.anchorOf(p, r)
	if err == nil {
		err = v.record() // after what signs it: a live run may sign more meanwhile
	}
	if err == nil && size > int64(len(v.leaves)) {
		err = errors.New("the record is shorter than what was signed")
	}
	if err != nil {
		return nil, err
	}
	if err := p.find(dir, seq); err != nil {
		return nil, err
	}
	if p.Block >= size {
		return nil, fmt.Errorf("record %d came after the last checkpoint: nothing vouches for it", seq)
	}
	p.Path, err = prove(v.leaves[:size], p.Block)
	return p, err
}

// anchorOf fills in what signs the root, and returns the leaves under it.
func (v *verifier) anchorOf(p *Proof, r *Report) (int64, error) {
	if s := r.Statement; s != nil {
		p.Checkpoint, p.Certificate = s.Predicate.Checkpoint, s.Predicate.Certificate
		return s.Predicate.Tree.Blocks, nil
	}
	b, err := readFile(v.dir, CheckpointsFile, maxCheckpoints)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	all, _ := SplitNotes(b)
	if len(all) < 2 {
		return 0, errors.New("the run has neither a seal nor a checkpoint: nothing vouches for its records")
	}
	_, key, err := ParseCertificate(all[0], v.hosts)
	if err != nil {
		return 0, err
	}
	last := all[len(all)-1]
	c, err := ParseCheckpoint(last, r.Run, key)
	p.Certificate, p.Checkpoint = string(all[0]), string(last)
	return c.Blocks, err
}

// find fills in the block of the record with that seq.
func (p *Proof) find(dir fs.FS, seq uint64) error {
	blocks, err := dir.Open(BlocksFile)
	if err != nil {
		return err
	}
	defer blocks.Close()
	f, err := dir.Open(TraceFile)
	if err != nil {
		return err
	}
	defer f.Close()
	in, t := bufio.NewReaderSize(f, 64<<10), newTable(blocks)
	for ; ; p.Block++ {
		r, err := t.next()
		if errors.Is(err, io.EOF) {
			return ErrNoRecord
		}
		if err != nil {
			return err
		}
		if found, err := p.block(in, r.records, seq); found || err != nil {
			return err
		}
	}
}

// block reads one block, and reports whether the record is in it.
func (p *Proof) block(in *bufio.Reader, n int, seq uint64) (found bool, err error) {
	p.Digests = p.Digests[:0]
	for i := range n {
		line, err := readLine(in)
		if err != nil {
			return false, err
		}
		d := sha256.Sum256(line)
		p.Digests = append(p.Digests, d[:])
		if got, ok := seqOf(line); ok && got == seq {
			p.Line, p.At, found = string(line[:len(line)-1]), i, true
		}
	}
	return found, nil
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if err == bufio.ErrBufferFull && len(line) <= trace.MaxLine {
			continue
		}
		if err == bufio.ErrBufferFull {
			return nil, errors.New("a line is longer than a record can be")
		}
		return line, err
	}
}

// seqOf is the sequence number in a line of a record: its second field.
func seqOf(line []byte) (uint64, bool) {
	_, rest, ok := bytes.Cut(line[:min(len(line), 64)], []byte(`,"seq":`))
	end := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if !ok || end < 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	return n, err == nil
}

// prove returns the audit path of leaf n.
func prove(leaves []tlog.Hash, n int64) (tlog.RecordProof, error) {
	var stored hashes
	for i, leaf := range leaves {
		list, err := tlog.StoredHashesForRecordHash(int64(i), leaf, stored)
		if err != nil {
			return nil, err
		}
		stored = append(stored, list...)
	}
	return tlog.ProveRecord(int64(len(leaves)), n, stored)
}

// hashes are stored hashes in memory, as tlog numbers them.
type hashes []tlog.Hash

// ReadHashes implements tlog.HashReader.
func (h hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, 0, len(indexes))
	for _, i := range indexes {
		if i < 0 || i >= int64(len(h)) {
			return nil, errors.New("seal: a hash that is not there")
		}
		out = append(out, h[i])
	}
	return out, nil
}

// JSON encodes a proof as one line.
func (p *Proof) JSON() ([]byte, error) {
	b, err := json.Marshal(p)
	return append(b, '\n'), err
}

// IsProof reports whether b looks like a proof.
func IsProof(b []byte) bool { return bytes.HasPrefix(b, []byte(`{"type":"`+ProofType+`"`)) }

// MaxProof bounds a proof, in bytes.
const MaxProof = 2*trace.MaxLine + 64<<10

// OpenProof checks a proof against the hosts' public keys.
func OpenProof(b []byte, hosts Keys) (*Proof, Checkpoint, error) {
	p := &Proof{}
	if err := strictJSON(b, p); err != nil {
		return nil, Checkpoint{}, fmt.Errorf("not a proof: %w", err)
	}
	if again, err := p.JSON(); err != nil || !bytes.Equal(again, b) {
		return nil, Checkpoint{}, errors.New("the proof is not in its one form")
	}
	if p.Type != ProofType {
		return nil, Checkpoint{}, errors.New("not a proof of this version")
	}
	c, err := p.signed(hosts)
	if err != nil {
		return nil, c, err
	}
	var leaf []byte
	for _, d := range p.Digests {
		if len(d) != sha256.Size {
			return nil, c, errors.New("not a digest")
		}
		leaf = append(leaf, d...)
	}
	if own := sha256.Sum256([]byte(p.Line + "\n")); p.At < 0 || p.At >= len(p.Digests) || !bytes.Equal(own[:], p.Digests[p.At]) {
		return nil, c, errors.New("the line is not the one that was recorded")
	}
	if p.Block < 0 || p.Block >= c.Blocks {
		return nil, c, errors.New("the block is not one of the record's")
	}
	if err := tlog.CheckRecord(p.Path, c.Blocks, c.Root, p.Block, tlog.RecordHash(leaf)); err != nil {
		return nil, c, errors.New("the block is not part of the signed record")
	}
	return p, c, nil
}

// signed checks who signed the root.
func (p *Proof) signed(hosts Keys) (Checkpoint, error) {
	if p.Certificate != "" {
		cert, key, err := ParseCertificate([]byte(p.Certificate), hosts)
		if err != nil {
			return Checkpoint{}, err
		}
		if cert.Run != p.Run {
			return Checkpoint{}, fmt.Errorf("the key is that of run %s", cert.Run)
		}
		return ParseCheckpoint([]byte(p.Checkpoint), p.Run, key)
	}
	n, err := openNote([]byte(p.Checkpoint), hosts)
	if err != nil {
		return Checkpoint{}, err
	}
	var key note.Verifier
	for _, s := range n.Sigs {
		key = hosts.by(fmt.Sprintf("%s+%08x", s.Name, s.Hash))
	}
	return ParseCheckpoint([]byte(p.Checkpoint), p.Run, key)
}
