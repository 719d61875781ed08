package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
)

// Plan is everything that a run will do, decided before it is born: a pure
// function of policy, host and command. It is printed by a dry run, it is what
// runs, and its digest is in the record.
type Plan struct {
	Schema  int      `json:"schema"` // of this document
	Version string   `json:"version"`
	Host    HostInfo `json:"host"`

	Argv       []string `json:"argv"`       // the command
	Candidates []string `json:"candidates"` // paths that execve tries, in order
	Dir        string   `json:"dir"`        // working directory inside
	Env        []string `json:"-"`          // NAME=value; the record holds names only
	EnvNames   []string `json:"env"`
	EnvFound   []string `json:"env_found,omitempty"` // names of those that toolchains and caches are found by
	Identity   Identity `json:"identity"`

	View         []Entry  `json:"view"`
	ProcReadOnly []string `json:"proc_read_only"` // parts of /proc that cannot be written
	ProcMasked   []string `json:"proc_masked"`    // and that are empty

	Sharing *seccomp.Sharing `json:"seccomp_sharing,omitempty"` // of a run that shares the host's namespaces: what the filter lets pass of what it would refuse there

	LandlockABI  int      `json:"landlock_abi"` // 0: the host has no Landlock
	SeccompExtra []string `json:"seccomp_allow,omitempty"`
	SeccompHash  string   `json:"seccomp_sha256"`
	Notify       bool     `json:"seccomp_notify,omitempty"` // calls are told, and refused, by the filter's listener: there is no sensor
	NetBPF       bool     `json:"net_bpf"`                  // cgroup programs judge the network
	DenyListen   bool     `json:"deny_listen,omitempty"`
	IPv6         bool     `json:"ipv6"`

	Limits   Limits   `json:"limits"`
	Upper    string   `json:"upper"` // where the run's own storage lies: ram or disk
	Rlimits  []Rlimit `json:"rlimits"`
	Stdin    string   `json:"stdin"`              // pass or null
	Terminal bool     `json:"terminal,omitempty"` // it has a terminal of its own

	Nice        int `json:"nice,omitempty"`          // the caller's; below 0 it is set to 0
	OOMScoreAdj int `json:"oom_score_adj,omitempty"` // likewise

	Rates Rates `json:"rates,omitzero"` // what the run's cgroup has from the caller's

	// Lowered says which limits are the caller's own, and where from: "memory: the caller's
	// cgroup /user.slice".
	Lowered []string `json:"limits_lowered,omitempty"`

	Syscalls bool   `json:"syscalls"` // counted by number in the record's summary
	OnLoss   string `json:"on_loss"`  // record, throttle or kill

	Egress *Egress `json:"egress,omitempty"` // nil: nothing but its own loopback

	Gaps     []Gap     `json:"gaps_accepted,omitempty"`
	Degraded []Missing `json:"degraded,omitempty"` // what this mode lacks although nobody gave it up
	Thin     []string  `json:"thin,omitempty"`     // resources with one layer on this host
	Canary   []Probe   `json:"canary"`
	Seams    []string  `json:"seams,omitempty"` // layers that a test build has switched off

	sources map[string]string // of limits, for the record
}

// Limits bound the whole run; -1 means none.
type Limits struct {
	Memory   int64 `json:"memory_bytes"` // of the whole tree
	Tasks    int64 `json:"tasks"`        // threads too, besides agentguard's own
	CPU      int64 `json:"cpu_ns"`
	Wall     int64 `json:"wall_ns"`
	Output   int64 `json:"output_bytes"`     // of the scratch file system
	Files    int64 `json:"files"`            // in the scratch file system
	Counted  bool  `json:"output_counted"`   // Output also bounds what is written to real files, by counting
	Stdout   int64 `json:"stdout_bytes"`     // of stdout and stderr together kept in the record
	CutHere  bool  `json:"stdout_cut"`       // the caller's copy ends at Stdout too
	Sanitize bool  `json:"stdout_sanitized"` // of a terminal's copy: no more than text and colours, or what full-screen programs need
	Trace    int64 `json:"trace_bytes"`
}

// Rlimit is one resource limit, soft and hard alike (setrlimit(2)): Name is such as
// "RLIMIT_NOFILE", Value in the unit of that limit.
type Rlimit struct {
	Name     string `json:"name"`
	Value    uint64 `json:"value"`
	resource int
}

// Probe is one call of the canary and the errno that it was refused with.
type Probe struct {
	Layer string `json:"layer"` // that must refuse it
	Call  string `json:"call"`  // as a person would write it
	Errno string `json:"errno"` // name; which one shows the layer that refused

	errno unix.Errno
}

// planInput is what NewPlan decides from.
type planInput struct {
	policy   *policy.Policy
	host     *Host
	grants   *grants
	argv     []string
	identity Identity
	environ  []string // the caller's
	caller   Caller
	filter   []byte // seccomp, assembled
	terminal bool   // the caller's terminal is handed on
	rlimits  []Rlimit
	rates    Rates
	brokers  []Broker

	// Of a run without namespaces.
	private *private // its directory
	lost    []Gap    // what of the policy takes mounts
}

// newPlan decides everything. It makes no system call and changes nothing.
func newPlan(in planInput) (*Plan, error) {
	p, h := in.policy, in.host
	view, err := planView(in)
	if err != nil {
		return nil, err
	}
	nameLayers(view)
	sum := sha256.Sum256(in.filter)
	plan := &Plan{
		Schema: 1, Version: Version, Host: h.Info,
		Argv: in.argv, Dir: in.grants.dir, Identity: in.identity, View: view,
		ProcReadOnly: h.procReadOnly, ProcMasked: h.procMasked,
		LandlockABI: h.Info.Landlock, SeccompHash: hex.EncodeToString(sum[:]),
		Rates: in.rates, Notify: h.notifies(), NetBPF: h.Info.BPF, DenyListen: denyListen(p), IPv6: h.Info.IPv6,
		Stdin: p.Stdin.Value, Terminal: in.terminal, Nice: h.nice, OOMScoreAdj: h.oomScoreAdj, Syscalls: p.TraceSyscalls, OnLoss: p.OnLoss.Value, Seams: seams(),
	}
	for _, s := range p.SeccompAllow {
		plan.SeccompExtra = append(plan.SeccompExtra, s.Value)
	}
	plan.Env = buildEnv(p, in.environ, view, h.bash, &in.grants.found)
	if in.terminal {
		plan.Env = addTerminal(plan.Env, in.environ)
	}
	if h.Info.shared() {
		plan.share(in)
	}
	for _, kv := range plan.Env {
		name, _, _ := strings.Cut(kv, "=")
		plan.EnvNames = append(plan.EnvNames, name)
	}
	for _, kv := range in.grants.found.env {
		name, _, _ := strings.Cut(kv, "=")
		plan.EnvFound = append(plan.EnvFound, name)
	}
	plan.Candidates = candidates(in.argv[0], plan.Env)
	plan.setLimits(p)
	if h.Info.shared() {
		plan.shareLimits(h.tasks)
	}
	plan.tighten(in.rlimits)
	plan.tighten(h.rlimits)
	plan.Upper = chooseUpper(p, h)
	plan.Thin = thin(h, view)
	if !in.grants.walked {
		plan.Thin = append(plan.Thin, "unix sockets: the grants are too large to be searched; only sockets with a name in /proc/net/unix are masked")
	}
	if plan.Egress, err = newEgress(&in); err != nil {
		return nil, err
	}
	plan.Thin = append(plan.Thin, plan.sampledThin()...)
	if plan.Gaps, plan.Degraded, err = gaps(in); err != nil {
		return nil, err
	}
	plan.Degraded = append(plan.Degraded, modeLacks(h, in.grants, in.caller)...)
	plan.unbound()
	noteCanary(plan)
	return plan, nil
}

// planView is what the command sees.
func planView(in planInput) ([]Entry, error) {
	h := in.host
	if h.Info.shared() {
		return sharedView(in)
	}
	view, err := mergeView(baseView(h.system, h.devices, h.links, in.identity, wantsEgress(in.policy)), mapGrants(in))
	if err != nil {
		return nil, err
	}
	masks, err := maskSockets(view, slices.Concat(h.sockets, in.grants.sockets, in.grants.secrets))
	if err != nil {
		return nil, err
	}
	view = append(view, masks...)
	if h.Info.Mode == ModeUserNS && h.parent == nil { // it has no cgroup to be shown
		view = slices.DeleteFunc(view, func(e Entry) bool { return e.Op == "cgroup" })
	}
	return view, nil
}

// mapGrants marks the writable mounts that are shown with mapped ids: those
// whose owner is root while the command has a uid of its own.
func mapGrants(in planInput) []Entry {
	out := slices.Clone(in.grants.entries)
	for i := range out {
		e := &out[i]
		e.IDMap = in.identity.Own && e.Access == "rw" && e.open.Stat.Uid == 0
	}
	for i := range out { // a part of a grant is shown as the grant is
		if p := slices.IndexFunc(out, func(e Entry) bool { return e.At == out[i].pinned }); p >= 0 {
			out[i].IDMap = out[p].IDMap
		}
	}
	return out
}

// denyListen reports whether every bind of a run is refused.
func denyListen(p *policy.Policy) bool { return p.Listen.Value == "deny" }

func (p *Plan) off(layer string) bool { return slices.Contains(p.Seams, layer) }

func limit(l policy.Limit) int64 {
	if l.Unlimited || l.N <= 0 {
		return -1
	}
	return l.N
}

// lowerRates says which rates are the caller's own.
func (p *Plan) lowerRates() {
	if p.Rates.CPU != "" {
		p.Lowered = append(p.Lowered, "cpu.max "+p.Rates.CPU+": the caller's cgroup "+p.Rates.CPUAt)
	}
	if len(p.Rates.IO) > 0 {
		p.Lowered = append(p.Lowered, "io.max "+strings.Join(p.Rates.IO, ", ")+": the caller's cgroup "+strings.Join(p.Rates.IOAt, ", "))
	}
}

func (p *Plan) setLimits(pol *policy.Policy) {
	p.Limits = Limits{
		Memory: limit(pol.MaxMemory), Tasks: limit(pol.MaxTasks), CPU: limit(pol.MaxCPU), Wall: limit(pol.MaxWall),
		Output: limit(pol.MaxOutputBytes), Files: limit(pol.MaxFiles), Stdout: limit(pol.MaxStdout),
		Counted: pol.CountsOutput(), Sanitize: pol.Terminal.Value != "raw",
		CutHere: !pol.MaxStdout.Source.IsDefault() && limit(pol.MaxStdout) >= 0, Trace: limit(pol.MaxTraceBytes),
	}
	p.cutTrace(p.Host.MaxFileBytes)
	p.sources = map[string]string{
		"memory": pol.MaxMemory.Source.String(), "tasks": pol.MaxTasks.Source.String(), "cpu": pol.MaxCPU.Source.String(),
		"wall": pol.MaxWall.Source.String(), "output": pol.MaxOutputBytes.Source.String(), "stdout": pol.MaxStdout.Source.String(),
		"files": pol.MaxFiles.Source.String(),
	}
	for _, l := range []struct {
		name string
		src  policy.Source
	}{{"memory", pol.MaxMemory.Source}, {"tasks", pol.MaxTasks.Source}} {
		if l.src.Caller != "" {
			p.Lowered = append(p.Lowered, l.name+": "+l.src.String())
		}
	}
	p.lowerRates()
	add := func(name string, resource int, value int64) {
		if value >= 0 {
			p.Rlimits = append(p.Rlimits, Rlimit{name, uint64(value), resource})
		}
	}
	// 1 and not 0: a pipe in core_pattern ignores 0 and starts the host's helper (core(5)).
	// Where 1 is not to be had, the plan is thin.
	core := int64(1)
	if p.Host.NoCoreLimit {
		core = 0
	}
	add("RLIMIT_CORE", unix.RLIMIT_CORE, core)
	add("RLIMIT_NOFILE", unix.RLIMIT_NOFILE, p.Host.openFiles(limit(pol.MaxOpenFiles)))
	add("RLIMIT_FSIZE", unix.RLIMIT_FSIZE, p.fileLimit(limit(pol.MaxFileBytes)))
	add("RLIMIT_RTPRIO", unix.RLIMIT_RTPRIO, 0)
	add("RLIMIT_NICE", unix.RLIMIT_NICE, 0)
	if p.tasksByUser() { // in a namespace where it counts nothing else
		add("RLIMIT_NPROC", unix.RLIMIT_NPROC, p.Limits.Tasks)
	}
	if p.Identity.Own { // counts every task of the uid on the host, so only where the uid is the run's own
		if n := p.Limits.Tasks; n >= 0 { // a little above pids.max, which counts its refusals and says so
			add("RLIMIT_NPROC", unix.RLIMIT_NPROC, n+16)
		}
	}
}

// tighten adds the caller's own limits, where they are the lower ones.
func (p *Plan) tighten(list []Rlimit) {
	for _, l := range list {
		i := slices.IndexFunc(p.Rlimits, func(have Rlimit) bool { return have.resource == l.resource })
		if i < 0 {
			p.Rlimits = append(p.Rlimits, l)
		} else {
			p.Rlimits[i].Value = min(p.Rlimits[i].Value, l.Value)
		}
	}
}

// fileLimit bounds one file: where the output is kept by counting, no file can
// take more than all of it, which the kernel keeps exactly.
func (p *Plan) fileLimit(n int64) int64 {
	if p.Limits.Counted && (n < 0 || n > p.Limits.Output) {
		return p.Limits.Output
	}
	return n
}

// thin lists the resources that one layer alone guards on this host.
func thin(h *Host, view []Entry) []string {
	var out []string
	if said := crashes(corePattern(), h.Info.NoCoreLimit); said != "" {
		out = append(out, said)
	}
	if h.Info.shared() {
		return append(out, "everything: one layer each, Landlock or seccomp")
	}
	if h.Info.Landlock == 0 {
		out = append(out, "files: mount view only (no Landlock)")
	} else if h.Info.Landlock < 5 {
		out = append(out, "devices: ioctls are not guarded by Landlock (ABI 5, Linux 6.10)")
	}
	if h.Info.Landlock < 9 {
		out = append(out, "unix sockets: mount view only (Landlock ABI 9, Linux 7.1)")
	}
	if h.Info.Landlock < 6 {
		out = append(out, "abstract unix sockets: network namespace only (Landlock ABI 6, Linux 6.12)")
	}
	if h.Info.BPF && !h.Info.UnixHooks {
		out = append(out, "unix sockets: connects are not recorded (Linux 6.7)")
	}
	if h.notifies() || h.Info.BPF && !h.Info.ExecEvents {
		out = append(out, "code: hashed when it is reported, not before it runs (no fanotify permission events)")
	}
	for i := range view {
		if outer := holder(view, view[i].At); view[i].Access == "ro" && !view[i].system && !view[i].guard && outer != nil && outer.Access == "rw" {
			out = append(out, view[i].At+": read-only by its mount alone (Landlock's rule for "+outer.At+" covers it)")
		}
	}
	if !h.Info.BPF {
		out = append(out, "network: network namespace only (no cgroup BPF)")
	}
	return out
}

// JSON is the plan as it is stored and digested.
func (p *Plan) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return append(b, '\n'), nil
}

// landlockMissing says what the host's Landlock cannot guard.
func landlockMissing(abi int) []string { return landlock.Missing(abi) }
