package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// witness is what vouches for the runs of this host.
type witness struct {
	caller supervisor.Caller
	state  *runs.State
	vault  *vault.Vault
	keys   seal.Keys
	log    *seal.Log
}

// openWitness opens the state directory with its keys and its log. Other keys
// take the place of the host's own, if there are any.
func openWitness(state string, keys seal.Keys) (w *witness, err error) {
	w = &witness{keys: keys}
	if w.caller, err = caller(); err != nil {
		return nil, err
	}
	if w.state, w.vault, err = openVouched(state); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		w.keys, err = w.vault.Public()
	}
	if err == nil {
		w.log, err = w.vault.Log(w.keys)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// openVouched opens a state directory and its vault.
func openVouched(state string) (*runs.State, *vault.Vault, error) {
	if of, audit := strings.CutPrefix(state, ofUser); (state == "" || audit) && chooseMode(false) == byHelper {
		return shownRecords(of)
	}
	who, err := caller()
	if err != nil {
		return nil, nil, err
	}
	s, err := openState(state)
	if err != nil {
		return nil, nil, err
	}
	v, err := supervisor.OpenVault(who, s)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, v, nil
}

// Close closes all of it.
func (w *witness) Close() error { return errors.Join(w.vault.Close(), w.state.Close()) }

func (w *witness) id(run string) seal.RunID {
	return seal.RunID{User: supervisor.LogUser(w.caller, w.state), ID: run}
}

// refresh reads the log again: runs come and go while others are looked at, and
// the log is never behind them for long.
func (w *witness) refresh() (err error) {
	w.log, err = w.vault.Log(w.keys)
	return err
}

// missing are the runs that the log has and the state directory has not.
func (w *witness) missing() ([]string, error) {
	ids, err := w.state.IDs()
	if err != nil {
		return nil, err
	}
	user := supervisor.LogUser(w.caller, w.state)
	gone := w.log.Missing(user, ids)
	if len(gone) > 0 { // deleted meanwhile, perhaps
		if err = w.refresh(); err == nil {
			gone = w.log.Missing(user, ids)
		}
	}
	return gone, err
}

// withGone adds to a list of the newest runs those that are missing, and cuts it
// to its length again.
func withGone(state string, list []runs.Summary, limit int) ([]runs.Summary, error) {
	w, err := openWitness(state, nil)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	gone, err := w.missing()
	if err != nil || len(gone) == 0 {
		return list, err
	}
	for _, id := range gone {
		list = append(list, runs.Summary{ID: id, Gone: true})
	}
	slices.SortFunc(list, func(a, b runs.Summary) int { return cmp.Compare(b.ID, a.ID) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, nil
}

// open opens a run for verification.
func (w *witness) open(id string) (*sealedRun, error) {
	d, err := w.state.Open(id)
	if err != nil {
		return nil, err
	}
	check := func(r *seal.Report) {
		if d.Live() {
			r.Why = append([]string{"the run is live"}, r.Why...)
			return
		}
		if l := w.log.Runs[w.id(id)]; r.Statement != nil && (l == nil || l.Seal == "") {
			if err := w.refresh(); err != nil {
				tell("%v", err)
			}
		}
		w.log.Check(r, w.id(id))
	}
	return &sealedRun{id: id, dir: d.FS(), keys: w.keys, check: check, live: d.Live, close: d.Close}, nil
}

// openSealed opens a run of this host, or a copy that a path names.
func openSealed(state, name string, keys seal.Keys) (*sealedRun, error) {
	if isPath(name) {
		if len(keys) == 0 {
			keys, _ = ownKeys(state) // a host without any says what to do below
		}
		return openCopy(name, keys)
	}
	w, err := openWitness(state, keys)
	if err != nil {
		return nil, err
	}
	id, err := w.state.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = w.notFound(name)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r, err := w.open(id)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	closeRun := r.close
	r.close = func() error { return errors.Join(closeRun(), w.Close()) }
	return r, nil
}

// notFound says why a run is not there, as far as the log knows.
func (w *witness) notFound(name string) error {
	switch r := w.log.Runs[w.id(name)]; {
	case r == nil:
		return noRun(name, w.state.Path())
	case r.Pruned != nil:
		return &supervisor.Refusal{What: fmt.Sprintf("run %s was deleted by %s on %s (%s)", name, trace.Line(r.Pruned.By), trace.Line(r.Pruned.Time), trace.Line(r.Pruned.Why))}
	}
	tell("run %s is gone: the host's log has it, and nobody deleted it by agentguard", name)
	return verdictStatus[trace.Altered]
}

// ownKeys are the public keys of this host.
func ownKeys(state string) (seal.Keys, error) {
	w, err := openWitness(state, nil)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if len(w.keys) == 0 {
		return nil, errNoKey
	}
	return w.keys, nil
}

// hostRuns are all runs of a state directory of this host.
func hostRuns(state string, keys seal.Keys) (*collection, error) {
	w, err := openWitness(state, keys)
	if err != nil {
		return nil, err
	}
	gone, err := w.missing()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	ids, err := w.state.IDs()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &collection{keys: w.keys, log: w.log, gone: gone, ids: ids, open: w.open, close: w.Close}, nil
}

// vouchFor holds a run against its seal, by this host's keys. The host's log is
// left to trace verify.
func vouchFor(state string, d *runs.RunDir) (trace.Judgement, []string) {
	var rep *seal.Report
	err := withVault(state, func(v *vault.Vault) error {
		keys, err := v.Public()
		if err == nil {
			rep, err = seal.Verify(d.FS(), keys, nil)
		}
		return err
	})
	if err != nil {
		return trace.Unsealed, []string{"whether it is as it was sealed cannot be said: " + trace.Line(err.Error())}
	}
	var why []string
	for _, f := range rep.Faults {
		why = append(why, f.String())
	}
	if rep.Verdict == trace.Unsealed {
		why = append(why, rep.Why...)
	}
	return rep.Verdict, why
}
