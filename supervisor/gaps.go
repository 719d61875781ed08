package supervisor

import (
	"fmt"
	"slices"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/policy"
)

// Gap is a clause or guarantee that has no layer on this host, or that this
// version cannot enforce.
type Gap struct {
	Clause  string `json:"clause"`  // dotted key of the policy, or "record"
	Missing string `json:"missing"` // the mechanism, in a phrase
	Remedy  string `json:"remedy"`  // what would change it
	Source  string `json:"source"`  // FILE:LINE:COL, "flag --ro" or "default"

	byDefault bool // nobody asked for it
}

// Missing is a guarantee of every run that this one does not have, because nothing in its mode
// gives it and nobody asked for it by name.
type Missing struct {
	Guarantee string `json:"guarantee"` // the clause of the default, or a phrase
	Why       string `json:"why"`
	Remedy    string `json:"remedy"`
}

// helperRemedy is what gives a user all of it.
const helperRemedy = "install the helper (README): systemctl enable --now agentguard.socket"

// gaps collects what cannot be enforced, and refuses unless each is accepted. What a user
// without root has not asked for is not refused: the run is degraded by it, and says so.
func gaps(in planInput) (accepted []Gap, degraded []Missing, err error) {
	p, h := in.policy, in.host
	var all, refused []Gap
	for _, g := range p.Gaps() {
		all = append(all, Gap{Clause: g.Clause, Missing: g.Missing, Remedy: g.Remedy, Source: g.Source.String()})
	}
	all = append(all, hostGaps(p, h)...)
	if h.Info.shared() {
		all = slices.Concat(all, in.lost, sharedGaps(p, h, in.grants))
	}
	for _, g := range all {
		switch {
		case h.Info.shared() && g.byDefault && (p.AcceptsGap(g.Clause) || p.AcceptsGap(gapLandlock)):
			accepted = append(accepted, g)
			degraded = append(degraded, Missing{Guarantee: g.Clause, Why: g.Missing, Remedy: g.Remedy})
		case p.AcceptsGap(g.Clause):
			accepted = append(accepted, g)
			if g.Clause == clauseRecord && h.notifies() { // there is a record, and it says what it lacks
				degraded = append(degraded, Missing{Guarantee: g.Clause, Why: g.Missing, Remedy: g.Remedy})
			}
		case h.Info.shared() && g.byDefault:
			refused = append(refused, g)
		case h.Info.Mode == ModeUserNS && g.byDefault:
			degraded = append(degraded, Missing{Guarantee: g.Clause, Why: g.Missing, Remedy: helperRemedy})
		default:
			return nil, nil, &Refusal{What: g.Missing, Clause: g.Clause + " (" + g.Source + ")", Remedy: g.Remedy}
		}
	}
	if len(refused) > 0 {
		return nil, nil, h.landlockRefusal(refused)
	}
	return accepted, degraded, nil
}

// modeLacks are guarantees that are no clause of a policy.
func modeLacks(h *Host, g *grants, c Caller) []Missing {
	if h.Info.Mode != ModeUserNS {
		return nil
	}
	out := strangers(g.entries, c)
	if others := slices.DeleteFunc(slices.Clone(c.Groups), func(g int) bool { return g == c.GID }); len(others) > 0 {
		out = append(out, Missing{
			Guarantee: "groups", Why: fmt.Sprintf("the command keeps the caller's other groups %v: a user namespace cannot give them up", others), Remedy: helperRemedy,
		})
	}
	return out
}

// unbound takes limits out of the plan that nothing keeps.
func (p *Plan) unbound() {
	for _, m := range p.Degraded {
		switch m.Guarantee {
		case clauseMemory:
			p.Limits.Memory = -1
		case clauseTasks:
			p.Limits.Tasks = -1
		case clauseCPU:
			p.Limits.CPU = -1
		}
	}
}

// degradedTexts are the lines of the record.
func (p *Plan) degradedTexts() []string {
	var out []string
	for _, m := range p.Degraded {
		out = append(out, m.Guarantee+": "+m.Why)
	}
	return out
}

// accepted reports whether a gap was accepted.
func (p *Plan) accepted(clause string) bool {
	return slices.ContainsFunc(p.Gaps, func(g Gap) bool { return g.Clause == clause })
}

// Clauses of limits that take a cgroup.
const (
	clauseMemory = "process.max_memory_mb"
	clauseTasks  = "process.max_subprocesses"
	clauseCPU    = "process.max_cpu_seconds"
)

// hostGaps are limits and guarantees that this host has no mechanism for.
func hostGaps(p *policy.Policy, h *Host) []Gap {
	var out []Gap
	add := func(clause string, src policy.Source, missing, remedy string) {
		out = append(out, Gap{Clause: clause, Source: src.String(), Missing: missing, Remedy: remedy, byDefault: src.IsDefault()})
	}
	if limit(p.MaxMemory) >= 0 && h.lacks(cgroup.Memory) && !h.Info.Samples {
		add(clauseMemory, p.MaxMemory.Source, "this host has no memory controller for the run's cgroup",
			"enable it (cgroup_disable=, systemd Delegate=yes), write `none`, or accept with --allow-gap process.max_memory_mb")
	}
	if limit(p.MaxTasks) >= 0 && h.lacks(cgroup.Pids) && !h.Info.CountsTasks {
		add(clauseTasks, p.MaxTasks.Source, "this host has no pids controller for the run's cgroup",
			"enable it, write `none`, or accept with --allow-gap process.max_subprocesses")
	}
	if h.Info.HiddenProc != "" {
		add(gapProc, policy.Source{}, "the run cannot have a /proc of its own, since of the one here a part is hidden: "+h.Info.HiddenProc,
			"start the container with all of /proc (docker: --security-opt systempaths=unconfined; podman: --security-opt unmask=ALL), or show the command the /proc from here, with names and arguments of its processes: --allow-gap "+gapProc)
		out[len(out)-1].byDefault = false // nobody writes it, and nobody expects to do without
	}
	if limit(p.MaxCPU) >= 0 && (h.Info.Mode == ModeUserNS || h.Info.shared()) && h.parent == nil && !h.Info.Samples {
		add(clauseCPU, p.MaxCPU.Source, "the run has no cgroup whose cpu time could be counted",
			"write `none`, or accept with --allow-gap process.max_cpu_seconds")
	}
	if !h.Info.BPF && denyListen(p) && !h.Info.shared() { // whose command has no sockets
		add("network.listen", p.Listen.Source, "binding a socket cannot be refused: "+h.Info.BPFError,
			"run on a kernel with BPF as root, or accept with --allow-gap network.listen")
	}
	if !h.Info.BPF && p.CountsOutput() && !h.Info.Samples {
		add("filesystem.max_output_bytes", p.MaxOutputBytes.Source, "what is written to real directories cannot be counted: "+h.Info.BPFError,
			"write `none`, make the directories read-only, or accept with --allow-gap filesystem.max_output_bytes")
	}
	if missing, remedy := upperGap(p, h); missing != "" {
		add(clauseUpper, p.Upper.Source, missing, remedy)
	}
	if h.Info.BPF {
		return out
	}
	add(clauseRecord, policy.Source{}, h.noRecord(), "run on a kernel with BPF and BTF as root, or accept a lesser record with --allow-gap record")
	const byKernel = " takes the kernel's record, and that cannot be made: "
	if src := p.TraceFiles.Source; !src.IsDefault() {
		add("trace.files", src, "telling of files"+byKernel+h.Info.BPFError, "leave it out, or accept with --allow-gap trace.files")
	}
	if src := p.TraceSyscallsSource; p.TraceSyscalls && !src.IsDefault() {
		add("trace.syscalls", src, "counting calls"+byKernel+h.Info.BPFError, "leave it out, or accept with --allow-gap trace.syscalls")
	}
	return out
}

// clauseRecord is the gap of a run that the kernel does not record.
const clauseRecord = "record"

// noRecord says what the record lacks where there is no BPF.
func (h *Host) noRecord() string {
	why := "the kernel's record cannot be made: " + h.Info.BPFError
	if h.Info.NotifyError != "" {
		return why + "; nor one by a seccomp filter: " + h.Info.NotifyError
	}
	if !h.notifies() {
		return why
	}
	why += "; programs, ends, addresses and refused calls are told by the command's own seccomp filter; not told are " +
		"files that it opens or changes, what Landlock or permissions refuse, and processes that only fork and are killed"
	if !h.killable {
		why += "; before Linux 5.19 a call that a signal interrupts is told twice"
	}
	return why
}
