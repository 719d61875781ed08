package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// network is the live network of a run with an allowlist. Everything in it is
// kept for as long as the run: a link that is collected detaches in silence.
type network struct {
	process *netguard.Process
	ns      *os.File
	inside  *netguard.Namespace
	edge    *bpf.Edge
	brokers *brokerage     // nil: none
	told    sync.WaitGroup // of the process's account
	err     error          // of reading it
	ended   atomic.Bool    // by us
	seen    destinations

	leaf    *cgroup.Leaf
	limited func() error // puts the process under its limits, once
}

// networkGrace is how long the dialling process may take to report what it
// breaks off at the end.
const networkGrace = 5 * time.Second

// startDialler starts the process that dials, which needs a few milliseconds to
// be ready.
func (r *Run) startDialler() error {
	if err := checkMain(); err != nil {
		return err
	}
	if err := r.born.wait("cgroup"); err != nil { // the lock, without which a leaf is swept
		return err
	}
	n := &network{}
	r.net = n
	r.release.push("network", n.close)
	if err := r.boundDialler(); err != nil {
		return err
	}
	var err error
	cfg := r.plan.Egress.dialConfig(r.caller, r.plan.IPv6, seccomp.DialFilter())
	if n.process, err = netguard.Start(cfg, dialIdentity(r.caller)); err != nil {
		return err
	}
	if n.brokers, err = r.openBrokerage(); err != nil {
		return err
	}
	n.limited = sync.OnceValue(n.join)
	go func() { _ = n.limited() }()
	return nil
}

// boundDialler makes the cgroup of the process that dials. A user without root has none
// for it: what bounds it is its own limit of memory (internal/netguard), and the caller's.
func (r *Run) boundDialler() error {
	if r.host.Info.Mode != ModeRoot {
		return nil
	}
	parent, err := r.host.layout.Parent(parentName() + cgroup.NetSuffix)
	if err != nil {
		return err
	}
	r.net.leaf, err = parent.New(r.lease, cgroup.Limits{Memory: dialMemory, Tasks: dialTasks}, 0)
	return err
}

// loadEdge loads the look-up program, which is attached to nothing yet.
func (r *Run) loadEdge() (err error) {
	if !r.plan.Egress.PerAddress {
		r.net.edge, err = bpf.NewEdge(r.plan.Egress.rules)
	}
	return err
}

// join puts the processes under their limits.
func (n *network) join() error {
	if n.leaf == nil {
		return nil
	}
	err := n.leaf.Join(n.process.Pid())
	if n.brokers != nil {
		err = errors.Join(err, n.leaf.Join(n.brokers.process.Pid()))
	}
	return err
}

// Limits of the dialling process. Its own memory has another bound, half as high
// (internal/netguard); the buffers of its sockets count here.
const (
	dialMemory = 1 << 30
	dialTasks  = 256
)

// openNetwork leads the run's namespace to the dialling process: addresses,
// sockets, the look-up program, and the rules of the second layer.
func (r *Run) openNetwork() error {
	n := r.net
	if n == nil || r.plan.off("netns") { // a test seam: the namespace is the host's
		return nil
	}
	var err error
	if n.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", r.proc.Pid)); err != nil {
		return err
	}
	cfg := r.plan.Egress.dialConfig(r.caller, r.plan.IPv6, nil)
	cfg.AcceptFirst = r.plan.off("hold")
	if n.inside, err = netguard.OpenNamespace(n.ns, cfg); err != nil {
		return err
	}
	if err := r.attachEdge(); err != nil {
		return err
	}
	if err := n.limited(); err != nil { // before it reads anything of the run's
		return fmt.Errorf("the limits of the network process: %w", err)
	}
	if n.brokers != nil {
		if err := n.process.SendBrokers(n.brokers.dial); err != nil {
			return err
		}
	}
	if err := n.process.Send(n.inside); err != nil {
		return err
	}
	// The process has them now: when it ends, they end, and connects are refused.
	if err := n.inside.Close(); err != nil {
		return err
	}
	if err := n.process.Ready(birthLimit); err != nil {
		return &Refusal{What: "the run's network could not be opened", Err: err, Remedy: "nothing was run; a published port must be free and unprivileged"}
	}
	if n.brokers != nil {
		return n.brokers.process.Ready(birthLimit)
	}
	return nil
}

// attachEdge puts both layers' rules in force, and sees that the look-up program is.
func (r *Run) attachEdge() error {
	if r.sensor != nil {
		if err := r.sensor.Allow(r.plan.Egress.rules); err != nil {
			return err
		}
	}
	if r.net.edge == nil {
		return nil
	}
	if err := r.net.attach(r.plan.off("edge")); err != nil || r.plan.off("canary") {
		return err
	}
	if err := r.net.inside.Check(); err != nil {
		return &Refusal{What: "the canary found a layer that does not bite: the edge of the network namespace", Err: err, Remedy: "nothing was run; see agentguard doctor"}
	}
	return nil
}

func (n *network) attach(off bool) error {
	if off { // a test seam
		return nil
	}
	s := n.inside.Sockets
	return n.edge.Attach(n.ns, bpf.EdgeSockets{
		TCP4: s[netguard.TCP4], TCP6: s[netguard.TCP6], UDP4: s[netguard.UDP4], UDP6: s[netguard.UDP6],
	})
}

// followNetwork begins to read the account of the dialling process.
func (r *Run) followNetwork() {
	n := r.net
	if n == nil || n.inside == nil {
		return
	}
	n.brokers.follow(r.brokerEvent)
	n.told.Go(func() {
		n.err = n.process.Read(func(e *netguard.Event) { r.networkEvent(e) })
		if n.err != nil { // no connection without an account
			n.err = errors.Join(n.err, n.process.Kill())
		} else if !n.ended.Load() {
			n.err = errors.New("the process ended before the run")
		}
	})
}

func (r *Run) networkEvent(e *netguard.Event) {
	if e.Kind == netguard.KindSocket {
		s, err := r.net.inside.NewSpare()
		if err == nil {
			err = errors.Join(r.net.process.SendSpare(s), s.Close())
		}
		if err != nil {
			r.cfg.Log.Error().Err(err).Msg("network.publish")
		}
		return
	}
	r.net.seen.add(e)
	r.rec.network(e, r.plan.Egress)
}

// end ends the dialling process when the run is dead. What else there is to do
// goes on meanwhile; the function that it returns waits for the rest of its account.
func (n *network) end(log zerolog.Logger) (wait func()) {
	if n == nil || n.inside == nil {
		return func() {}
	}
	n.ended.Store(true)
	done := make(chan error, 1)
	go func() {
		berr := n.brokers.end() // first: what it breaks off is of connections that are dialled
		stop := time.AfterFunc(networkGrace, func() { _ = n.process.Kill() })
		defer stop.Stop()
		err := n.process.Finish()
		n.told.Wait()
		done <- errors.Join(n.err, berr, err, n.process.Close(networkGrace))
	}()
	return func() {
		if n.err = <-done; n.err != nil {
			log.Error().Err(n.err).Msg("network")
		}
	}
}

// findings are what makes the account incomplete.
func (n *network) findings() []string {
	if n == nil || n.err == nil {
		return nil
	}
	return []string{"network: " + trace.Line(n.err.Error())}
}

func (n *network) counts() []trace.Count {
	if n == nil {
		return nil
	}
	return n.seen.counts()
}

func (n *network) destinations() []runs.Destination {
	if n == nil {
		return nil
	}
	return n.seen.list()
}

// brokerUse is what was asked of each broker.
func (n *network) brokerUse() []runs.BrokerUse {
	if n == nil || n.brokers == nil {
		return nil
	}
	return n.brokers.usage
}

// limits are the limits of the network that were met, and how often.
func (n *network) limits() map[string]int64 {
	if n == nil {
		return nil
	}
	return n.seen.limits
}

// close releases everything; what a failed start has left too.
func (n *network) close() error {
	n.ended.Store(true)
	if n.limited != nil {
		_ = n.limited() // it knows processes by their numbers, which others have after them
	}
	errs := []error{n.brokers.close()}
	if n.process != nil {
		errs = append(errs, n.process.Close(networkGrace))
	}
	n.told.Wait()
	if n.leaf != nil {
		errs = append(errs, n.leaf.Remove(networkGrace))
	}
	if n.edge != nil {
		errs = append(errs, n.edge.Close())
	}
	if n.inside != nil {
		errs = append(errs, n.inside.Close())
	}
	if n.ns != nil {
		errs = append(errs, n.ns.Close())
	}
	n.edge, n.inside, n.ns, n.leaf = nil, nil, nil, nil
	return errors.Join(errs...)
}
