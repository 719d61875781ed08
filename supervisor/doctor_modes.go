package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// modeReport is one of the three ways to a run, for this user on this host.
type modeReport struct {
	Mode      string      `json:"mode"`
	Available bool        `json:"available"`
	Chosen    bool        `json:"chosen"`           // by exec, for this user
	Why       string      `json:"why"`              // what makes it available, or what forbids it
	Remedy    string      `json:"remedy,omitempty"` // what would make it available
	Layers    []modeLayer `json:"layers"`
	Record    string      `json:"record"`
	Lacks     []Missing   `json:"lacks"` // of a run with the default policy
}

// modeLayer is what keeps a resource.
type modeLayer struct {
	Resource string `json:"resource"`
	Layers   string `json:"layers"`
}

// modeResources are the rows of the table, and what of each mode is in them.
var modeResources = []struct{ resource, root, userns, landlock string }{
	{"files", "mount view, Landlock, ids", "mount view, Landlock", "Landlock; seccomp for what no open asks"},
	{"staged changes", "yes", "yes", "no: read-only, or in place"},
	{"network", "namespace, BPF, seccomp", "namespace, seccomp", "seccomp: no sockets at all"},
	{"allowlist", "by name, in the kernel", "by name, by listeners", "no: refused"},
	{"processes", "PID namespace, uid, Landlock", "PID namespace, Landlock", "Landlock; seccomp for limits and priorities"},
	{"end of all", "cgroup.kill, PID namespace", "PID namespace", "a guardian, and kill(-1) in its domain"},
	{"system calls", "seccomp, no capability", "seccomp, no capability", "seccomp twice, no capability"},
	{"limits", "cgroup", "delegated cgroup, or added up", "delegated cgroup, or added up"},
}

// nobody is who a probe is made as when root asks what its users would get: the overflow uid.
const nobody = 65534

// wayFindings is what came of trying the three ways.
type wayFindings struct {
	helper error  // why the helper does not serve us; of root: not asked
	ns     UserNS // of an ordinary user
	alone  error  // why Landlock and seccomp alone do not confine one
}

// tryModes tries the three ways; helper asks the helper.
func (x *examination) tryModes(helper func() error) {
	if !x.root {
		x.ways.helper = helper()
	}
	as := x.userOf()
	x.ways.ns, x.ways.alone = probeUserNS(as), tryShared(x.abi, as)
}

// modes reports the three ways.
func (x *examination) modes() {
	root, user, bare := x.rootMode(), x.userMode(), x.landlockMode()
	for _, r := range modeResources {
		root.Layers = append(root.Layers, modeLayer{r.resource, x.layers(r.resource, r.root)})
		user.Layers = append(user.Layers, modeLayer{r.resource, x.layers(r.resource, r.userns)})
		bare.Layers = append(bare.Layers, modeLayer{r.resource, x.layers(r.resource, r.landlock)})
	}
	x.Modes = []modeReport{root, user, bare}
	for i := range x.Modes {
		if x.Modes[i].Available {
			x.Modes[i].Chosen = true
			return
		}
	}
}

// layers takes from a row of the table what this host's Landlock has not.
func (x *examination) layers(resource, all string) string {
	if x.abi == 0 || resource == "processes" && x.abi < 6 {
		all = strings.TrimSuffix(all, ", Landlock")
		all = strings.ReplaceAll(all, ", Landlock,", ",")
	}
	if x.abi < 6 {
		all = strings.TrimSuffix(all, ", and kill(-1) in its domain")
	}
	return all
}

// userOf is whom the probes of users' modes are made as; nil: ourselves.
func (x *examination) userOf() *syscall.Credential {
	if !x.root {
		return nil
	}
	return &syscall.Credential{Uid: nobody, Gid: nobody}
}

func (x *examination) rootMode() modeReport {
	m := modeReport{Mode: ModeRoot, Record: "the kernel's, complete; belongs to root"}
	if x.root {
		m.Available, m.Why = true, "uid 0"
		for _, c := range x.Layers {
			if c.State == cellMissing || c.State == cellThin {
				m.Lacks = append(m.Lacks, Missing{Guarantee: c.ID, Why: c.Finding, Remedy: c.Remedy})
			}
		}
		return m
	}
	m.Remedy = helperRemedy
	if m.Available = x.ways.helper == nil; m.Available {
		m.Why, m.Remedy = "the helper answers", ""
	} else {
		m.Why = fmt.Sprintf("uid %d is not root, and the helper does not serve it: %s", x.UID, oneLine(x.ways.helper.Error()))
	}
	return m
}

func (x *examination) userMode() modeReport {
	ns := x.ways.ns
	m := modeReport{Mode: ModeUserNS, Available: ns.OK, Why: x.forWhom() + " can make a user namespace", Record: "of the filter's listener, degraded; belongs to the user"}
	if !ns.OK {
		m.Why, m.Remedy = strings.TrimPrefix(ns.Refusal().What, "this user "), ns.Remedy
	}
	m.Lacks = x.lacks(HostInfo{Mode: ModeUserNS, CountsTasks: true})
	return m
}

// forWhom names whom a probe was made as.
func (x *examination) forWhom() string {
	if x.root {
		return "an ordinary user (uid 65534)"
	}
	return "uid " + strconv.Itoa(x.UID)
}

func (x *examination) landlockMode() modeReport {
	err := x.ways.alone
	m := modeReport{
		Mode: ModeLandlock, Available: err == nil, Record: "as the one beside it",
		Why: "Landlock ABI " + strconv.Itoa(x.abi) + " and the filter bite; only with --allow-gap landlock, and only where no user namespace is to be had",
	}
	if err != nil {
		m.Why, m.Remedy = oneLine(err.Error()), "a kernel with CONFIG_SECURITY_LANDLOCK=y and landlock in lsm="
	}
	m.Lacks = x.lacks(HostInfo{Mode: ModeLandlock})
	return m
}

// lacks are what a run with the default policy lacks in a mode: the same function tells it that
// refuses or degrades a run.
func (x *examination) lacks(info HostInfo) []Missing {
	info.Landlock, info.MissingControllers, info.Samples = x.abi, []string{"memory", "pids"}, true
	info.BPFError = "loading BPF programs takes root"
	p, err := policy.Merge(policy.Defaults(policy.Context{Cwd: "/", MemTotal: 1 << 30}))
	if err != nil {
		return []Missing{{Guarantee: "policy", Why: err.Error()}}
	}
	in := planInput{policy: p, host: &Host{Info: info}, grants: &grants{}}
	if in.caller, err = CurrentCaller(os.Getenv); err != nil {
		in.caller = Caller{UID: x.UID}
	}
	if info.shared() {
		in.policy, in.lost = unstaged(p)
		in.policy.AllowGaps = append(slices.Clone(p.AllowGaps), policy.Text{Value: gapLandlock})
	}
	_, missing, err := gaps(in)
	if err != nil {
		return []Missing{{Guarantee: "policy", Why: err.Error()}}
	}
	return append(missing, modeLacks(in.host, &grants{}, in.caller)...)
}

// tryShared puts on the envelope of a run without namespaces, in a child, up to where the command
// would start: every probe of its canary was refused then.
func tryShared(abi int, as *syscall.Credential) error {
	if abi == 0 {
		return errors.New("this kernel has no Landlock, or it is switched off")
	}
	keep, before, scope, err := keeper(abi)
	if err != nil {
		return err
	}
	defer closeIf(scope)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	become(before, as)
	p, err := initproc.Start(initproc.Config{Stdin: null, Stdout: null, Stderr: null, Keep: keep, Before: before, Guardian: keeperProgram()})
	if err != nil {
		return err
	}
	err = p.Locked(birthLimit)
	if err == nil {
		err = trySharedCommand(p, abi)
	}
	return errors.Join(err, p.Hangup(), p.Reap(), p.Close())
}

// become puts the change to another user before the calls of a plan.
func become(p *initproc.Program, as *syscall.Credential) {
	if as == nil {
		return
	}
	calls := p.Steps
	p.Steps = nil
	u, g := initproc.Value(as.Uid), initproc.Value(as.Gid)
	p.Call("identity", "setgroups(0)", unix.SYS_SETGROUPS, zero(), zero())
	p.Call("identity", fmt.Sprintf("setresgid(%d)", as.Gid), unix.SYS_SETRESGID, g, g, g)
	p.Call("identity", fmt.Sprintf("setresuid(%d)", as.Uid), unix.SYS_SETRESUID, u, u, u)
	p.Steps = append(p.Steps, calls...)
}

func trySharedCommand(p *initproc.Process, abi int) error {
	outside, err := os.OpenFile(writableMount("/", os.TempDir(), "/dev/shm", "/run"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer outside.Close()
	plan := &Plan{Sharing: &seccomp.Sharing{Unix: abi >= 9}, Host: HostInfo{Mode: ModeLandlock}, LandlockABI: abi, Dir: "/", Argv: []string{nothing}, Candidates: []string{nothing}}
	m := placeholders(plan)
	m.outside, m.readable = int(outside.Fd()), "/etc/passwd"
	if m.filter, err = plan.seccomp().Filter(); err != nil {
		return err
	}
	if m.ruleset, err = landlock.NewRuleset(abi, nil); err != nil {
		return err
	}
	defer m.ruleset.Close()
	err = p.Exec(sharedProgram(plan, m), birthLimit)
	var last *initproc.StepError
	if errors.As(err, &last) && last.Step.Stage == "exec" { // it could not be executed, by Landlock or because it is not there: all before has been done
		return nil
	}
	if errors.As(err, &last) && last.Step.Label == restrictLabel && last.Errno == unix.E2BIG {
		return tooManyLayers(last)
	}
	return errors.Join(errors.New("the envelope could not be put on"), err)
}

// writableMount is the first of the directories that is not on a read-only mount, which
// refuses before Landlock is asked, else the first.
func writableMount(dirs ...string) string {
	for _, dir := range dirs {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY == 0 {
			return dir
		}
	}
	return dirs[0]
}

// nothing is a program that there is not.
const nothing = "/agentguard-doctor"

func closeIf(f *os.File) {
	if f != nil {
		f.Close()
	}
}
