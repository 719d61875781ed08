//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// helperLog is the helper's own log, beside root's records.
const helperLog = "/var/lib/agentguard/helper.log"

// helperConfig is what the administrator decides about the helper.
const helperConfig = "/etc/agentguard/helper.yaml"

// requestTime is how long a caller may take to send its request.
const requestTime = 10 * time.Second

// reserveTime is how long a process that waits for a caller keeps what a run can have
// beforehand.
const reserveTime = time.Minute

// served is one request: the helper's process for it serves nothing else.
type served struct {
	conn  *net.UnixConn
	peer  *helper.Peer
	who   supervisor.Caller
	log   *helper.Log
	loud  bool // a refusal has a line of the log
	entry helper.Entry

	rules  *helper.Config // of the administrator
	broken error          // why they cannot be read: nothing is granted

	reserve  *supervisor.Reserve
	detached atomic.Bool // the client has its answer, and the run goes on
	closing  sync.Mutex  // whoever takes it ends the process, and says so in the log
	answered bool        // the caller has its answer, or will have none
}

// serveRequest is the whole life of a helper's process, once it has a caller. It reports
// whether the request was refused.
func serveRequest() (refused bool, err error) {
	supervisor.Hurry(true)
	handover := os.NewFile(3, "handover")
	reserve := beforehand(handover)
	defer reserve.Close()
	log, lerr := openHelperLog()
	if err := lockdown.Use(looking, supervisor.BirthCapabilities()); err != nil {
		return false, err
	}
	reserve.Wait(handover, reserveTime)
	conn, loud, err := helper.Receive(handover) // it ends with the process: what is unread in it may linger
	if conn == nil {
		return false, err
	}
	rules, broken := helper.ReadConfig(helperConfig)
	if lerr != nil { // that was a while ago
		log, lerr = openHelperLog()
	}
	if lerr != nil {
		return false, errors.Join(lerr, helper.Write(conn, helper.Failure("the helper cannot write its log: "+lerr.Error(), supervisor.StatusFailed)))
	}
	defer log.Close()
	log.Bound(rules)
	s := &served{conn: conn, log: log, reserve: reserve, loud: loud, rules: rules, broken: broken, entry: helper.Entry{Outcome: "refused"}}
	answer, err := s.serve()
	if !s.answered { // else err is about what came after
		err = s.answer(answer, err)
	}
	return s.entry.Outcome == "refused", errors.Join(err, s.peer.Close())
}

// answer tells the log and the caller what came of the request: an answer, or why there is
// none. Nothing is served after it.
func (s *served) answer(f *helper.Frame, why error) error {
	s.closing.Lock()
	s.answered = true
	if why != nil {
		f = failure(why)
		s.entry.Why = why.Error()
	}
	var err error
	if s.loud || s.entry.Outcome != "refused" {
		err = s.log.Write(s.entry)
	}
	if !s.detached.Load() {
		_ = s.conn.SetWriteDeadline(time.Now().Add(requestTime))
		if werr := helper.Write(s.conn, f); werr != nil && !errors.Is(werr, unix.EPIPE) {
			err = errors.Join(err, werr)
		}
	}
	return errors.Join(err, f.Close())
}

// beforehand does what a run needs whoever asks for it, unless somebody has asked
// already. What cannot be done is left to the run, which says why.
func beforehand(handover *os.File) *supervisor.Reserve {
	if helper.Waiting(handover) {
		return nil
	}
	reserve, err := supervisor.NewReserve()
	if err == nil && !helper.Waiting(handover) {
		_ = errors.Join(supervisor.Warm(), helper.Warm())
	}
	return reserve
}

func openHelperLog() (*helper.Log, error) {
	s, err := runs.OpenState("/var/lib/agentguard", 0) // made and judged as for a run
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return helper.OpenLog(helperLog, os.Stderr)
}

// failure is the answer for an error.
func failure(err error) *helper.Frame {
	f := helper.Failure(err.Error(), supervisor.StatusOf(err))
	var list []string
	for _, c := range conflicts(err) {
		list = append(list, strconv.Itoa(c.N), c.Path, c.Why)
	}
	f.Lists = append(f.Lists, list)
	return f
}

// serve answers one request. What it returns has not been sent.
func (s *served) serve() (*helper.Frame, error) {
	var err error
	s.peer, err = helper.Identify(s.conn)
	s.entry = helper.Of(s.peer, "refused", "")
	if err != nil {
		return nil, err
	}
	if s.peer.UID == 0 {
		return nil, &supervisor.Refusal{What: "root needs no helper"}
	}
	if s.broken != nil {
		return nil, s.broken
	}
	if err := s.vet(); err != nil {
		return nil, err
	}
	s.who = supervisor.Caller{UID: s.peer.UID, GID: s.peer.GID, Groups: s.peer.Groups, Sudo: true}
	if err := s.conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	f, err := helper.Read(s.conn)
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w: none came", helper.ErrFrame)
	}
	if err != nil {
		return nil, err
	}
	defer f.Drop()
	// It may have taken its time: who asks must still be there, and still be allowed to.
	if err := errors.Join(s.conn.SetReadDeadline(time.Time{}), s.vet()); err != nil {
		return nil, err
	}
	return s.dispatch(f)
}

// vet refuses a peer for whom the helper must not act.
func (s *served) vet() error {
	if err := s.peer.Vet(); err != nil {
		return err
	}
	return s.peer.Unconfined(s.rules.Labels)
}

// exec runs a command for the peer, or says what would be done.
func (s *served) exec(f *helper.Frame) (*helper.Frame, error) {
	q, err := readExec(f.Lists)
	if err != nil {
		return nil, err
	}
	s.entry.Argv = q.argv
	for i, file := range f.Files {
		if err := helper.Passable(file, i); err != nil {
			return nil, err
		}
	}
	cfg, err := s.config(q, f.Files)
	if err != nil {
		return nil, err
	}
	if cfg.Continue != nil {
		defer cfg.Continue.Close()
	}
	if f.Kind == helper.DryRun {
		return s.dryRun(q, cfg)
	}
	return s.run(cfg, q.detach)
}

// config decides what the peer gets. Files, descriptors and ids of the request are
// its wishes; the rest is the helper's.
func (s *served) config(q *execRequest, stdio []*os.File) (cfg supervisor.Config, err error) {
	e := &execFlags{cwd: q.cwd, interactive: q.interactive, cont: q.cont}
	for _, said := range q.asked {
		f, err := policy.FromStatements(said)
		if err != nil {
			return cfg, err
		}
		e.asked = append(e.asked, f)
	}
	pol, err := e.merged()
	if err != nil {
		return cfg, err
	}
	if err := errors.Join(boundFor(pol, s.who), e.beside(pol)); err != nil {
		return cfg, err
	}
	membership, err := s.peer.Cgroups()
	var rates supervisor.Rates
	if err == nil {
		rates, err = supervisor.BoundByCgroup(pol, membership)
	}
	if err != nil {
		return cfg, err
	}
	pol.StageLimited()
	limits, err := s.peer.Limits()
	if err = errors.Join(err, s.peer.Assume()); err == nil && q.own {
		err = helper.Lead(stdio[0])
	}
	if err != nil {
		return cfg, err
	}
	cfg = supervisor.Config{
		Policy: pol, Argv: q.argv, Environ: q.environ, Stdin: stdio[0], Stdout: stdio[1], Stderr: stdio[2], TTY: q.tty,
		Caller: &s.who, Reserve: s.reserve, Alone: true, Rates: rates, Rlimits: supervisor.Inherited(hard(limits)), SealFile: systemSeal, Log: zerolog.Nop(),
	}
	if !q.own && q.tty == supervisor.TTYAlways {
		return cfg, &supervisor.Refusal{What: "--tty always: stdin and one of stdout and stderr must be one terminal"}
	}
	if !q.own {
		cfg.TTY = supervisor.TTYNever
	}
	cfg.Continue, err = e.continuedBy(s.who, pol)
	return cfg, err
}

func hard(limits map[string]helper.Limit) map[string]uint64 {
	out := map[string]uint64{}
	for words, l := range limits {
		out[words] = l.Hard
	}
	return out
}

// run is the run itself: it ends with the connection, unless it is detached, from when
// its command runs.
func (s *served) run(cfg supervisor.Config, detach bool) (*helper.Frame, error) {
	signal.Ignore(unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGTSTP)
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM) // of the run's terminal, and of whoever stops the helper
	ctx, gone := context.WithCancel(context.Background())
	defer gone()
	resumed := make(chan struct{}, 1)
	go s.listen(sigs, resumed, func() {
		if !s.detached.Load() {
			gone()
		}
	})
	cfg.Signals = sigs
	if detach {
		cfg.Started = s.letGo
	}
	cfg.Suspend = func() error {
		if err := helper.Write(s.conn, &helper.Frame{Kind: helper.Stopped}); err != nil {
			return err
		}
		select {
		case <-resumed:
		case <-ctx.Done():
		}
		return nil
	}
	granted := s.entry
	granted.Outcome = "granted"
	if err := s.log.Write(granted); err != nil { // what is not in the log does not happen
		return nil, fmt.Errorf("the helper cannot write its log: %w", err)
	}
	var told string
	var failed error
	cfg.Sealed = func(res *supervisor.Result) { told, failed = res.Error, s.ended(res) }
	res, err := supervisor.Execute(ctx, cfg)
	if err == nil && res.Error != told { // the caller has gone by now
		err = fmt.Errorf("after run %s: %s", res.ID, res.Error)
	}
	return nil, errors.Join(err, failed)
}

// ended answers with the result of a run. Its processes are dead and its record is sealed: the
// caller does not wait for what is left of it in the kernel.
func (s *served) ended(res *supervisor.Result) error {
	s.entry.Outcome, s.entry.Run, s.entry.Status = "ended", res.ID, &res.Status
	b, err := res.JSON()
	return s.answer(&helper.Frame{Kind: helper.Done, Lists: [][]string{{string(b)}}}, err)
}

// letGo answers with the run's id, and lets the client go.
func (s *served) letGo(id string) {
	s.detached.Store(true)
	_ = s.conn.SetWriteDeadline(time.Now().Add(requestTime))
	_ = helper.Write(s.conn, &helper.Frame{Kind: helper.Done, Lists: [][]string{{id}}}) // a client that has gone has ps
	go s.conn.Close()                                                                   // what is unread in it may linger: the limits of the run do not wait for that
}

// listen hears the client: signals for the command, and its end.
func (s *served) listen(sigs chan<- os.Signal, resumed chan<- struct{}, gone func()) {
	defer gone()
	for {
		f, err := helper.Read(s.conn)
		if err != nil {
			return
		}
		sig, ok := signalOf(f)
		if f.Drop(); !ok {
			return // no client of ours says such a thing
		}
		if sig == unix.SIGCONT {
			select {
			case resumed <- struct{}{}:
			default:
			}
		}
		select {
		case sigs <- sig:
		default: // as many are on their way already
		}
	}
}

// forwardable are the signals that a client passes on: those that exec does for root.
var forwardable = []unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGALRM,
}

func signalOf(f *helper.Frame) (unix.Signal, bool) {
	if f.Kind != helper.Signal || len(f.Files) != 0 || len(f.Lists) != 1 || len(f.Lists[0]) != 1 {
		return 0, false
	}
	n, err := strconv.Atoi(f.Lists[0][0])
	return unix.Signal(n), err == nil && slices.Contains(forwardable, unix.Signal(n))
}

// dryRun says what would be done.
func (s *served) dryRun(q *execRequest, cfg supervisor.Config) (*helper.Frame, error) {
	r, err := supervisor.Prepare(cfg)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out bytes.Buffer
	if err := writePlan(&out, r.Plan(), q.json, q.calls); err != nil {
		return nil, err
	}
	s.entry.Outcome = "granted"
	return &helper.Frame{Kind: helper.Done, Lists: [][]string{{out.String()}}}, nil
}
