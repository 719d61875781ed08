package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/agentguard/agentguard/internal/loopfs"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

func (r *Run) who() error {
	if len(r.cfg.Argv) == 0 || r.cfg.Argv[0] == "" {
		return &Refusal{What: "no command", Remedy: "give one after --, as in agentguard exec -- make test"}
	}
	var err error
	if r.cfg.Caller != nil {
		r.caller = *r.cfg.Caller
	} else if r.caller, err = CurrentCaller(func(name string) string { return lookupEnv(r.cfg.Environ, name) }); err != nil {
		return err
	}
	if r.streams, err = r.cfg.terminals(); err != nil {
		return err
	}
	r.id = runs.NewID(time.Now())
	if mode() == "" {
		return &Refusal{What: "this process is neither root's nor in a user namespace of its own (supervisor.Enter)", Remedy: "call agentguard itself, which goes there, or run it with sudo"}
	}
	r.runtime, err = r.caller.runtime(r.cfg.StateDir)
	return err
}

func (r *Run) openPaths() error {
	g, err := openGrants(r.cfg.Policy, r.caller, r.cfg.Environ)
	r.grants = g
	r.release.push("grants", func() error {
		var list []Opened
		for _, e := range g.entries {
			list = append(list, *e.open)
		}
		return closeAll(list)
	})
	return err
}

func (r *Run) probeCgroups() error {
	if r.host.Info.Mode != ModeRoot {
		if err := r.host.probeDelegated(); err != nil {
			return err
		}
		if p := r.host.parent; p != nil {
			r.release.push("the supervisor's own cgroup", p.Leave)
		}
		return nil
	}
	return r.host.probeCgroup(parentName())
}

// probePrograms opens the programs of the parent cgroup. Without them the plan
// has a gap, which is not refused here.
func (r *Run) probePrograms() error {
	if r.host.Info.Mode != ModeRoot {
		r.host.Info.BPFError = "loading BPF programs takes root"
		r.host.probeNotify()
		return nil
	}
	if slices.Contains(seams(), "programs") { // a test seam: a host without BPF
		r.host.Info.BPFError = "switched off"
		r.host.probeNotify()
		return r.host.probeCgroup(parentName() + "-nobpf")
	}
	if err := r.host.probeBPF(r.runtime); err != nil {
		return err
	}
	if !r.host.Info.BPF {
		r.host.probeNotify()
	}
	if slices.Contains(seams(), "bpf") { // a parent that no program is attached to
		return r.host.probeCgroup(parentName() + "-nobpf")
	}
	return nil
}

func (r *Run) probe() error {
	err := r.host.openSystem()
	if err != nil {
		return err
	}
	reach := func(list []Entry) error { return checkReach(list, r.runtime, r.host.mountinfo) }
	if err := errors.Join(r.grants.keepFound(reach), reach(r.grants.entries)); err != nil {
		return err
	}
	if r.host.Info.shared() {
		r.host.tasks = taskCount(r.caller.UID)
		if r.host.files, err = openShared(r.cfg.Policy.AcceptsGap(gapProc)); err != nil {
			return err
		}
	}
	if r.host.Info.Mode == ModeUserNS {
		whole := overlayable(r.host.mountinfo)
		if err := errors.Join(r.grants.keepFound(whole), whole(r.grants.entries)); err != nil {
			return err
		}
	}
	return r.grants.nest(r.host.mountinfo, r.caller)
}

func (r *Run) openState() error {
	path, err := r.caller.StateDir(r.cfg.StateDir)
	if err != nil {
		return err
	}
	s, err := runs.OpenState(path, os.Getuid())
	if err != nil {
		return &Refusal{What: err.Error()}
	}
	r.state = s
	r.release.push("state", s.Close)
	if r.caller.Sudo && !s.Readable() && noUserNS() { // else they could not be shown
		if err := s.LetRead(); err != nil {
			r.cfg.Log.Warn().Err(err).Msg("records for their user")
		}
	}
	s.UseMounts(r.host.mountinfo)
	r.host.diskFree, r.host.noDisk = loopfs.Look(s.Dir())
	return errors.Join(r.grants.keepFound(r.coversNot), r.coversNot(r.grants.entries))
}

// coversNot refuses grants that show the state directory.
func (r *Run) coversNot(list []Entry) error {
	for i := range list {
		e := &list[i]
		covered, err := r.state.Covers(int(e.open.File.Fd()))
		if err != nil {
			return fmt.Errorf("%s: %w", e.From, err)
		}
		if covered {
			return &Refusal{
				What:   fmt.Sprintf("%s reaches the state directory %s, where the record is kept", trace.Quote(e.From), trace.Quote(r.state.Path())),
				Clause: e.Clause, Remedy: "grant less, or keep records elsewhere with --state DIR",
			}
		}
	}
	return nil
}

func (r *Run) identify() error {
	id, err := chooseIdentity(r.cfg.Policy, r.caller, r.grants.owner, mode())
	if err != nil {
		return err
	}
	if id.Own {
		if r.uid, err = takeUID(r.runtime); err != nil {
			return err
		}
		r.release.push("uid", r.uid.Close)
		id.UID, id.GID = r.uid.uid(), r.uid.uid()
	}
	r.filter, err = seccomp.Config{Extra: names(r.cfg.Policy.SeccompAllow)}.Filter()
	if err != nil {
		return &Refusal{What: err.Error(), Clause: "process.seccomp_allow", Remedy: "correct the list"}
	}
	r.plan = &Plan{Identity: id}
	return nil
}

// remakeFilter makes the filter again where the plan asks for another one than most runs have.
func (r *Run) remakeFilter() (err error) {
	c := r.plan.seccomp()
	switch {
	case r.plan.Notify: // there is no sensor: the filter reports
		r.filter, err = c.NotifyFilter()
	case c.Guard || c.Sharing != nil:
		r.filter, err = c.Filter()
	default:
		return nil
	}
	r.plan.SeccompHash = digest(r.filter)
	return err
}

// seccomp is what takes part in the command's filter.
func (p *Plan) seccomp() seccomp.Config {
	return seccomp.Config{Extra: p.SeccompExtra, Sharing: p.Sharing, Guard: p.Host.Mode == ModeUserNS, Counted: p.Limits.Counted}
}

func names(list []policy.Text) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.Value)
	}
	return out
}

func (r *Run) decide() error {
	if err := r.born.wait("programs"); err != nil {
		return err
	}
	p, err := newPlan(planInput{
		policy: r.cfg.Policy, host: r.host, grants: r.grants, argv: r.cfg.Argv,
		private: r.private, lost: r.lost,
		identity: r.plan.Identity, environ: r.cfg.Environ, filter: r.filter, caller: r.caller, terminal: r.streams.in, rlimits: r.cfg.Rlimits, rates: r.cfg.Rates, brokers: r.brokers,
	})
	if err != nil {
		return err
	}
	r.plan = p
	if err := r.remakeFilter(); err != nil {
		return err
	}
	if needsIDMap(p.View) && !exists("/proc/self/ns/user") {
		return &Refusal{
			What:   "this kernel has no user namespaces, so a directory of root's cannot be shown writable to the run's own user",
			Remedy: "use --mode ro, or give the directory to a user",
		}
	}
	return nil
}
