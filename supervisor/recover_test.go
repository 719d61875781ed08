package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// begunRun is a run with some records whose supervisor is at work.
func begunRun(t *testing.T) *Run {
	t.Helper()
	r := testRun(t)
	r.sealer.begin()
	r.sealer.started()
	for range 3 {
		must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindOpen, Path: []byte("/x")}))
	}
	return r
}

// A run whose supervisor died is sealed by the host, as what it is.
func TestRecover(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		r := begunRun(t)
		r.sealer.end()
		if checkpoint {
			must(t, r.sealer.checkpoint())
		}
		must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindOpen, Path: []byte("/later")}))
		must(t, r.rec.w.Flush())
		_, err := r.files[runs.TraceFile].WriteString(`{"v":1,"se`)
		must(t, err)
		if err := Recover(r.caller, r.state, r.id); !errors.Is(err, runs.ErrLive) {
			t.Errorf("a live run: %v", err)
		}
		must(t, r.Close())
		must(t, Recover(r.caller, r.state, r.id))
		if err := Recover(r.caller, r.state, r.id); !errors.Is(err, ErrSealed) {
			t.Errorf("again: %v", err)
		}
		d, err := r.state.Open(r.id)
		must(t, err)
		defer d.Close()
		r.dir = d
		rep := verifyRun(t, r)
		p := rep.Statement.Predicate
		if rep.Verdict != trace.Incomplete || len(rep.Faults) > 0 || p.State != seal.Recovered || (p.Verified == 3) != checkpoint || rep.Records != 6 {
			t.Errorf("checkpoint %v: %+v", checkpoint, rep)
		}
		res, err := d.Result()
		if err != nil || res.Status != StatusFailed || res.Record.Verdict != "incomplete" || !strings.Contains(res.Error, "killed") {
			t.Errorf("%+v %v", res, err)
		}
		_, keys := openVault(t, r)
		if _, err := seal.Prove(d.FS(), keys, 2); err != nil {
			t.Errorf("no proof from a recovered run: %v", err)
		}
	}
}

// What was lost is said of a run too whose supervisor died after the summary.
func TestRecoverSaysLost(t *testing.T) {
	r := begunRun(t)
	r.sealer.end()
	must(t, r.rec.w.Append(&trace.Event{Kind: trace.KindLoss, Loss: trace.Loss{Class: "file", Cause: "ring", Count: 7, CPU: -1}}))
	must(t, r.rec.w.Close(&trace.Event{Mono: bootTime(), ExitCode: StatusFailed, Reason: runs.ReasonError}))
	must(t, r.Close())
	must(t, Recover(r.caller, r.state, r.id))
	d, err := r.state.Open(r.id)
	must(t, err)
	defer d.Close()
	r.dir = d
	rep := verifyRun(t, r)
	res, err := d.Result()
	if err != nil || rep.Statement.Predicate.Lost != 7 || res.Record.Lost != 7 {
		t.Errorf("%+v %+v %v", rep, res, err)
	}
}

// A seal that did not reach the host's log, because the supervisor was killed in
// between, is genuine, and recovery tells the log.
func TestRecoverSealOutsideLog(t *testing.T) {
	r := begunRun(t)
	endRun(t, r, 0)
	must(t, r.Close())
	entries := filepath.Join(r.state.Path(), "log/entries")
	b, err := os.ReadFile(entries)
	must(t, err)
	must(t, os.WriteFile(entries, b[:bytes.IndexByte(b, '\n')+1], 0o600)) // its start only
	must(t, os.Remove(filepath.Join(r.state.Path(), "log/head")))
	d, err := r.state.Open(r.id)
	must(t, err)
	defer d.Close()
	r.dir = d
	if rep := verifyRun(t, r); rep.Verdict == trace.Altered || !strings.Contains(strings.Join(rep.Why, " "), "killed after it had sealed") {
		t.Errorf("%+v", rep)
	}
	must(t, Recover(r.caller, r.state, r.id))
	if rep := verifyRun(t, r); strings.Contains(strings.Join(rep.Why, " "), "killed") || rep.State != seal.Sealed {
		t.Errorf("%+v", rep)
	}
	if err := Recover(r.caller, r.state, r.id); !errors.Is(err, ErrSealed) {
		t.Errorf("again: %v", err)
	}
}

// A loss of power leaves files that are empty: a result and a seal, of which the log knows nothing or has the
// digest. The one run is recovered, and of the other nobody says that it was not sealed before.
func TestRecoverEmptied(t *testing.T) {
	for _, logged := range []bool{false, true} {
		r := begunRun(t)
		endRun(t, r, 0)
		dir, entries := r.dir.Path(), filepath.Join(r.state.Path(), "log/entries")
		must(t, r.Close())
		must(t, os.Truncate(filepath.Join(dir, seal.SealFile), 0))
		must(t, os.Truncate(filepath.Join(dir, runs.ResultFile), 0))
		if !logged {
			b, err := os.ReadFile(entries)
			must(t, err)
			must(t, os.WriteFile(entries, b[:bytes.IndexByte(b, '\n')+1], 0o600))
			must(t, os.Remove(filepath.Join(r.state.Path(), "log/head")))
		}
		err := Recover(r.caller, r.state, r.id)
		if (err != nil) != logged || logged && !strings.Contains(err.Error(), "the host's log has its digest") {
			t.Errorf("logged %v: %v", logged, err)
		}
		d, err := r.state.Open(r.id)
		must(t, err)
		defer d.Close()
		r.dir = d
		want := trace.Incomplete
		if logged {
			want = trace.Altered
		}
		if rep := verifyRun(t, r); rep.Verdict != want || (len(rep.Faults) > 0) != logged { // verifyRun looks at the log, too
			t.Errorf("logged %v: %+v", logged, rep)
		}
	}
}

// A supervisor that was killed when it had just made the directory leaves no run: recovery removes what is there.
// Where the log knows of a run in it, the record was made away with.
func TestRecoverNothing(t *testing.T) {
	r := begunRun(t)
	endRun(t, r, 0)
	id := runs.NewID(time.Now())
	d, err := r.state.Create(id)
	must(t, err)
	if err := Recover(r.caller, r.state, id); !errors.Is(err, runs.ErrLive) {
		t.Errorf("a live run: %v", err)
	}
	must(t, d.Close())
	d, err = r.state.Open(id)
	must(t, err)
	defer d.Close()
	own, ownID := r.dir, r.id
	r.dir, r.id = d, id
	if rep := verifyRun(t, r); rep.Verdict != trace.Unsealed || !strings.Contains(strings.Join(rep.Why, " "), "no record") {
		t.Errorf("%+v", rep)
	}
	if left, err := r.leftBehind(id); !left || err != nil {
		t.Errorf("a start leaves it: %v", err)
	}
	must(t, Recover(r.caller, r.state, id))
	if _, err := r.state.Open(id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	r.dir, r.id = own, ownID
	must(t, os.Remove(filepath.Join(own.Path(), runs.TraceFile)), os.Remove(filepath.Join(own.Path(), seal.SealFile)))
	if rep := verifyRun(t, r); rep.Verdict != trace.Altered || len(rep.Faults) == 0 {
		t.Errorf("%+v", rep)
	}
	must(t, r.Close())
	if err := Recover(r.caller, r.state, r.id); err == nil {
		t.Error("recovered without its record")
	}
}

// A record that does not match its checkpoints is not sealed again.
func TestRecoverRefusesAltered(t *testing.T) {
	r := begunRun(t)
	r.sealer.end()
	must(t, r.sealer.checkpoint())
	name := filepath.Join(r.dir.Path(), runs.TraceFile)
	must(t, r.Close())
	b, err := os.ReadFile(name)
	must(t, err)
	b[10] ^= 1
	must(t, os.WriteFile(name, b, 0o600))
	if err := Recover(r.caller, r.state, r.id); err == nil || !strings.Contains(err.Error(), "does not match its checkpoints") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(name), seal.SealFile)); err == nil {
		t.Error("sealed")
	}
}

// Whoever deletes a run says so in the host's log.
func TestForget(t *testing.T) {
	r := begunRun(t)
	endRun(t, r, 0)
	if err := Forget(r.caller, r.state, r.id, "test"); !errors.Is(err, runs.ErrLive) {
		t.Errorf("a live run: %v", err)
	}
	must(t, r.Close())
	d, err := r.state.Open(r.id)
	must(t, err, d.Share())
	if err := Forget(r.caller, r.state, r.id, "test"); !errors.Is(err, runs.ErrLive) {
		t.Errorf("one whose changes are being committed: %v", err)
	}
	if log, err := os.ReadFile(filepath.Join(r.state.Path(), "log/entries")); err != nil || bytes.Contains(log, []byte(seal.LogPruned)) {
		t.Errorf("it is there, and the log says %s, %v", log, err)
	}
	must(t, d.Close())
	must(t, Forget(r.caller, r.state, r.id, "test"))
	v, keys := openVault(t, r)
	log, err := v.Log(keys)
	must(t, err)
	if l := log.Runs[seal.RunID{ID: r.id}]; l == nil || l.Pruned == nil || l.Pruned.Why != "test" || len(log.Missing(0, nil)) != 0 {
		t.Errorf("%+v", l)
	}
}

// A file among what was executed that is not what its name says is not vouched for.
func TestRecoverStray(t *testing.T) {
	r := begunRun(t)
	r.sealer.end()
	dir := filepath.Join(r.dir.Path(), runs.CodeDir)
	code := digest([]byte("#!/bin/sh\n"))
	must(t, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, code), []byte("#!/bin/sh\n"), 0o600),
		os.WriteFile(filepath.Join(dir, digest([]byte("x"))), nil, 0o600), os.WriteFile(filepath.Join(dir, "stray"), nil, 0o600))
	must(t, r.Close())
	must(t, Recover(r.caller, r.state, r.id))
	d, err := r.state.Open(r.id)
	must(t, err)
	defer d.Close()
	r.dir = d
	rep := verifyRun(t, r)
	var kept []string
	for _, sub := range rep.Statement.Subject {
		if strings.HasPrefix(sub.Name, runs.CodeDir+"/") {
			kept = append(kept, sub.Name)
		}
	}
	if rep.Verdict != trace.Incomplete || len(rep.Faults) > 0 || !slices.Equal(kept, []string{runs.CodeDir + "/" + code}) {
		t.Errorf("%q: %+v", kept, rep)
	}
}
