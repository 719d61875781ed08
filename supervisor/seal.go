package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/agentguard/agentguard/internal/anchor"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// checkpointEvery is how often the record of a live run is signed, if anything
// came to it. A run that is shorter has its seal only.
const checkpointEvery = time.Second

// sealer signs the record of a run while it grows and when it ends.
//
// It works beside the run: its goroutine makes the key, notes the start in the
// host's log and signs checkpoints. What goes wrong there never stops the run;
// the record then has no seal, and the result says so.
type sealer struct {
	r       *Run
	boot    string
	every   time.Duration // checkpointEvery; tests that take longer on a slow machine have it never
	builder *seal.Builder
	started func()          // ends the wait for the command, which runs or never will
	stop    func()          // ends the goroutine
	starts  <-chan struct{} // closed by started
	stops   <-chan struct{} // closed by stop
	done    sync.WaitGroup

	// Of the goroutine, and of finish after it has ended.
	vault         *vault.Vault
	durable       string // of anchor.Config
	anchors       *anchor.Queue
	host, key     *seal.Key
	cert          []byte
	place         *seal.Place
	blocks, notes *os.File
	last          seal.Head
	points        int64
	err           error
}

func newSealer(r *Run, boot string) *sealer {
	starts, stops := make(chan struct{}), make(chan struct{})
	return &sealer{
		r: r, boot: boot, every: checkpointEvery, builder: seal.NewBuilder(), starts: starts, stops: stops,
		started: sync.OnceFunc(func() { close(starts) }), stop: sync.OnceFunc(func() { close(stops) }),
	}
}

// begin starts the sealer's goroutine: it makes the key while the envelope is
// put on, and waits for the command.
func (s *sealer) begin() {
	s.done.Go(func() {
		s.err = s.prepare()
		<-s.starts
		if s.err == nil && s.r.kept {
			s.err = s.logStart()
		}
		tick := time.NewTicker(s.every)
		defer tick.Stop()
		for s.err == nil {
			select {
			case <-s.stops:
				return
			case <-tick.C:
				s.err = s.checkpoint()
			}
		}
	})
	s.r.release.push("seal", s.close)
}

// end waits until the goroutine has ended.
func (s *sealer) end() {
	s.started()
	s.stop()
	s.done.Wait()
}

// close ends the goroutine and erases the keys.
func (s *sealer) close() error {
	s.end()
	for _, k := range []*seal.Key{s.key, s.host} {
		if k != nil {
			k.Erase()
		}
	}
	s.anchors.Close()
	s.anchors = nil
	var errs []error
	for _, f := range []*os.File{s.blocks, s.notes} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if s.vault != nil {
		errs = append(errs, s.vault.Close())
	}
	s.vault, s.blocks, s.notes = nil, nil, nil
	return errors.Join(errs...)
}

// prepare makes the run's key and has the host's key certify it.
func (s *sealer) prepare() (err error) {
	if s.vault, err = OpenVault(s.r.caller, s.r.state); err != nil {
		return err
	}
	if s.host, err = s.vault.Key(vault.KeyName()); err != nil {
		return err
	}
	if s.key, err = seal.NewKey(seal.RunKeyName(s.r.id)); err != nil {
		return err
	}
	s.cert, err = seal.Certificate{Run: s.r.id, Key: s.key.Public(), BootID: s.boot, Time: time.Now()}.Sign(s.host)
	_ = warmJSON()
	return err
}

// logStart notes the start of the run in the host's log.
func (s *sealer) logStart() error {
	placed, err := s.vault.Append(nil, s.entry(seal.LogStart, s.cert), false)
	s.place = &placed.Place
	return err
}

func (s *sealer) entry(kind string, of []byte) *seal.LogEntry {
	return &seal.LogEntry{Kind: kind, Run: s.r.id, User: LogUser(s.r.caller, s.r.state), Time: seal.Stamp(time.Now()), SHA256: digest(of)}
}

// checkpoint signs what the record holds, when that is on disk.
func (s *sealer) checkpoint() error {
	if err := s.r.rec.w.Settle(); err != nil {
		return nil // the record's own error, which Close reports
	}
	if s.builder.Unsealed(s.last) == 0 {
		return nil
	}
	head := s.builder.Cut()
	if err := s.writeBlocks(); err != nil {
		return err
	}
	if err := errors.Join(s.r.files[runs.TraceFile].Sync(), s.blocks.Sync()); err != nil {
		return fmt.Errorf("fsync: %w", err)
	}
	note, err := s.sign(head)
	if err != nil {
		return err
	}
	text := seal.AppendNote(nil, note)
	if s.notes == nil {
		if s.notes, err = s.r.dir.Create(seal.CheckpointsFile); err != nil {
			return err
		}
		text = append(seal.AppendNote(nil, s.cert), text...)
	}
	if _, err = s.notes.Write(text); err == nil {
		s.last = head
		s.points++
		if s.anchors.Checkpoints() {
			s.anchor(seal.AnchorCheckpoint, note)
		}
	}
	return err
}

func (s *sealer) sign(head seal.Head) ([]byte, error) {
	return seal.Checkpoint{Run: s.r.id, Head: head, Time: time.Now()}.Sign(s.key)
}

// writeBlocks writes the rows of the block table that are new.
func (s *sealer) writeBlocks() (err error) {
	if s.blocks == nil {
		if s.blocks, err = s.r.dir.Create(seal.BlocksFile); err != nil {
			return err
		}
	}
	_, err = s.blocks.Write(s.builder.Table())
	return err
}

// finish stores the result and seals the run. Files are written while others
// are being signed: the caller waits for this.
func (s *sealer) finish(res *runs.Result, sum *trace.Event) error {
	result, err := res.JSON()
	if err != nil {
		return err
	}
	var stored error
	var store sync.WaitGroup
	durable := s.waits(res.Usage.Wall)
	store.Go(func() { stored = s.r.dir.WriteFile(runs.ResultFile, result, durable) })
	defer store.Wait()
	s.end()
	head, err := s.endTable()
	if err != nil {
		return err
	}
	st, err := s.statement(res, sum, result, head, durable)
	if store.Wait(); err != nil || stored != nil {
		return errors.Join(err, stored)
	}
	text, err := st.Sign(s.key)
	if err != nil {
		return err
	}
	s.key.Erase()
	// The log is told of a seal that is there, or who looks for it takes it for one that was made away with.
	if err := s.r.dir.WriteFile(seal.SealFile, text, durable); err != nil {
		return errors.Join(err, s.unseal())
	}
	placed, err := s.vault.Append(s.host, s.entry(seal.LogSeal, text), durable)
	if err == nil {
		err = s.anchorEnd(res, []byte(st.Predicate.Checkpoint), placed.Head)
	}
	if err != nil { // result.json is signed as it is: only who waits is told
		s.r.cfg.Log.Error().Err(err).Msg("the host's log")
		res.Error = joinText(res.Error, "the record is sealed, and the host's log is not told: "+err.Error())
	}
	return nil
}

// unseal removes a seal that may not stay: its disk has failed.
func (s *sealer) unseal() error {
	if err := s.r.dir.Unlink(seal.SealFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", seal.SealFile, err)
	}
	return nil
}

// endTable writes the last rows of the block table, and returns the head over
// all of the record, if that is what the file holds.
func (s *sealer) endTable() (seal.Head, error) {
	if s.err != nil {
		return seal.Head{}, s.err
	}
	head := s.builder.Cut()
	if err := s.writeBlocks(); err != nil {
		return head, err
	}
	st, err := s.r.files[runs.TraceFile].Stat()
	if err == nil && st.Size() != head.Bytes {
		err = fmt.Errorf("%s holds other bytes than were written", runs.TraceFile)
	}
	return head, err
}

// statement is what seal.json will say, about files that are on disk by then if
// it is to be durable.
func (s *sealer) statement(res *runs.Result, sum *trace.Event, result []byte, head seal.Head, durable bool) (*seal.Statement, error) {
	subjects, err := s.subjects(res, result)
	if err == nil && durable {
		err = errors.Join(s.sync(), syncSubjects(s.r.dir, subjects))
	}
	if err != nil {
		return nil, err
	}
	last, err := s.sign(head)
	st := &seal.Statement{Subject: subjects, Predicate: s.predicate(res, sum)}
	st.Predicate.Checkpoint, st.Predicate.Tree, st.Predicate.Durable = string(last), seal.NewTree(head), durable
	return st, err
}

// waits says whether the seal waits for the disk: that takes a short run as long
// as all the rest (decision 0017).
func (s *sealer) waits(took time.Duration) bool {
	switch s.durable {
	case "always":
		return true
	case "never":
		return false
	}
	return took >= checkpointEvery
}

// sync waits until what is about to be signed is on disk: the record, what the
// command wrote, the plan, and the name of the run's directory. (The result is synced as it is written.)
func (s *sealer) sync() error {
	plan, err := s.r.dir.Open(runs.PlanFile)
	if err != nil {
		return err
	}
	defer plan.Close()
	files := []*os.File{s.blocks, plan}
	for _, f := range s.r.files {
		files = append(files, f)
	}
	errs := make([]error, len(files))
	var wait sync.WaitGroup
	for i, f := range files {
		wait.Go(func() { errs[i] = f.Sync() })
	}
	named := s.r.state.Sync()
	wait.Wait()
	return errors.Join(append(errs, named)...)
}

func (s *sealer) predicate(res *runs.Result, sum *trace.Event) seal.Predicate {
	p := seal.Predicate{
		Run: s.r.id, State: seal.Sealed, Tool: Version, BootID: s.boot, Certificate: string(s.cert), Checkpoints: s.points, HostLog: s.place,
		Started: seal.Stamp(res.Started), Ended: seal.Stamp(res.Ended), PlanSHA256: digest(s.r.planJSON),
		Verdict: trace.Judgement(res.Record.Verdict), Lost: res.Record.Lost, Findings: res.Record.Findings,
		Status: res.Status, Reason: res.Reason, Signal: res.Signal, Counts: map[string]uint64{},
		Usage: seal.Usage{
			WallNS: int64(res.Usage.Wall), UserNS: int64(res.Usage.User), SystemNS: int64(res.Usage.System),
			MaxMemory: res.Usage.MaxMemory, MaxTasks: res.Usage.MaxTasks,
		},
	}
	if _, err := s.anchors.Lost(); err != nil {
		p.AnchorError = err.Error()
	}
	for _, c := range sum.Counts {
		p.Counts[c.Name] += c.N
	}
	for _, l := range s.r.rec.w.Losses() {
		p.Losses = append(p.Losses, seal.Loss{Class: l.Class, Cause: l.Cause, Count: l.Count})
	}
	return p
}

// storeResult writes result.json and seals the run. A run that could not be
// sealed says so in a second result.json.
func (r *Run) storeResult(res *runs.Result, sum *trace.Event) {
	err := r.sealer.finish(res, sum)
	if err == nil {
		return
	}
	r.cfg.Log.Error().Err(err).Msg("seal")
	res.Record.Verdict = string(trace.Unsealed)
	res.Record.Findings = append(res.Record.Findings, "the record could not be sealed: "+err.Error())
	if err := r.rewriteResult(res); err != nil {
		r.cfg.Log.Error().Err(err).Msg("result")
		res.Error = joinText(res.Error, err.Error())
	}
}

// rewriteResult puts a result in the place of one that says too much. On a full disk that one makes room.
func (r *Run) rewriteResult(res *runs.Result) error {
	err := r.dir.WriteResult(res, false)
	if err == nil {
		return nil
	}
	if uerr := r.dir.Unlink(runs.ResultFile); uerr != nil {
		return errors.Join(err, ignoreMissing(uerr))
	}
	return r.dir.WriteResult(res, false)
}
