package seal

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/mod/sumdb/note"

	"github.com/agentguard/agentguard/trace"
)

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
	list, bad, err := v.readCheckpoints("") // first: a live run may sign more while its record is read
	if err == nil {
		err = v.record()
	}
	if v.report.bare = errors.Is(err, fs.ErrNotExist) && bad == nil && list.key == nil; v.report.bare {
		v.report.Why = []string{"no record: agentguard was killed before it began one"}
		return nil
	}
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
	v.anchored(list.cert.Run, list.key)
	return nil
}
