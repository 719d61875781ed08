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
	r.host, err = newHost(runtimeDir())
	if err == nil {
		r.release.push("host", r.host.Close)
	}
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

func (r *Run) probeCgroups() error { return r.host.probeCgroup(parentName()) }

// probePrograms opens the programs of the parent cgroup. Without them the plan
// has a gap, which is not refused here.
func (r *Run) probePrograms() error {
	if slices.Contains(seams(), "programs") { // a test seam: a host without BPF
		r.host.Info.BPFError = "switched off"
		return r.host.probeCgroup(parentName() + "-nobpf")
	}
	r.host.probeBPF(runtimeDir())
	if slices.Contains(seams(), "bpf") { // a parent that no program is attached to
		return r.host.probeCgroup(parentName() + "-nobpf")
	}
	return nil
}

func (r *Run) probe() error {
	if err := r.host.openSystem(); err != nil {
		return err
	}
	reach := func(list []Entry) error { return checkReach(list, runtimeDir(), r.host.mountinfo) }
	if err := errors.Join(r.grants.keepFound(reach), reach(r.grants.entries)); err != nil {
		return err
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
				What:   fmt.Sprintf("%s reaches the state directory %s, where the record is kept", e.From, r.state.Path()),
				Clause: e.Clause, Remedy: "grant less, or keep records elsewhere with --state DIR",
			}
		}
	}
	return nil
}

func (r *Run) identify() error {
	id, err := chooseIdentity(r.cfg.Policy, r.caller, r.grants.owner)
	if err != nil {
		return err
	}
	if id.Own {
		if r.uid, err = takeUID(runtimeDir()); err != nil {
			return err
		}
		r.release.push("uid", r.uid.Close)
		id.UID, id.GID = r.uid.uid(), r.uid.uid()
	}
	r.filter, err = seccomp.Filter(names(r.cfg.Policy.SeccompAllow))
	if err != nil {
		return &Refusal{What: err.Error(), Clause: "process.seccomp_allow", Remedy: "correct the list"}
	}
	r.plan = &Plan{Identity: id}
	return nil
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
		identity: r.plan.Identity, environ: r.cfg.Environ, filter: r.filter, caller: r.caller, terminal: r.streams.in, rlimits: r.cfg.Rlimits, brokers: r.brokers,
	})
	if err != nil {
		return err
	}
	r.plan = p
	if needsIDMap(p.View) && !exists("/proc/self/ns/user") {
		return &Refusal{
			What:   "this kernel has no user namespaces, so a directory of root's cannot be shown writable to the run's own user",
			Remedy: "use --mode ro, or give the directory to a user",
		}
	}
	return nil
}
