package supervisor

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentguard/agentguard/internal/broker"
	"github.com/agentguard/agentguard/internal/reexec"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// brokerage is the live process of a run's brokers.
type brokerage struct {
	process *broker.Process
	dial    *os.File // its other end is the process's; the dialling process gets this one
	told    sync.WaitGroup
	err     error
	ended   atomic.Bool // by us
	usage   []runs.BrokerUse
}

// openBrokerage starts the process, when there are brokers.
func (r *Run) openBrokerage() (*brokerage, error) {
	if len(r.plan.Egress.Brokers) == 0 {
		return nil, nil
	}
	ours, theirs, err := reexec.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	b := &brokerage{}
	b.dial, err = ours.File()
	if err = errors.Join(err, ours.Close()); err == nil {
		b.process, err = r.startBrokers(theirs)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// follow reads the account of the process.
func (b *brokerage) follow(fn func(*broker.Event)) {
	if b == nil {
		return
	}
	b.told.Go(func() {
		b.err = b.process.Read(fn)
		if b.err != nil { // no call without an account
			b.err = errors.Join(b.err, b.process.Kill())
		} else if !b.ended.Load() {
			b.err = errors.New("the process of the brokers ended before the run")
		}
	})
}

// end ends the process when the run is dead, and waits for the rest of its account.
func (b *brokerage) end() error {
	if b == nil || b.ended.Swap(true) {
		return nil
	}
	stop := time.AfterFunc(networkGrace, func() { _ = b.process.Kill() })
	defer stop.Stop()
	err := b.process.Finish()
	b.told.Wait()
	b.err = errors.Join(b.err, err, b.process.Close(networkGrace))
	return b.err
}

// close releases everything; what a failed start has left too.
func (b *brokerage) close() error {
	if b == nil {
		return nil
	}
	b.ended.Store(true)
	var errs []error
	if b.process != nil {
		errs = append(errs, b.process.Close(networkGrace))
	}
	b.told.Wait()
	if b.dial != nil {
		errs = append(errs, b.dial.Close())
		b.dial = nil
	}
	return errors.Join(errs...)
}

// brokerEvent writes what a command asked of a broker into the record.
func (r *Run) brokerEvent(n *broker.Event) {
	i := slices.IndexFunc(r.plan.Egress.Brokers, func(b Broker) bool { return b.Name == n.Broker })
	if i < 0 {
		return
	}
	b := &r.plan.Egress.Brokers[i]
	if n.Kind == broker.KindUsage {
		r.net.brokers.usage = append(r.net.brokers.usage, runs.BrokerUse{Name: b.Name, Calls: n.Count, Refused: n.Refused, Sent: n.Sent, Received: n.Received})
		return
	}
	e := trace.Event{
		Kind: trace.KindCall, Phase: trace.PhaseCommand, Mono: n.Mono, Name: []byte(n.Broker), Method: n.Method, Path: []byte(n.Path), Status: uint32(max(n.Status, 0)),
		Bytes: uint64(max(n.Sent, 0)), Received: uint64(max(n.Received, 0)), Duration: uint64(max(n.Duration, 0)), Hidden: uint64(max(n.Hidden, 0)),
		Count: uint64(max(n.Count, 0)), Text: n.Text, Credential: b.Credential, Verdict: trace.VerdictAllow,
	}
	if n.Kind == broker.KindRefused {
		e.Verdict, e.Certainty, e.Layer, e.Credential = trace.VerdictDeny, trace.Certain, trace.LayerNetwork, ""
		e.Rule, e.RuleSource = brokerRule(b, n.Clause)
		if strings.HasPrefix(n.Clause, "limits.") {
			e.Layer = trace.LayerLimit
		}
	}
	r.rec.brokerCall(&e)
}

// brokerRule is the key of the file of actions that would have to change; what
// is not allowed by any is HTTP that no broker takes.
func brokerRule(b *Broker, clause string) (rule, source string) {
	if clause == "allow" || strings.HasPrefix(clause, "limits.") {
		return "brokers." + b.Name + "." + clause, b.Source
	}
	return "network.broker", b.Source
}

// brokerCall writes an event of the brokers' process.
func (r *recorder) brokerCall(e *trace.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(e)
}
