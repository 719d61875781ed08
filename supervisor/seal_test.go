package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// endRun closes and seals a run without a command.
func endRun(t *testing.T, r *Run, took time.Duration) *runs.Result {
	t.Helper()
	res := &runs.Result{ID: r.id, Started: time.Now(), Ended: time.Now(), Reason: runs.ReasonExit, Usage: runs.Usage{Wall: took}}
	for _, o := range []*runs.Output{&res.Stdout, &res.Stderr} {
		o.SHA256 = digest(nil)
	}
	sum := r.closeRecord(res, bpf.Stats{}, nil, nil)
	r.storeResult(res, sum)
	return res
}

// openVault opens what vouches for the run's record, until the test ends.
func openVault(t *testing.T, r *Run) (*vault.Vault, seal.Keys) {
	t.Helper()
	v, err := OpenVault(r.caller, r.state)
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	keys, err := v.Public()
	must(t, err)
	return v, keys
}

func verifyRun(t *testing.T, r *Run) *seal.Report {
	t.Helper()
	v, keys := openVault(t, r)
	rep, err := seal.Verify(r.dir.FS(), keys, nil)
	must(t, err)
	log, err := v.Log(keys)
	must(t, err)
	log.Check(rep, seal.RunID{ID: r.id})
	for _, f := range log.Faults {
		t.Error(f)
	}
	return rep
}

// A run is sealed when it ends, with its checkpoints, its result and what was
// executed, and the host's log has its start and its seal.
func TestSeal(t *testing.T) {
	for _, durable := range []bool{false, true} {
		r := testRun(t)
		code := digest([]byte("#!/bin/sh\n"))
		must(t, os.Mkdir(filepath.Join(r.dir.Path(), runs.CodeDir), 0o700))
		must(t, os.WriteFile(filepath.Join(r.dir.Path(), runs.CodeDir, code), []byte("#!/bin/sh\n"), 0o600))
		r.sealer.begin()
		r.sealer.started()
		took := time.Millisecond
		for i := range 3 {
			must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindOpen, Path: []byte{byte('a' + i)}}))
		}
		if durable {
			took = time.Minute
			r.sealer.end() // its goroutine would do the same after a while
			must(t, r.sealer.logStart())
			must(t, r.sealer.checkpoint())
			must(t, r.sealer.checkpoint()) // nothing came: no second one
		}
		res := endRun(t, r, took)
		if strings.Contains(strings.Join(res.Record.Findings, " "), "sealed") {
			t.Fatalf("%+v", res.Record)
		}
		rep := verifyRun(t, r)
		if rep.Verdict != trace.Incomplete || len(rep.Faults) > 0 || rep.Verified != 4 || (rep.Checkpoints == 1) != durable { // no sensor: incomplete
			t.Errorf("durable %v: %+v", durable, rep)
		}
		p := rep.Statement.Predicate
		if p.Durable != durable || p.HostLog == nil || len(rep.Statement.Subject) != 6 || p.Counts["kind.open"] != 3 {
			t.Errorf("durable %v: %+v", durable, rep.Statement)
		}
		must(t, os.WriteFile(filepath.Join(r.dir.Path(), runs.CodeDir, code), []byte("#!/bin/sx\n"), 0o600))
		if rep := verifyRun(t, r); rep.Verdict != trace.Altered {
			t.Errorf("with other code: %+v", rep)
		}
	}
}

// What keeps a run from being sealed is in its result, and the run is unsealed.
func TestSealFails(t *testing.T) {
	spoil := map[string]func(r *Run) error{
		"the vault is open to others": func(r *Run) error {
			return os.MkdirAll(filepath.Join(r.state.Path(), "keys"), 0o755)
		},
		"the record was written to": func(r *Run) error {
			_, err := r.files[runs.TraceFile].WriteString("{}\n")
			return err
		},
	}
	for name, do := range spoil {
		r := testRun(t)
		must(t, do(r))
		r.sealer.begin()
		r.sealer.started()
		must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindOpen}))
		res := endRun(t, r, time.Second)
		if res.Record.Verdict != string(trace.Unsealed) || !strings.Contains(strings.Join(res.Record.Findings, "\n"), "could not be sealed") {
			t.Errorf("%s: %+v", name, res.Record)
		}
		stored, err := r.dir.Result()
		if err != nil || stored.Record.Verdict != string(trace.Unsealed) {
			t.Errorf("%s: %+v %v", name, stored, err)
		}
		if _, err := os.Stat(filepath.Join(r.dir.Path(), seal.SealFile)); err == nil {
			t.Errorf("%s: it has a seal", name)
		}
	}
}

// A run whose seal is stored and whose end the host's log could not take is sealed: what was signed stays as it
// is, the caller is told, and recovery tells the log.
func TestSealOutsideLog(t *testing.T) {
	r := begunRun(t)
	r.sealer.end()
	head := filepath.Join(r.state.Path(), "log/head")
	must(t, os.Mkdir(head, 0o700))
	res := endRun(t, r, 0)
	if res.Record.Verdict == string(trace.Unsealed) || !strings.Contains(res.Error, "the host's log is not told") {
		t.Errorf("%q, %+v", res.Error, res.Record)
	}
	must(t, os.Remove(head))
	if rep := verifyRun(t, r); rep.Verdict == trace.Altered || rep.State != seal.Sealed {
		t.Errorf("%+v", rep)
	}
	must(t, r.Close())
	must(t, Recover(r.caller, r.state, r.id))
	d, err := r.state.Open(r.id)
	must(t, err)
	defer d.Close()
	r.dir = d
	if rep := verifyRun(t, r); rep.Verdict == trace.Altered || rep.State != seal.Sealed || strings.Contains(strings.Join(rep.Why, " "), "killed") {
		t.Errorf("%+v", rep)
	}
}

// A seal that cannot be stored is not in the host's log: the run is unsealed, not altered, and can be recovered.
func TestSealNotStored(t *testing.T) {
	r := begunRun(t)
	dir := r.dir.Path()
	must(t, os.MkdirAll(filepath.Join(dir, "."+seal.SealFile+".tmp/x"), 0o700))
	res := endRun(t, r, 0)
	if res.Record.Verdict != string(trace.Unsealed) || !strings.Contains(strings.Join(res.Record.Findings, "\n"), "could not be sealed") {
		t.Errorf("%+v", res.Record)
	}
	if rep := verifyRun(t, r); rep.Verdict != trace.Unsealed || len(rep.Faults) > 0 {
		t.Errorf("%+v", rep)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "."+seal.SealFile+".tmp")))
	must(t, r.Close())
	must(t, Recover(r.caller, r.state, r.id))
	d, err := r.state.Open(r.id)
	must(t, err)
	defer d.Close()
	r.dir = d
	if rep := verifyRun(t, r); rep.Verdict != trace.Incomplete || rep.State != seal.Recovered || len(rep.Faults) > 0 {
		t.Errorf("%+v", rep)
	}
}

// A result that says too much does not stay where the disk has no room for the one in its place.
func TestRewriteResult(t *testing.T) {
	r := testRun(t)
	res := &runs.Result{ID: r.id, Record: runs.Record{Verdict: string(trace.Complete)}}
	must(t, r.dir.WriteResult(res, false))
	res.Record.Verdict = string(trace.Unsealed)
	must(t, r.rewriteResult(res))
	if got, err := r.dir.Result(); err != nil || got.Record.Verdict != string(trace.Unsealed) {
		t.Errorf("%+v, %v", got, err)
	}
	must(t, os.MkdirAll(filepath.Join(r.dir.Path(), "."+runs.ResultFile+".tmp/x"), 0o700)) // in the way of every write
	if err := r.rewriteResult(res); err == nil {
		t.Error("written")
	}
	if got, err := r.dir.Result(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Places that the administrator named get the checkpoint over the whole run and
// the head of the host's log; what does not arrive is in the log.
func TestAnchors(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{dir + "/anchored", dir + "/no/such/dir"} {
		r := testRun(t)
		r.cfg.SealFile = dir + "/seal.yaml"
		must(t, os.WriteFile(r.cfg.SealFile, []byte("anchor: {file: "+file+"}\n"), 0o600))
		must(t, r.sealer.readConfig())
		r.sealer.begin()
		r.sealer.started()
		must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindOpen}))
		res := endRun(t, r, 0)
		entries, err := os.ReadFile(filepath.Join(r.state.Path(), "log/entries"))
		must(t, err)
		if told := strings.Contains(res.Error, "2 of the notes of this record did not arrive: anchor: open "); told != (file != dir+"/anchored") {
			t.Errorf("%s: the caller is told %q", file, res.Error)
		}
		lost := strings.Contains(string(entries), `"kind":"unanchored"`)
		f, err := os.Open(file)
		if err != nil {
			if !lost {
				t.Errorf("a line that was lost is not in the log:\n%s", entries)
			}
			continue
		}
		defer f.Close()
		a, err := seal.ReadAnchors(f)
		if err != nil || lost || len(a.Runs[r.id]) != 1 || len(a.Logs) != 1 {
			t.Errorf("%v, lost %v, %+v", err, lost, a)
		}
		checkAnchors(t, r, a)
	}
}

func checkAnchors(t *testing.T, r *Run, a *seal.Anchors) {
	t.Helper()
	v, keys := openVault(t, r)
	rep, err := seal.Verify(r.dir.FS(), keys, a)
	if err != nil || rep.Anchored != 1 || len(rep.Faults) > 0 {
		t.Errorf("%+v %v", rep, err)
	}
	log, err := v.Log(keys)
	must(t, err)
	if n := log.CheckAnchors(a, keys); n != 1 || len(log.Faults) > 0 {
		t.Errorf("%d heads, %v", n, log.Faults)
	}
}
