package supervisor

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
)

// fakeHost is a host that has everything. None of its descriptors exists: a
// plan that is made without fault has made no system call with them.
func fakeHost() *Host {
	entry := func(p string, ino uint64) Opened {
		return Opened{Path: p, Stat: unix.Stat_t{Mode: unix.S_IFDIR | 0o755, Dev: 8, Ino: ino}}
	}
	return &Host{
		Info:   HostInfo{Kernel: "6.18.0", Machine: "x86_64", Landlock: 9, BPF: true, UnixHooks: true, ExecEvents: true, CgroupMode: "unified", IPv6: true},
		system: []Opened{entry("/usr", 2), entry("/etc/ssl/certs", 3)}, links: map[string]string{"/bin": "usr/bin", "/lib": "usr/lib"},
		procReadOnly: []string{"/proc/sys"}, procMasked: []string{"/proc/kcore"}, bash: true,
	}
}

// policyOf merges the defaults with flags, written "name=value".
func policyOf(t testing.TB, flags ...string) *policy.Policy {
	t.Helper()
	var list []policy.Flag
	for _, f := range flags {
		name, value, _ := strings.Cut(f, "=")
		list = append(list, policy.Flag{Name: name, Value: value})
	}
	file, err := policy.FromFlags(list)
	must(t, err)
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: 8 << 30, Cwd: "/srv/ws"}), file)
	must(t, err)
	return p
}

// fakeInput is a run in a workspace that root owns.
func fakeInput(p *policy.Policy) planInput {
	ws := grant("/srv/ws rw")
	ws.open = &Opened{Path: "/srv/ws", Stat: unix.Stat_t{Mode: unix.S_IFDIR | 0o755}}
	return planInput{
		policy: p, host: fakeHost(), grants: &grants{walked: true, entries: []Entry{ws}, dir: "/srv/ws"}, argv: []string{"make", "test"},
		identity: Identity{UID: ownUIDBase, GID: ownUIDBase, Own: true}, environ: []string{"PATH=/usr/bin:/bin:/root/bin", "LANG=C"}, filter: []byte("filter"),
	}
}

func TestNewPlan(t *testing.T) {
	in := fakeInput(policyOf(t))
	p, err := newPlan(in)
	must(t, err)
	want := []string{"HOME=/home/agent", "LANG=C", "LOGNAME=agent", "PATH=/usr/bin:/bin", "SHELL=/bin/bash", "TMPDIR=/tmp", "USER=agent"}
	if !slices.Equal(p.Env, want) {
		t.Errorf("environment %q, want %q", p.Env, want)
	}
	if !slices.Equal(p.Candidates, []string{"/usr/bin/make", "/bin/make"}) || p.Dir != "/srv/ws" {
		t.Errorf("candidates %q in %s", p.Candidates, p.Dir)
	}
	if p.SeccompHash != digest([]byte("filter")) || p.LandlockABI != 9 || !p.NetBPF || !p.IPv6 || p.DenyListen || p.Stdin != "pass" {
		t.Errorf("plan %+v", p)
	}
	if len(p.Gaps) != 0 || len(p.Thin) != 0 || len(p.Seams) != 0 || p.off("seccomp") || len(p.Canary) < 10 {
		t.Errorf("gaps %v, thin %v, seams %v, canary %v", p.Gaps, p.Thin, p.Seams, p.Canary)
	}
	if !slices.Equal(p.ProcReadOnly, in.host.procReadOnly) || !slices.Equal(p.ProcMasked, in.host.procMasked) {
		t.Errorf("/proc: %q, %q", p.ProcReadOnly, p.ProcMasked)
	}
	if in.grants.entries[0].IDMap {
		t.Error("the grants were changed")
	}
}

// The digest of a plan is in the record: the same input gives the same bytes.
func TestPlanIsDeterministic(t *testing.T) {
	var first []byte
	for range 30 {
		p, err := newPlan(fakeInput(policyOf(t, "ro=/srv/b", "ro=/srv/a")))
		must(t, err)
		b, err := p.JSON()
		must(t, err)
		if first == nil {
			first = b
		} else if !bytes.Equal(b, first) {
			t.Fatalf("two plans:\n%s\n%s", first, b)
		}
	}
	var back Plan
	must(t, json.Unmarshal(first, &back))
	again, err := back.JSON()
	must(t, err)
	if !bytes.Equal(again, first) || first[len(first)-1] != '\n' {
		t.Errorf("the document loses something:\n%s\n%s", first, again)
	}
	if bytes.Contains(first, []byte("AWS")) || bytes.Contains(first, []byte("root/bin")) {
		t.Error("the caller's environment is in the plan")
	}
}

// Only what root owns is shown under mapped ids, and only to a uid of the run's own.
func TestMapGrants(t *testing.T) {
	for _, c := range []struct {
		access string
		owner  uint32
		own    bool
		want   bool
	}{
		{"rw", 0, true, true}, {"rw", 0, false, false}, {"rw", testUID, true, false}, {"ro", 0, true, false}, {"ro", 0, false, false},
	} {
		e := grant("/srv " + c.access)
		e.open = &Opened{Stat: unix.Stat_t{Uid: c.owner}}
		got := mapGrants(planInput{grants: &grants{entries: []Entry{e}}, identity: Identity{Own: c.own}})
		if got[0].IDMap != c.want || hasIDMap(got) != c.want {
			t.Errorf("%+v: mapped %v", c, got[0].IDMap)
		}
	}
}

func TestPlanLimits(t *testing.T) {
	defaults := Limits{Memory: 4 << 30, Tasks: 512, CPU: 3600e9, Wall: 3600e9, Output: 1 << 30, Files: -1, Stdout: 16 << 20, Sanitize: true, Trace: 1 << 30}
	with := func(f func(*Limits)) Limits { l := defaults; f(&l); return l }
	for _, c := range []struct {
		flags []string
		want  Limits
	}{
		{nil, defaults},
		{[]string{"memory=64M", "pids=10", "cpu=2s", "wall=1m"}, with(func(l *Limits) { l.Memory, l.Tasks, l.CPU, l.Wall = 64<<20, 10, 2e9, 60e9 })},
		{[]string{"memory=none", "pids=none", "cpu=none", "wall=none", "output=none"}, with(func(l *Limits) { l.Memory, l.Tasks, l.CPU, l.Wall, l.Output = -1, -1, -1, -1, -1 })},
		{[]string{"files=5", "output=1K"}, with(func(l *Limits) { l.Files, l.Output = 5, 1024 })},
		{[]string{"stdout=100"}, with(func(l *Limits) { l.Stdout, l.CutHere = 100, true })}, // asked for: the caller's copy is cut too
		{[]string{"stdout=none"}, with(func(l *Limits) { l.Stdout = -1 })},
	} {
		p := &Plan{}
		p.setLimits(policyOf(t, c.flags...))
		c.want.Sanitize = true // no flag: output.terminal
		if p.Limits != c.want {
			t.Errorf("%q: %+v, want %+v", c.flags, p.Limits, c.want)
		}
	}
	p := &Plan{}
	p.setLimits(policyOf(t, "memory=64M"))
	if p.sources["memory"] != "flag --memory" || p.sources["wall"] != "default" {
		t.Errorf("sources %q", p.sources)
	}
}

func TestPlanRlimits(t *testing.T) {
	for _, c := range []struct {
		own   bool
		flags []string
		want  map[string]uint64
	}{
		{false, nil, map[string]uint64{"RLIMIT_NOFILE": 4096}},
		{true, nil, map[string]uint64{"RLIMIT_NOFILE": 4096, "RLIMIT_NPROC": 528}},
		{true, []string{"pids=none"}, map[string]uint64{"RLIMIT_NOFILE": 4096}},
		{false, []string{"file-size=1M"}, map[string]uint64{"RLIMIT_NOFILE": 4096, "RLIMIT_FSIZE": 1 << 20}},
	} {
		p := &Plan{Identity: Identity{Own: c.own}}
		pol := policyOf(t, c.flags...)
		p.setLimits(pol)
		c.want["RLIMIT_CORE"], c.want["RLIMIT_RTPRIO"], c.want["RLIMIT_NICE"] = 1, 0, 0
		for _, r := range p.Rlimits {
			if v, ok := c.want[r.Name]; !ok || v != r.Value {
				t.Errorf("%+v: %s is %d, want %d %v", c, r.Name, r.Value, v, ok)
			}
			delete(c.want, r.Name)
			if r.Name == "RLIMIT_AS" {
				t.Error("RLIMIT_AS kills V8 and JVMs")
			}
		}
		if len(c.want) != 0 {
			t.Errorf("missing %v", c.want)
		}
	}
}

func TestThin(t *testing.T) {
	for _, c := range []struct {
		abi  int
		bpf  bool
		want []string
	}{
		{9, true, nil},
		{8, true, []string{"unix sockets: "}},
		{6, true, []string{"unix sockets: "}},
		{5, true, []string{"unix sockets: ", "abstract unix sockets: "}},
		{4, true, []string{"devices: ", "unix sockets: ", "abstract unix sockets: "}},
		{1, false, []string{"devices: ", "unix sockets: ", "abstract unix sockets: ", "network: "}},
		{0, true, []string{"files: ", "unix sockets: ", "abstract unix sockets: "}},
		{0, false, []string{"files: ", "unix sockets: ", "abstract unix sockets: ", "network: "}},
	} {
		got := thin(&Host{Info: HostInfo{Landlock: c.abi, BPF: c.bpf, UnixHooks: true, ExecEvents: true}}, nil)
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("ABI %d, BPF %v: %q, want %q", c.abi, c.bpf, got, c.want)
		}
	}
	got := thin(&Host{Info: HostInfo{Landlock: 9, BPF: true, UnixHooks: true}}, nil)
	if len(got) != 1 || !strings.HasPrefix(got[0], "code: ") {
		t.Errorf("no fanotify: %q", got)
	}
}

func TestPlanGaps(t *testing.T) {
	noBPF := func(h *Host) { h.Info.BPF, h.Info.BPFError = false, "no BTF" }
	noMemory := func(h *Host) { h.Info.MissingControllers = []string{"memory"} }
	noPids := func(h *Host) { h.Info.MissingControllers = []string{"pids", "cpu"} }
	for _, c := range []struct {
		name  string
		host  func(*Host)
		flags []string
		err   string   // of the first gap that is not accepted
		gaps  []string // accepted
	}{
		{name: "none"},
		{name: "a limit", flags: []string{"rw=/srv/out", "files=5"}, err: `the number of files cannot be limited below "/srv/out", a real directory: only the private tmpfs is bounded [filesystem.max_files (flag --files)]; write max_files: none`},
		{name: "another gap accepted", flags: []string{"rw=/srv/out", "files=5", "allow-gap=record"}, err: "the number of files"},
		{name: "accepted", flags: []string{"rw=/srv/out", "files=5", "allow-gap=filesystem.max_files"}, gaps: []string{"filesystem.max_files"}},
		{name: "no record", host: noBPF, err: "the kernel's record cannot be made: no BTF [record (default)]; run on a kernel"},
		{name: "no record, accepted", host: noBPF, flags: []string{"allow-gap=record"}, gaps: []string{"record"}},
		{name: "no memory controller", host: noMemory, err: "this host has no memory controller for the run's cgroup [process.max_memory_mb (default)]"},
		{name: "no memory controller, no limit", host: noMemory, flags: []string{"memory=none"}},
		{name: "no memory controller, accepted", host: noMemory, flags: []string{"allow-gap=process.max_memory_mb"}, gaps: []string{"process.max_memory_mb"}},
		{name: "no pids controller", host: noPids, flags: []string{"pids=4"}, err: "this host has no pids controller for the run's cgroup [process.max_subprocesses (flag --pids)]"},
		{name: "no pids controller, no limit", host: noPids, flags: []string{"pids=none"}},
		{name: "two, one accepted", host: noBPF, flags: []string{"rw=/srv/out", "files=5", "allow-gap=filesystem.max_files"}, err: "the kernel's record"},
		{name: "two accepted", host: noBPF, flags: []string{"rw=/srv/out", "files=5", "allow-gap=filesystem.max_files", "allow-gap=record"}, gaps: []string{"filesystem.max_files", "record"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := fakeInput(policyOf(t, c.flags...))
			if c.host != nil {
				c.host(in.host)
			}
			p, err := newPlan(in)
			if c.err != "" {
				if r := refusal(t, err); !strings.HasPrefix(err.Error(), c.err) || r.Remedy == "" || StatusOf(err) != StatusFailed {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			must(t, err)
			var got []string
			for _, g := range p.Gaps {
				got = append(got, g.Clause)
				if g.Missing == "" || g.Remedy == "" || g.Source == "" {
					t.Errorf("%+v does not say everything", g)
				}
			}
			if !slices.Equal(got, c.gaps) {
				t.Errorf("gaps %q, want %q", got, c.gaps)
			}
		})
	}
}

func TestPlanRefusesAView(t *testing.T) {
	in := fakeInput(policyOf(t))
	in.grants.entries[0].At = "/proc/self"
	if _, err := newPlan(in); refusal(t, err).Clause == "" {
		t.Errorf("%v names no clause", err)
	}
}

func TestPlanText(t *testing.T) {
	in := fakeInput(policyOf(t, "memory=64M", "rw=/srv/out", "files=5", "allow-gap=filesystem.max_files", "wall=none"))
	in.host.Info.BPF, in.host.Info.BPFError = true, ""
	in.host.Info.Landlock = 5
	in.argv = []string{"make", "a b", "\x1b[2J"}
	moved := grant("/srv/x:/opt/x ro")
	moved.open = &Opened{}
	in.grants.entries = append(in.grants.entries, moved)
	p, err := newPlan(in)
	must(t, err)
	var b bytes.Buffer
	must(t, p.WriteText(&b))
	for _, want := range []string{
		"command    make 'a b' ", "directory  /srv/ws\n", "grant      rw /srv/ws  [clause of /srv/ws rw]\n", "grant      ro /srv/x at /opt/x  [",
		"limits     memory 64.0 MiB, tasks 512, cpu 1h0m0s, wall none\n", "RLIMIT_CORE 1\n", "thin       unix sockets: ", "gap        filesystem.max_files (flag --files): the number",
		"system     read-only /usr; private /tmp", "env        HOME=/home/agent\n", "layers     Landlock ABI 5, ",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.ContainsRune(b.String(), 0x1b) {
		t.Errorf("an escape sequence is written raw:\n%q", b.String())
	}
	for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if len(l) < 12 || l[10] != ' ' {
			t.Errorf("line %q is out of shape", l)
		}
	}
}
