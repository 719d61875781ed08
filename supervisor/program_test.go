package supervisor

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/seccomp"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// fakeMaterials holds /dev/null in the place of every mount: a program only
// names descriptors.
func fakeMaterials(t *testing.T, p *Plan) materials {
	t.Helper()
	null := func() *os.File {
		f, err := os.Open(os.DevNull)
		must(t, err)
		return f
	}
	m := materials{mounts: &mountSet{root: null(), scratch: null(), probe: null(), mounts: map[string]*os.File{}}, filter: make([]byte, 80)}
	if p.LandlockABI > 0 {
		m.ruleset = null()
	}
	for _, e := range p.View {
		switch e.Op {
		case "bind", "devpts":
			m.mounts.mounts[e.At] = null()
		case "cgroup":
			m.mounts.mounts[e.At+"/memory"], m.mounts.mounts[e.At+"/unified"] = null(), null()
		}
	}
	t.Cleanup(func() { must(t, m.Close(), m.Close()) })
	return m
}

func fakeProgram(t *testing.T, change func(*Plan)) (*Plan, *initproc.Program) {
	t.Helper()
	p, err := newPlan(fakeInput(policyOf(t)))
	must(t, err)
	if change != nil {
		change(p)
	}
	m := fakeMaterials(t, p)
	prog := commandProgram(p, m)
	return p, prog
}

// numbers reads the call of a step, which only init.c needs to know.
func numbers(s *initproc.Step) (nr int, args [6]uint64) {
	v := reflect.ValueOf(s).Elem()
	for i := range args {
		args[i] = v.FieldByName("args").Index(i).FieldByName("value").Uint()
	}
	return int(v.FieldByName("nr").Uint()), args
}

func flagsOf(s *initproc.Step) uint64 { return reflect.ValueOf(s).Elem().FieldByName("flags").Uint() }

func index(prog *initproc.Program, label string) int {
	return slices.IndexFunc(prog.Steps, func(s *initproc.Step) bool { return strings.HasPrefix(s.Label, label) })
}

// stages lists the stages of a program, each once a run of equal ones.
func stages(steps []*initproc.Step) string {
	var out []string
	for _, s := range steps {
		if len(out) == 0 || out[len(out)-1] != s.Stage {
			out = append(out, s.Stage)
		}
	}
	return strings.Join(out, " ")
}

// The order of an envelope. A step that moves has to move here too.
func TestProgramOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"all", nil, "descriptors session mount proc landlock mount limits identity landlock seccomp canary limits exec"},
		{"no Landlock", func(p *Plan) { p.LandlockABI = 0 }, "descriptors session mount proc mount limits identity seccomp canary limits exec"},
		{"seam landlock", func(p *Plan) { p.Seams = []string{"landlock"} }, "descriptors session mount proc landlock mount limits identity seccomp canary limits exec"},
		{"seam seccomp", func(p *Plan) { p.Seams = []string{"seccomp"} }, "descriptors session mount proc landlock mount limits identity landlock canary limits exec"},
		{"seam canary", func(p *Plan) { p.Seams = []string{"canary"} }, "descriptors session mount proc landlock mount limits identity landlock seccomp limits exec"},
		{"seam mount", func(p *Plan) { p.Seams = []string{"mount"} }, "descriptors session limits identity landlock seccomp canary limits exec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, prog := fakeProgram(t, c.change); stages(prog.Steps) != c.want {
				t.Errorf("stages %s\nwant   %s", stages(prog.Steps), c.want)
			}
		})
	}
	_, prog := fakeProgram(t, nil)
	last := -1
	for _, label := range []string{
		"close_range(3, ~0, CLOSE_RANGE_CLOEXEC)", "umask(022)", "setsid()", "unshare(CLONE_NEWCGROUP)", "mount / MS_REC|MS_PRIVATE", "move_mount(root, /)",
		"fchdir(root)", "move_mount(scratch, " + scratchAt + ")", "move_mount to /tmp", "pivot_root(., .)", "umount2(., MNT_DETACH)", "chdir(/)",
		"mount proc hidepid=2", "move_mount to /proc/sys", "mount /dev/null on /proc/kcore", "landlock_add_rule(/proc)", "mount_setattr(/, RDONLY)", "chdir(/srv/ws)",
		"prlimit(RLIMIT_CORE, 1)", "setgroups(0)", "prctl(PR_CAP_AMBIENT_CLEAR_ALL)", "prctl(PR_SET_SECUREBITS, 0x2f)", "setresgid(1879048193)", "setresuid(1879048193)",
		"capset({})", "prctl(PR_SET_NO_NEW_PRIVS)", "landlock_restrict_self()", "seccomp(SET_MODE_FILTER, 10 instructions)", "open of a file that no rule grants", "execve(/usr/bin/make)", "execve(/bin/make)",
	} {
		i := index(prog, label)
		if i <= last {
			t.Errorf("%q is step %d, after step %d", label, i, last)
		}
		last = i
	}
	if last != len(prog.Steps)-1 {
		t.Errorf("%d steps follow the last execve", len(prog.Steps)-1-last)
	}
}

// Every mount of the view is put in its place, parents first, between the pivot's two halves.
func TestProgramAttachesTheView(t *testing.T) {
	p, prog := fakeProgram(t, nil)
	var got, want []string
	for _, s := range prog.Steps[:index(prog, "pivot_root")] {
		if to, ok := strings.CutPrefix(s.Label, "move_mount to "); ok {
			got = append(got, to)
		}
	}
	for _, e := range p.View {
		switch e.Op {
		case "bind", "devpts", "scratch":
			want = append(want, e.At)
		case "cgroup":
			want = append(want, e.At+"/memory", e.At+"/unified")
		}
	}
	want = append(want, "/"+ownDir) // covered last
	if !slices.Equal(got, want) || len(got) < 8 {
		t.Errorf("attached %q, want %q", got, want)
	}
	// Nothing is attached by a name that could be a link.
	const openat2 = unix.SYS_OPENAT2
	for _, s := range prog.Steps {
		if nr, args := numbers(s); nr == openat2 && args[3] != 24 {
			t.Errorf("%s: struct open_how of %d bytes", s.Label, args[3])
		}
	}
}

// After the filter is in place the process only makes calls that it allows, and
// each probe is answered by the layer that it is meant for: where the filter
// itself refused a call, the probe would prove nothing about the layer behind.
func TestStepsAfterSeccomp(t *testing.T) {
	for _, bpf := range []bool{true, false} {
		_, prog := fakeProgram(t, func(p *Plan) { p.NetBPF = bpf })
		after := prog.Steps[index(prog, "seccomp(")+1:]
		if len(after) < 12 {
			t.Fatalf("%d steps", len(after))
		}
		for _, s := range after {
			nr, args := numbers(s)
			v := (seccomp.Config{}).Decide(nr, args)
			switch errno := v.Errno(); {
			case v == seccomp.Verdict(unix.SECCOMP_RET_KILL_PROCESS):
				t.Errorf("%s kills the process", s)
			case strings.HasSuffix(s.Label, "[seccomp]"):
				if int(errno) != s.Want {
					t.Errorf("%s: the filter says %v", s, errno)
				}
			case errno != 0:
				t.Errorf("%s: the filter says %v", s, errno)
			}
		}
	}
}

func TestCanaryProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Plan)
		layers string // of the probes in order
	}{
		{"all", nil, "landlock seccomp seccomp seccomp seccomp seccomp bpf bpf mount mount capabilities identity identity"},
		{"no Landlock", func(p *Plan) { p.LandlockABI = 0 }, "seccomp seccomp seccomp seccomp seccomp bpf bpf mount mount capabilities identity identity"},
		{"no IPv6", func(p *Plan) { p.IPv6 = false }, "landlock seccomp seccomp seccomp seccomp seccomp bpf mount mount capabilities identity identity"},
		{"no BPF", func(p *Plan) { p.NetBPF = false }, "landlock seccomp seccomp seccomp seccomp seccomp netns netns mount mount capabilities identity identity"},
		{"off", func(p *Plan) { p.Seams = []string{"canary"} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, prog := fakeProgram(t, c.change)
			var layers []string
			n := 0
			for _, s := range prog.Steps {
				switch {
				case s.Stage != "canary":
					if s.Want != 0 {
						t.Errorf("%s is a probe outside of the canary", s)
					}
				case s.Want != 0:
					probe := p.Canary[n]
					n++
					if s.Label != probe.Call+" ["+probe.Layer+"]" || s.Want != int(probe.errno) || probe.Errno != unix.ErrnoName(probe.errno) || s.Want == s.Want2 {
						t.Errorf("%s is not what the plan says: %+v", s, probe)
					}
					if canaryLayer(probe.Layer) == "" {
						t.Errorf("%+v has no layer in the record", probe)
					}
					layers = append(layers, probe.Layer)
				case !strings.HasPrefix(s.Label, "socket for "):
					t.Errorf("%s expects nothing", s)
				}
			}
			if got := strings.Join(layers, " "); got != c.layers || n != len(p.Canary) {
				t.Errorf("layers %s\nwant   %s (%d of %d probes)", got, c.layers, n, len(p.Canary))
			}
		})
	}
}

// The flags of init.c's STEP_*.
const (
	flagExec  = 1
	flagReady = 4
)

// What comes last is execve, candidates in order; the first tells the
// supervisor that all before has succeeded, and nothing else may.
func TestProgramEndsWithExec(t *testing.T) {
	p, prog := fakeProgram(t, func(p *Plan) { p.Candidates = []string{"/a/x", "/b/x", "./x"} })
	tail := prog.Steps[len(prog.Steps)-3:]
	for i, s := range tail {
		want := uint64(flagExec)
		if i == 0 {
			want |= flagReady
		}
		if nr, _ := numbers(s); nr != unix.SYS_EXECVE || s.Label != "execve("+p.Candidates[i]+")" || flagsOf(s) != want {
			t.Errorf("step %s, flags %d", s, flagsOf(s))
		}
	}
	for _, s := range prog.Steps[:len(prog.Steps)-3] {
		if nr, _ := numbers(s); flagsOf(s) != 0 || nr == unix.SYS_EXECVE || nr == unix.SYS_EXECVEAT {
			t.Errorf("%s has flags %d", s, flagsOf(s))
		}
	}
}

// Signals that the caller ignored are not ignored by the command.
func TestSessionResetsSignals(t *testing.T) {
	_, prog := fakeProgram(t, nil)
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGCHLD, unix.SIGTERM, unix.SIGQUIT} {
		if i := index(prog, "sigaction("+unix.SignalName(s)); i < 0 {
			t.Errorf("%v is left as it was", s)
		} else if _, args := numbers(prog.Steps[i]); args[0] != uint64(s) || args[3] != 8 {
			t.Errorf("%s: arguments %v", prog.Steps[i], args)
		}
	}
}

// With the capability seam alone, ids are still given up.
func TestCapsSeam(t *testing.T) {
	_, prog := fakeProgram(t, func(p *Plan) { p.Seams = []string{"caps"} })
	if index(prog, "capset({})") >= 0 || index(prog, "setresuid(") < 0 || index(prog, "prctl(PR_SET_NO_NEW_PRIVS)") < 0 {
		t.Errorf("identity steps:\n%s", prog.Text())
	}
}

// PID 1 gives up everything; what it needs privileges for comes before, the filter last.
func TestGuardianProgram(t *testing.T) {
	filter := seccomp.InitFilter()
	for _, up := range []bool{true, false} {
		prog := guardian{uid: GuardianUID, filter: filter, loUp: up}.program()
		last := -1
		for _, label := range []string{"ioctl(SIOCSIFFLAGS", "close(socket)", "setgroups(0)", "prctl(PR_SET_SECUREBITS", "setresgid(", "setresuid(", "capset({})", "prctl(PR_SET_DUMPABLE", "prctl(PR_SET_NO_NEW_PRIVS)", "seccomp("} {
			i := index(prog, label)
			if !up && last < 0 && (label[0] == 'i' || label[:2] == "cl") {
				if i >= 0 {
					t.Errorf("%q without a network namespace", label)
				}
				continue
			}
			if i <= last {
				t.Errorf("%q is step %d, after %d", label, i, last)
			}
			last = i
		}
		if last != len(prog.Steps)-1 || stages(prog.Steps) != "guardian" {
			t.Errorf("something follows the filter:\n%s", prog.Text())
		}
		for _, s := range prog.Steps {
			if s.Want != 0 || flagsOf(s) != 0 {
				t.Errorf("%s may fail", s)
			}
		}
	}
}

// The kernel forgets whose death kills PID 1 when its ids change (commit_creds).
func TestGuardianDiesWithItsParent(t *testing.T) {
	prog := guardian{uid: GuardianUID, filter: seccomp.InitFilter(), loUp: true, dies: true}.program()
	for _, before := range []string{"setresuid(", "capset({})"} {
		if at := index(prog, "prctl(PR_SET_PDEATHSIG"); at < index(prog, before) {
			t.Errorf("step %d, before %s:\n%s", at, before, prog.Text())
		}
	}
}

// v1 hierarchies are joined before the process can no longer write to them.
func TestProgramJoinsCgroupsFirst(t *testing.T) {
	p, err := newPlan(fakeInput(policyOf(t)))
	must(t, err)
	m := fakeMaterials(t, p)
	f, err := os.Open(os.DevNull)
	must(t, err)
	defer f.Close()
	m.join = []*os.File{f, f}
	prog := commandProgram(p, m)
	if got := stages(prog.Steps); !strings.HasPrefix(got, "descriptors cgroup session") {
		t.Error(got)
	}
	if i := index(prog, `write("0") to /dev/null`); i < 0 || i > index(prog, "unshare(CLONE_NEWCGROUP)") {
		t.Errorf("joined at step %d, after the cgroup namespace", i)
	}
}

func TestExisting(t *testing.T) {
	if got := existing([]string{"/proc/self", "/nowhere/at/all", "/usr/"}); !slices.Equal(got, []string{"/proc/self", "/usr/"}) {
		t.Error(got)
	}
	if existing(nil) != nil {
		t.Error("nothing became something")
	}
}
