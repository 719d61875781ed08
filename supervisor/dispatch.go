package supervisor

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/trace/seal"
)

// Dispatch is one call of dispatch: inputs of an action, checked, sent one by
// one, and each told.
type Dispatch struct {
	Caller Caller
	State  *runs.State // whose limits count, and whose log is written
	Found  *FoundAction
	Input  *os.File // one JSON text, or one a line
	Lines  string   // action.LinesOne and the like
	DryRun bool
	Run    string // id of the run whose output the input is; "": none
	Told   func(*action.Outcome) error

	vault  *vault.Vault
	key    *seal.Key
	secret *action.Secret
	sent   int64
	failed error // what the log could not take, after something was sent
}

// Do works through the input. The status is that of the first outcome that is
// none of success; the error is what agentguard could not do.
func (d *Dispatch) Do(ctx context.Context) (status int, err error) {
	if err := neverRead(); err != nil {
		return 0, err
	}
	defer func() { d.secret.Erase() }()
	if !d.DryRun {
		if err := d.openLog(); err != nil {
			return 0, err
		}
		defer d.vault.Close()
		defer d.key.Erase()
	}
	job := &action.Job{File: d.Found.File.Text, Name: d.Found.File.Name, Action: d.Found.Action.Name, Lines: d.Lines, DryRun: d.DryRun}
	if name := d.Found.Action.Destination.CAFile; name != "" {
		if job.CA, err = d.Found.certificates(d.Caller, d.Found.Action.Name, name); err != nil {
			return 0, err
		}
	}
	p := d.Found.process(d.Caller)
	p.Input, p.Decide = d.Input, func(list []*action.Outcome) action.Reply { return d.decide(ctx, list) }
	p.Told = func(o *action.Outcome) error {
		if status == 0 {
			status = o.ExitStatus()
		}
		return d.tell(o)
	}
	if err := p.Run(ctx, job); err != nil {
		return 0, &Refusal{What: "dispatch", Err: err}
	}
	return status, d.failed
}

// process is who speaks HTTP. Where root may read a credential that the caller
// may not, the process is nobody's that the caller could be.
func (f *FoundAction) process(c Caller) *action.Process {
	who := dialIdentity(c)
	if f.Trusted && os.Geteuid() == 0 {
		who = dialIdentity(Caller{})
	}
	return &action.Process{Who: who, Filter: seccomp.DialFilter()}
}

// neverRead keeps this process out of core dumps and from being read by others
// of its user (PR_SET_DUMPABLE(2const)).
func neverRead() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return os.NewSyscallError("setrlimit", err)
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func (d *Dispatch) openLog() (err error) {
	if d.vault, err = OpenVault(d.Caller, d.State); err != nil {
		return err
	}
	if d.key, err = d.vault.Key(vault.KeyName()); err != nil {
		err = errors.Join(err, d.vault.Close())
	}
	return err
}

// certificates reads a CA file with the authority of whoever wrote the action.
func (f *FoundAction) certificates(c Caller, what, name string) (b []byte, err error) {
	err = f.as(c)(func() error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, 1<<20))
		return err
	})
	if err != nil {
		return nil, &Refusal{What: what + ".destination.ca_file", Err: err}
	}
	return b, nil
}

// as runs something with the authority that the action has: the administrator's
// for one in /etc, else the caller's.
func (f *FoundAction) as(c Caller) func(func() error) error {
	if f.Trusted {
		return func(fn func() error) error { return fn() }
	}
	return c.As
}

// decide answers whether all of the list may be sent: the limits, then the
// credential, then the log. What is not in the log is not sent.
func (d *Dispatch) decide(ctx context.Context, list []*action.Outcome) action.Reply {
	a := d.Found.Action
	n := int64(len(list))
	if d.sent += n; d.sent > a.Limits.PerRun {
		return action.Reply{Refused: fmt.Sprintf("%d requests have been made, and limits.per_run is %d", d.sent-n, a.Limits.PerRun)}
	}
	var reply action.Reply
	if a.Credential != nil && d.secret == nil {
		s, err := d.Found.reader(d.Caller).Read(ctx, a.Credential)
		if err != nil {
			return action.Reply{Refused: err.Error()}
		}
		d.secret, reply.Secret = s, s.Reveal()
	}
	if err := takeRate(d.State, a.Name, n, a.Limits.PerMinute); err != nil {
		clear(reply.Secret)
		return action.Reply{Refused: err.Error()}
	}
	for _, o := range list {
		if err := d.log(seal.LogDispatch, o, true); err != nil {
			clear(reply.Secret)
			return action.Reply{Refused: "the host's log cannot take it: " + err.Error()}
		}
	}
	return reply
}

// reader reads credentials with the action's authority. For the administrator's
// the caller's environment has no say in which program reads what.
func (f *FoundAction) reader(c Caller) *action.Reader {
	r := &action.Reader{UID: c.UID, GID: c.GID, Groups: c.Groups, As: f.as(c), Environ: os.Environ(), Take: f.taken}
	if f.Trusted && os.Geteuid() == 0 {
		r.UID, r.GID, r.Groups = 0, 0, nil
		r.Environ = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "CREDENTIALS_DIRECTORY=" + os.Getenv("CREDENTIALS_DIRECTORY")}
	}
	return r
}

// tell logs an outcome and passes it on.
func (d *Dispatch) tell(o *action.Outcome) error {
	o.Run = d.Run
	if !d.DryRun {
		if err := d.log(seal.LogDispatched, o, o.Sent != action.SentNo); err != nil {
			d.failed = errors.Join(d.failed, fmt.Errorf("the host's log has not what came of it: %w", err))
		}
	}
	return d.Told(o)
}

func (d *Dispatch) log(kind string, o *action.Outcome, durable bool) error {
	e := &seal.LogEntry{
		Kind: kind, Run: d.Run, User: LogUser(d.Caller, d.State), SHA256: o.InputSHA256,
		Dispatch: &seal.Dispatched{
			Action: o.Action, Actions: d.Found.File.SHA256, Method: o.Method, Destination: o.Destination, Address: o.Address, Outcome: o.Outcome, Sent: o.Sent,
			Line: o.Line, Status: o.Status, InputBytes: o.InputBytes, RequestBytes: o.RequestBytes, ResponseBytes: o.ResponseBytes, LatencyNS: o.LatencyNS,
		},
	}
	if kind == seal.LogDispatch { // the outcome is not known
		e.Dispatch.Outcome, e.Dispatch.Sent = "", ""
	}
	if c := d.Found.Action.Credential; c != nil {
		id, err := credentialID(d.State, c)
		if err != nil {
			return err
		}
		e.Dispatch.Credential = id
	}
	_, err := d.vault.Append(d.key, e, durable)
	return err
}

// credentialID is a keyed digest of where a credential is from, so that the log
// tells which were used and not what they are called.
func credentialID(s *runs.State, c *action.Credential) (string, error) {
	dir, err := dispatchDir(s)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	key, err := secretKey(dir)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(c.ID()))
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}
