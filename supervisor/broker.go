package supervisor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/broker"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/reexec"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// Broker is an API that a plan lets the command call, as it is in the plan: the
// credential is named by a digest only.
type Broker struct {
	Name       string         `json:"name"`     // inside it is NAME.broker.internal
	Upstream   string         `json:"upstream"` // origin
	Routes     []broker.Route `json:"routes"`   // what may be asked for
	File       string         `json:"file"`     // that it is in
	SHA256     string         `json:"sha256"`
	Source     string         `json:"source"`     // FILE:LINE:COL of its name
	Credential string         `json:"credential"` // keyed digest of where it is from
	MaxCalls   int64          `json:"max_calls"`

	found *foundBroker
}

// foundBroker is a broker with the file that it is in, and whose it is.
type foundBroker struct {
	broker *action.Broker
	origin FoundAction // the file, and how its credential is read
}

// findBrokers finds what the policy names, in files that were approved and in
// those of the administrator.
func (r *Run) findBrokers() error {
	named := r.cfg.Policy.Broker
	if len(named) == 0 {
		return nil
	}
	if r.cfg.Caller != nil { // the credentials would be root's, and the caller anybody
		return &Refusal{
			What: "the helper makes no requests with the host's credentials", Clause: clauseText("network.broker", named[0].Source), Remedy: "call as root",
		}
	}
	files, err := r.actionFiles()
	if err != nil {
		return err
	}
	for _, name := range named {
		b, err := pickBroker(files, name)
		if err != nil {
			return err
		}
		id, err := credentialID(r.state, b.found.broker.Credential)
		if err != nil {
			return err
		}
		b.Credential = id
		if err := b.found.origin.takeCredential(b.found.broker.Credential); err != nil {
			return err
		}
		if c := b.found.broker.Credential; c.Kind == action.FromEnv { // env.allowlist passes it to nobody
			r.cfg.Environ = slices.DeleteFunc(slices.Clone(r.cfg.Environ), func(s string) bool { return strings.HasPrefix(s, c.Name+"=") })
		}
		r.brokers = append(r.brokers, *b)
	}
	return nil
}

// actionFiles are all files that a broker can be in.
func (r *Run) actionFiles() ([]FoundAction, error) {
	var out []FoundAction
	for _, path := range r.cfg.ActionFiles {
		f, err := readApproved(r.caller, r.state, path)
		if err != nil {
			return nil, err
		}
		out = append(out, FoundAction{File: f})
	}
	host, err := action.Load(ActionsDir)
	if err != nil {
		return nil, &Refusal{What: "the host's actions cannot be used", Err: err}
	}
	for _, f := range host {
		out = append(out, FoundAction{File: f, Trusted: true})
	}
	return out, nil
}

func pickBroker(files []FoundAction, name policy.Text) (*Broker, error) {
	var found []*Broker
	for _, f := range files {
		b := f.File.FindBroker(name.Value)
		if b == nil {
			continue
		}
		found = append(found, &Broker{
			Name: b.Name, Upstream: b.Origin(), Routes: b.Routes, File: f.File.Name, SHA256: f.File.SHA256,
			Source: b.Source.String(), MaxCalls: b.Limits.PerRun, found: &foundBroker{broker: b, origin: f},
		})
	}
	clause := clauseText("network.broker", name.Source)
	switch len(found) {
	case 0:
		return nil, &Refusal{
			What: "there is no broker " + policy.Quote(name.Value), Clause: clause,
			Remedy: "it must be below brokers: in a file of " + ActionsDir + ", or of --actions FILE",
		}
	case 1:
		return found[0], nil
	}
	return nil, &Refusal{
		What: fmt.Sprintf("the broker %s is there more than once: at %s and at %s", name.Value, found[0].Source, found[1].Source), Clause: clause,
		Remedy: "give one of them another name",
	}
}

// brokerEntries are the names of the brokers inside: nothing else of them is there.
func brokerEntries(list []Broker) []netguard.Entry {
	var out []netguard.Entry
	for _, b := range list {
		out = append(out, netguard.Entry{
			Proto: "tcp", Host: b.Name + broker.Domain, Ports: netguard.Ports{Low: netguard.BrokerPort, High: netguard.BrokerPort}, Broker: true,
		})
	}
	return out
}

// checkBrokerNames refuses entries of the allowlist below the brokers' domain.
func checkBrokerNames(p *policy.Policy) error {
	for _, a := range p.Allow {
		if strings.HasSuffix("."+a.Host, broker.Domain) {
			return &Refusal{
				What: policy.Quote(a.Text) + ": names below " + broker.Domain[1:] + " are those of brokers", Clause: clauseText("network.allowlist", a.Source),
				Remedy: "name the broker with --broker",
			}
		}
	}
	return nil
}

// upstreams are what the dialling process is told of brokers.
func upstreams(list []Broker) []netguard.Broker {
	var out []netguard.Broker
	for _, b := range list {
		d := b.found.broker.Destination
		out = append(out, netguard.Broker{
			Name: b.Name + broker.Domain, Host: b.found.broker.Host, Port: b.found.broker.Port, Private: d.AllowPrivate, Resolve: d.Resolve,
		})
	}
	return out
}

// credentialLimit bounds the reading of all credentials: a person may have to
// type something.
const credentialLimit = 2 * time.Minute

// startBrokers starts the process that holds the credentials. Here they are
// erased as soon as it has them.
func (r *Run) startBrokers(dial *os.File) (*broker.Process, error) {
	// While we have them: no core, and nobody of our user reads us (PR_SET_DUMPABLE(2const)). RLIMIT_CORE is the command's too.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), credentialLimit)
	defer cancel()
	cfg := &broker.Config{Seccomp: seccomp.BrokerFilter()}
	defer func() {
		for _, e := range cfg.Endpoints {
			clear(e.Value)
			for _, b := range e.Hide {
				clear(b)
			}
		}
	}()
	for _, b := range r.plan.Egress.Brokers {
		e, err := b.found.endpoint(ctx, r.caller)
		if err != nil {
			return nil, &Refusal{What: "the broker " + b.Name + " cannot be served", Err: err, Clause: b.Source, Remedy: "nothing was run"}
		}
		cfg.Endpoints = append(cfg.Endpoints, *e)
	}
	exe, err := action.OpenHTTPProgram()
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	return broker.Start(cfg, exe, brokerIdentity(r.caller), dial)
}

// brokerIdentity is who holds the credentials: where we are root somebody who
// owns nothing, so that no other process of the caller's is of the same user.
func brokerIdentity(c Caller) reexec.Identity {
	if os.Geteuid() == 0 {
		return dialIdentity(Caller{})
	}
	return dialIdentity(c)
}

// endpoint makes what the process is told of one, with its credential.
func (f *foundBroker) endpoint(ctx context.Context, c Caller) (*broker.Endpoint, error) {
	b := f.broker
	secret, err := f.origin.reader(c).Read(ctx, b.Credential)
	if err != nil {
		return nil, err
	}
	defer secret.Erase()
	proof, err := b.Auth.Apply(secret, nil)
	if err != nil {
		return nil, err
	}
	e := &broker.Endpoint{
		Name: b.Name, Host: b.Host, Port: b.Port, Routes: b.Routes,
		Header: proof.Header, Value: []byte(proof.Value), Hide: [][]byte{slices.Clone(secret.Reveal())},
		SetHeaders: b.Headers, RequestHeaders: b.Pass, ResponseHeaders: b.Show,
		MaxCalls: b.Limits.PerRun, MaxPerMin: b.Limits.PerMinute, MaxRequest: b.Limits.RequestBytes, MaxResponse: b.Limits.ResponseBytes, Timeout: b.Limits.Timeout,
	}
	if b.Destination.CAFile != "" {
		if e.RootsPEM, err = f.origin.certificates(c, b.Name, b.Destination.CAFile); err != nil {
			return nil, err
		}
	}
	return e, e.Check()
}

// brokerRows are the plan's text about brokers.
func brokerRows(list []Broker, row func(name, format string, a ...any)) {
	for _, b := range list {
		row("broker", "http://%s%s is %s, at most %d calls (%s)", b.Name, broker.Domain, trace.Quote(b.Upstream), b.MaxCalls, trace.Quote(b.Source))
		for i := range b.Routes {
			row("", "%s", trace.Quote(b.Routes[i].String()))
		}
	}
}
