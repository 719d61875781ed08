package supervisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// ErrSealed says that a run has its seal: there is nothing to recover.
var ErrSealed = errors.New("the run is sealed")

// Why a recovered record is never complete.
const (
	killedFinding   = "agentguard was killed: what the kernel saw after the last record is unknown"
	unsealedFinding = "the record was not sealed when the run ended, but later, by the host"
)

// Forget deletes an ended run. The host's log keeps that it was there, who
// deleted it and why, so that nobody takes it for one that was made away with.
func Forget(c Caller, s *runs.State, id, why string) error {
	d, err := s.Adopt(id)
	if err != nil {
		return err
	}
	defer d.Close() // nobody begins to commit what it staged meanwhile
	v, err := OpenVault(c, s)
	if err != nil {
		return err
	}
	defer v.Close()
	host, err := v.Key(vault.KeyName())
	if err != nil {
		return err
	}
	by := fmt.Sprintf("uid %d", c.UID)
	if c.Sudo {
		by += " (sudo)"
	}
	if _, err := v.Append(host, &seal.LogEntry{Kind: seal.LogPruned, Run: id, User: LogUser(c, s), By: by, Why: why}, true); err != nil {
		return err
	}
	return s.RemoveAdopted(d)
}

// What a start recovers on its way, beside its command: of the newest runs, and
// of records of so many bytes, which takes some milliseconds. Others wait for
// `runs recover`.
const (
	recoverNewest = 16
	recoverBytes  = 8 << 20
)

// recoverDead recovers runs whose supervisor was killed before it wrote a result.
func (r *Run) recoverDead() {
	ids, err := r.state.IDs()
	if err != nil {
		r.cfg.Log.Warn().Err(err).Msg("looking for dead runs")
		return
	}
	for _, id := range ids[:min(len(ids), recoverNewest)] {
		if id == r.id {
			continue
		}
		left, err := r.leftBehind(id)
		if left && err == nil {
			err = Recover(r.caller, r.state, id)
		}
		if err != nil && !errors.Is(err, runs.ErrLive) && !errors.Is(err, ErrSealed) && !errors.Is(err, fs.ErrNotExist) { // another start was faster
			r.cfg.Log.Warn().Str("run", id).Err(err).Msg("recovering the record of a dead supervisor")
		}
	}
}

// leftBehind reports whether a run has no result, nobody to write one, and a
// record that is small enough to be recovered at once.
func (r *Run) leftBehind(id string) (bool, error) {
	d, err := r.state.Open(id)
	if err != nil {
		return false, err
	}
	defer d.Close()
	if _, err := d.Size(runs.ResultFile); !errors.Is(err, fs.ErrNotExist) || d.Live() {
		return false, err
	}
	n, err := d.Size(runs.TraceFile)
	if errors.Is(err, fs.ErrNotExist) { // killed before it was made
		err = nil
	}
	return n <= recoverBytes, err
}

// recovery finishes the record of a run whose supervisor died.
type recovery struct {
	dir     *runs.RunDir
	user    int
	vault   *vault.Vault
	host    *seal.Key
	keys    seal.Keys
	was     *seal.Report // of the run as it was found
	plan    []byte
	start   trace.Event // first record
	summary trace.Event
	finding string
	done    bool // only the log lacked something
	losses  []trace.Loss
	head    seal.Head
	sum     string
}

// Recover finishes what a killed supervisor left: the record gets a summary that
// says so, the run a result, and the host seals it with its own key as
// recovered, which is never complete. Where there was no time for a record, the empty
// directory goes. A live run is runs.ErrLive, a sealed one
// ErrSealed. A record that does not match its own checkpoints is left as it is.
func Recover(c Caller, s *runs.State, id string) error {
	dir, err := s.Adopt(id)
	if err != nil {
		return err
	}
	defer dir.Close()
	if removed, err := s.RemoveEmpty(dir); removed || err != nil {
		return err
	}
	v, err := OpenVault(c, s)
	if err != nil {
		return err
	}
	defer v.Close()
	r := &recovery{dir: dir, user: LogUser(c, s), vault: v, finding: killedFinding}
	for _, step := range []func() error{r.open, r.check, r.endRecord, r.rebuild, r.store} {
		if err := step(); err != nil || r.done {
			return err
		}
	}
	return nil
}

func (r *recovery) open() (err error) {
	if r.host, err = r.vault.Key(vault.KeyName()); err != nil {
		return err
	}
	r.keys, err = r.vault.Public()
	return err
}

// check refuses a run that is sealed, or whose record was altered.
func (r *recovery) check() error {
	text, err := readWhole(r.dir, seal.SealFile)
	sealed := len(text) > 0 // an empty one is what a loss of power leaves
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.was, err = seal.Verify(r.dir.FS(), r.keys, nil); err != nil {
		return err
	}
	if sealed {
		return r.relog(text)
	}
	if err := r.mayRecover(); err != nil {
		return err
	}
	if r.was.Verdict == trace.Altered {
		return fmt.Errorf("the record does not match its checkpoints (%s): it is left as it is", r.was.Faults[0])
	}
	r.plan, err = readWhole(r.dir, runs.PlanFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the supervisor died before it was written
	}
	return err
}

// mayRecover refuses a run whose seal is gone, and that the host's log has: another seal would
// hide that, and the log has one for each run.
func (r *recovery) mayRecover() error {
	log, err := r.vault.Log(r.keys)
	if err != nil {
		return err
	}
	if l := log.Runs[seal.RunID{User: r.user, ID: r.dir.ID()}]; l != nil && l.Seal != "" {
		return fmt.Errorf("%s is missing, and the host's log has its digest: the run is left as it is", seal.SealFile)
	}
	return nil
}

// relog gives the host's log a seal that was written just before its writer was
// killed. Where there is none of that, it returns ErrSealed.
func (r *recovery) relog(text []byte) error {
	log, err := r.vault.Log(r.keys)
	if err != nil {
		return err
	}
	id, kind := seal.RunID{User: r.user, ID: r.dir.ID()}, seal.LogRecovered
	if r.was.State == seal.Sealed { // the host has not signed this one: the log must know its key
		log.Check(r.was, id)
		kind = seal.LogSeal
	}
	if logged := log.Runs[id]; logged == nil || logged.Seal != "" || r.was.Verdict == trace.Altered {
		return ErrSealed
	}
	r.done = true
	return r.log(kind, text)
}

func (r *recovery) log(kind string, text []byte) error {
	_, err := r.vault.Append(r.host, &seal.LogEntry{Kind: kind, Run: r.dir.ID(), User: r.user, SHA256: digest(text)}, true)
	return err
}

func readWhole(d *runs.RunDir, name string) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// endRecord appends a summary, if the record has none.
func (r *recovery) endRecord() error {
	in, err := r.dir.Open(runs.TraceFile)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := r.dir.Append(runs.TraceFile)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := trace.NewReader(in).Next(&r.start); err != nil && !errors.Is(err, io.EOF) && !errors.As(err, new(*trace.LineError)) {
		return err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	mono, wall := bootTime(), time.Now()
	w, was, err := trace.ResumeWriter(out, in, trace.Options{Mono: mono, Wall: wall, BootID: r.start.BootID, Durable: true})
	if err != nil {
		return err
	}
	r.losses = w.Losses()
	if was.Summary {
		return nil
	}
	r.summary = trace.Event{Mono: mono, ExitCode: StatusFailed, Reason: runs.ReasonError, Findings: []string{r.finding}}
	return w.Close(&r.summary)
}

// rebuild makes the block table anew: the rows that checkpoints cover as they
// were, then blocks of the full size.
func (r *recovery) rebuild() error {
	f, err := r.dir.Open(runs.TraceFile)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := readWhole(r.dir, seal.BlocksFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b := seal.NewBuilder()
	if err := b.Follow(bufio.NewReaderSize(f, 64<<10), bytes.NewReader(old), r.was.Verified); err != nil {
		return err
	}
	r.head, r.sum = b.Cut(), fmt.Sprintf("%x", b.Sum())
	if err := r.dir.WriteFile(seal.BlocksFile, b.Table(), true); err != nil {
		return err
	}
	notes, err := readWhole(r.dir, seal.CheckpointsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, torn := seal.SplitNotes(notes); len(torn) > 0 {
		return r.dir.WriteFile(seal.CheckpointsFile, notes[:len(notes)-len(torn)], true)
	}
	return nil
}

// store writes the result, the seal and the log entry.
func (r *recovery) store() error {
	res, err := r.result()
	if err != nil {
		return err
	}
	b, err := res.JSON()
	if err == nil {
		err = r.dir.WriteFile(runs.ResultFile, b, true)
	}
	if err != nil {
		return err
	}
	st, err := r.statement(res, b)
	if err != nil {
		return err
	}
	text, err := st.Sign(r.host)
	if err == nil {
		err = r.dir.WriteFile(seal.SealFile, text, true)
	}
	if err != nil {
		return err
	}
	return r.log(seal.LogRecovered, text)
}
