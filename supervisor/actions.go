package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
)

// ActionsDir has the administrator's actions. They need no approval: only root
// can have written them.
const ActionsDir = "/etc/agentguard/actions"

// FoundAction is an action with the file that it is in.
type FoundAction struct {
	Action  *action.Action
	File    *action.File // that Action is in
	Trusted bool         // of the administrator

	env func() (string, bool) // the credential, when it was in our environment
}

// FindAction finds an action by name in the files, which must be approved, and
// in ActionsDir. A credential in our environment is taken out of it at once.
func FindAction(c Caller, s *runs.State, name string, files []string) (*FoundAction, error) {
	var found []*FoundAction
	for _, path := range files {
		f, err := readApproved(c, s, path)
		if err != nil {
			return nil, err
		}
		if a := f.Find(name); a != nil {
			found = append(found, &FoundAction{Action: a, File: f})
		}
	}
	host, err := action.Load(ActionsDir)
	if err != nil {
		return nil, &Refusal{What: "the host's actions cannot be used", Err: err}
	}
	for _, f := range host {
		if a := f.Find(name); a != nil {
			found = append(found, &FoundAction{Action: a, File: f, Trusted: true})
		}
	}
	switch len(found) {
	case 0:
		return nil, &Refusal{What: fmt.Sprintf("there is no action %s", policy.Quote(name)), Remedy: "agentguard actions ls shows those there are; -f FILE (of exec --actions FILE) names a file of them"}
	case 1:
		return found[0], found[0].take()
	}
	return nil, &Refusal{What: fmt.Sprintf("the action %s is there more than once: at %s and at %s", name, found[0].Action.Source, found[1].Action.Source), Remedy: "give one of them another name"}
}

// take takes a credential out of our environment before anything is started.
func (f *FoundAction) take() error { return f.takeCredential(f.Action.Credential) }

func (f *FoundAction) takeCredential(c *action.Credential) error {
	if c != nil && c.Kind == action.FromEnv {
		value, ok, err := action.TakeEnv(c.Name)
		if err == nil {
			err = noCore()
		}
		if err != nil {
			return err
		}
		f.env = sync.OnceValues(func() (string, bool) { return value, ok })
	}
	return nil
}

// noCore keeps this process from dumping core while it holds a credential. A
// limit of one byte stops a pipe to a program, too (core(5)); the hard limit
// stays, since the command has one of its own.
func noCore() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Cur = min(1, l.Max)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_CORE, &l))
}

func (f *FoundAction) taken(string) (string, bool) {
	if f.env == nil {
		return "", false
	}
	return f.env()
}

// readActions reads a file of actions with the caller's authority.
func readActions(c Caller, path string) (*action.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var src []byte
	err = c.As(func() error {
		f, err := os.Open(abs)
		if err != nil {
			return err
		}
		defer f.Close()
		src, err = io.ReadAll(io.LimitReader(f, policy.MaxBytes+1))
		return err
	})
	if err != nil {
		return nil, &Refusal{What: "the file of actions cannot be read", Err: err}
	}
	return action.Parse(abs, src)
}

// readApproved reads a file of actions that was approved as it is.
func readApproved(c Caller, s *runs.State, path string) (*action.File, error) {
	f, err := readActions(c, path)
	if err != nil {
		return nil, err
	}
	a, ok, err := approved(s, f.Name)
	remedy := "look at it, and then: agentguard actions approve " + policy.Quote(path)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, &Refusal{What: fmt.Sprintf("%s is not approved (SHA-256 %s)", policy.Quote(f.Name), f.SHA256), Remedy: remedy}
	case a.SHA256 != f.SHA256:
		return nil, &Refusal{What: fmt.Sprintf("%s has changed since it was approved on %s: SHA-256 was %s, is %s", policy.Quote(f.Name), a.Time.Format(time.DateTime), a.SHA256, f.SHA256), Remedy: remedy}
	}
	return f, nil
}

// ApproveActions checks a file of actions, schemas too, and approves it as it is.
func ApproveActions(ctx context.Context, c Caller, s *runs.State, path string) ([]ListedAction, error) {
	f, err := readActions(c, path)
	if err != nil {
		return nil, err
	}
	if err := checkSchemas(ctx, c, f); err != nil {
		return nil, err
	}
	return listed(f, false, true), approve(s, Approval{Path: f.Name, SHA256: f.SHA256, Time: time.Now().UTC().Truncate(time.Second)})
}

func checkSchemas(ctx context.Context, c Caller, f *action.File) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	p := (&FoundAction{}).process(c)
	p.Input = null
	p.Decide = func([]*action.Outcome) action.Reply { return action.Reply{Refused: "nothing is sent by a check"} }
	p.Told = func(*action.Outcome) error { return errors.New("an outcome of a check") }
	return p.Run(ctx, &action.Job{File: f.Text, Name: f.Name})
}

// ListedAction is an action, or a broker, that could be named.
type ListedAction struct {
	FoundAction
	Broker   *action.Broker // then Action is nil
	Approved bool           // or the administrator's
}

// ListActions lists the actions and brokers of the host and of the files,
// approved or not.
func ListActions(c Caller, s *runs.State, files []string) ([]ListedAction, error) {
	var out []ListedAction
	host, err := action.Load(ActionsDir)
	if err != nil {
		return nil, err
	}
	for _, f := range host {
		out = append(out, listed(f, true, true)...)
	}
	for _, path := range files {
		f, err := readActions(c, path)
		if err != nil {
			return nil, err
		}
		last, ok, err := approved(s, f.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, listed(f, false, ok && last.SHA256 == f.SHA256)...)
	}
	return out, nil
}

func listed(f *action.File, trusted, approved bool) []ListedAction {
	var out []ListedAction
	for _, a := range f.Actions {
		out = append(out, ListedAction{FoundAction: FoundAction{Action: a, File: f, Trusted: trusted}, Approved: approved})
	}
	for _, b := range f.Brokers {
		out = append(out, ListedAction{FoundAction: FoundAction{File: f, Trusted: trusted}, Broker: b, Approved: approved})
	}
	return out
}
