package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// result is that of the run, if the supervisor lived to write one, else what can
// be said without it.
func (r *recovery) result() (*runs.Result, error) {
	res, err := r.dir.Result()
	if err == nil {
		r.finding = unsealedFinding
		res.Record.Verdict = string(trace.Incomplete)
		res.Record.Findings = append(res.Record.Findings, r.finding)
		return res, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var plan struct {
		Argv []string `json:"argv"`
	}
	if len(r.plan) > 0 {
		if err := json.Unmarshal(r.plan, &plan); err != nil {
			return nil, fmt.Errorf("plan.json: %w", err)
		}
	}
	res = &runs.Result{
		ID: r.dir.ID(), Version: Version, Argv: plan.Argv, Started: time.Unix(0, r.start.Wall), Ended: time.Now(),
		Status: StatusFailed, Reason: runs.ReasonError, Error: "agentguard was killed, and the run with it",
		Record: runs.Record{Path: r.dir.Path(), Verdict: string(trace.Incomplete), Records: uint64(r.head.Records), Lost: r.lost(), Findings: []string{r.finding}},
	}
	for name, out := range map[string]*runs.Output{runs.StdoutFile: &res.Stdout, runs.StderrFile: &res.Stderr} {
		if out.SHA256, out.Kept, err = r.output(name); err != nil {
			return nil, err
		}
		out.Bytes = out.Kept // at least
	}
	return res, nil
}

// lost counts what the record says was lost, also in one that had its summary.
func (r *recovery) lost() (n uint64) {
	for _, l := range r.losses {
		n += l.Count
	}
	return max(n, r.summary.Lost)
}

// output is what a stream's file holds; a supervisor that was killed early has made none.
func (r *recovery) output(name string) (sum string, size uint64, err error) {
	n, err := r.dir.Size(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	sum, err = seal.Sum(r.dir.FS(), name)
	return sum, uint64(n), err
}

func (r *recovery) statement(res *runs.Result, result []byte) (*seal.Statement, error) {
	note, err := seal.Checkpoint{Run: r.dir.ID(), Head: r.head, Time: time.Now()}.Sign(r.host)
	if err != nil {
		return nil, err
	}
	st := &seal.Statement{Predicate: seal.Predicate{
		Run: r.dir.ID(), State: seal.Recovered, Tool: Version, BootID: r.start.BootID, Checkpoint: string(note),
		Started: seal.Stamp(res.Started), Ended: seal.Stamp(res.Ended), Tree: seal.NewTree(r.head), Checkpoints: r.was.Checkpoints, Durable: true,
		Verified: r.was.Verified, Verdict: trace.Incomplete, Lost: r.lost(), Findings: []string{r.finding},
		PlanSHA256: digest(r.plan), Status: res.Status, Reason: res.Reason,
	}}
	for _, l := range r.losses {
		st.Predicate.Losses = append(st.Predicate.Losses, seal.Loss{Class: l.Class, Cause: l.Cause, Count: l.Count})
	}
	st.Subject = []seal.Subject{
		{Name: runs.TraceFile, Digest: seal.Digest{SHA256: r.sum}},
		{Name: runs.ResultFile, Digest: seal.Digest{SHA256: digest(result)}},
	}
	for _, name := range []string{runs.PlanFile, runs.StdoutFile, runs.StderrFile} {
		sum, err := seal.Sum(r.dir.FS(), name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		st.Subject = append(st.Subject, seal.Subject{Name: name, Digest: seal.Digest{SHA256: sum}})
	}
	kept, err := keptSubjects(r.dir)
	st.Subject = append(st.Subject, slices.DeleteFunc(kept, r.isStray)...)
	return st, err
}

// isStray is true of a file among what was executed that is not what its name
// says: nobody vouches for it.
func (r *recovery) isStray(sub seal.Subject) bool {
	sum, err := seal.Sum(r.dir.FS(), sub.Name)
	return err != nil || sum != sub.Digest.SHA256
}
