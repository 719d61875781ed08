package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// envelope is a run without cgroup and sensor: a real view in real namespaces.
type envelope struct {
	host     *Host
	policy   *policy.Policy
	identity Identity
	leaf     map[string]*os.File
	plan     *Plan
	mounts   *mountSet
	noUserNS bool   // as on a host that has none
	prepared func() // called when the mounts are made, and nothing is attached yet
}

// newEnvelope plans a run of /bin/sh that grants what flags say, and nothing of
// the current directory but what they name.
func newEnvelope(t *testing.T, flags ...string) *envelope {
	t.Helper()
	testenv.Root(t)
	e := &envelope{host: &Host{}, policy: policyOf(t, append(flags, "allow-gap=record", "allow-gap=filesystem.max_output_bytes")...)}
	if e.policy.Workspace.Source.IsDefault() {
		e.policy.Workspace = policy.Workspace{}
	}
	e.host.kernel()
	e.host.probeLandlock()
	if e.host.Info.Landlock == 0 {
		testenv.Missing(t, "landlock", e.host.Info.LandlockError)
	}
	must(t, e.host.openSystem())
	t.Cleanup(func() { must(t, e.host.Close()) })
	e.identity = Identity{UID: ownUIDBase + ownUIDs - 1, GID: ownUIDBase + ownUIDs - 1, Own: true}
	leaf, err := os.Open(publicDir(t)) // the run's cgroup, as far as the view goes
	must(t, err)
	t.Cleanup(func() { leaf.Close() })
	e.leaf = map[string]*os.File{"": leaf}
	return e
}

// decide makes the plan and its mounts.
func (e *envelope) decide(t *testing.T) error {
	t.Helper()
	g, err := openGrants(e.policy, Caller{UID: os.Getuid()}, nil)
	must(t, err)
	t.Cleanup(func() { closeGrants(t, g) })
	filter, err := (seccomp.Config{}).Filter()
	must(t, err)
	e.plan, err = newPlan(planInput{
		policy: e.policy, host: e.host, grants: g, argv: []string{"/bin/sh", "-s"}, identity: e.identity,
		environ: os.Environ(), filter: filter,
	})
	if err != nil {
		return err
	}
	var userns *os.File
	if hasIDMap(e.plan.View) && !e.noUserNS {
		userns, err = initproc.NewUserNS(idMap(e.identity.UID), "")
		must(t, err)
		defer userns.Close()
	}
	e.mounts, err = prepareMounts(e.plan, given{leaf: e.leaf, userns: userns})
	return err
}

// run runs a shell script inside and returns what it printed. It must print "end".
func (e *envelope) run(t *testing.T, script string) string {
	t.Helper()
	got, err := e.start(t, script)
	must(t, err)
	text, whole := strings.CutSuffix(got, "end\n")
	if !whole {
		t.Fatalf("the script did not end:\n%s", got)
	}
	return text
}

// start is run without its demands; the error is that of the envelope.
func (e *envelope) start(t *testing.T, script string) (string, error) {
	t.Helper()
	must(t, e.decide(t))
	if e.prepared != nil {
		e.prepared()
	}
	m := materials{mounts: e.mounts}
	var err error
	m.ruleset, err = m.mounts.ruleset(e.plan.LandlockABI)
	must(t, err)
	m.filter, err = (seccomp.Config{}).Filter()
	must(t, err)
	defer func() { must(t, m.Close(), m.Close()) }()
	inR, inW, err := os.Pipe()
	must(t, err)
	outR, outW, err := os.Pipe()
	must(t, err)
	must(t, outW.Chmod(0o666))
	p, err := initproc.Start(initproc.Config{
		Flags: namespaces, Stdin: inR, Stdout: outW, Stderr: outW, Guardian: guardian{uid: GuardianUID, filter: seccomp.InitFilter(), loUp: true}.program(),
	})
	must(t, err, inR.Close(), outW.Close())
	defer func() { must(t, p.Hangup(), p.Reap(), p.Close(), outR.Close()) }()
	must(t, p.Locked(patience))
	if err := p.Exec(commandProgram(e.plan, m), patience); err != nil {
		return "", errors.Join(err, inW.Close())
	}
	go func() { _, _ = inW.WriteString(script + "\necho end\n"); inW.Close() }()
	got, err := io.ReadAll(outR)
	must(t, err)
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	return string(got), nil
}

// expect runs a script of which each line prints one line, and compares.
func (e *envelope) expect(t *testing.T, cases [][2]string) {
	t.Helper()
	var script strings.Builder
	for i, c := range cases {
		fmt.Fprintf(&script, "echo; echo '#%d'; { %s; } 2>&1\n", i, c[0])
	}
	parts := strings.Split("\n"+e.run(t, script.String()), "\n#")[1:]
	if len(parts) != len(cases) {
		t.Fatalf("%d answers to %d questions: %q", len(parts), len(cases), parts)
	}
	for i, c := range cases {
		_, got, _ := strings.Cut(parts[i], "\n")
		got = strings.TrimRight(got, " \n")
		if want, part := strings.CutPrefix(c[1], "..."); got != c[1] && !(part && strings.Contains(got, want)) {
			t.Errorf("%s\ngot  %q\nwant %q", c[0], got, c[1])
		}
	}
}

// The base: what every run has, and no more.
func TestEnvelopeBase(t *testing.T) {
	e := newEnvelope(t, "output=2M")
	id := itoa(e.identity.UID)
	e.expect(t, [][2]string{
		{"pwd; echo $HOME", Home + "\n" + Home},
		{"id -u; id -g; id -G", id + "\n" + id + "\n" + id},
		{"grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t' | tr '\\n' ' '", "...CapInh:0000000000000000 CapPrm:0000000000000000 CapEff:0000000000000000"},
		{"grep -c -E '^(NoNewPrivs:.1|Seccomp:.2|CapAmb:.0{16})$' /proc/self/status", "3"},
		{"ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3"}, // 3 is ls's own
		{"hostname", Hostname},
		{"ls -A /etc/shadow /root /home/* 2>&1 | grep -c 'No such file'", "2"},
		{"cat /etc/hostname; cut -d: -f1 /etc/passwd | tr '\\n' ' '", Hostname + "\nroot agent nobody"},
		{"ls /dev | tr '\\n' ' '", "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"},
		{"echo x >/dev/null && head -c 3 /dev/zero | wc -c", "3"},
		{"echo x >/new", "...Read-only file system"},
		{"echo x >/etc/new", "...Read-only file system"},
		{"echo x >/usr/new", "...Read-only file system"},
		{"for d in /tmp /var/tmp /dev/shm $HOME; do echo x >$d/f && cat $d/f; done | tr '\\n' ' '", "x x x x"},
		{"stat -c '%a %u' /tmp /home/agent", "1777 0\n700 " + id},
		{"cp /bin/true /tmp/t && /tmp/t && echo ran", "ran"},
		{"cp /bin/true /dev/shm/t && /dev/shm/t && echo ran", "ran"},
		{"head -c 3000000 /dev/zero >/tmp/big", "...No space left on device"},
	})
}

// /proc and /sys of the run.
func TestEnvelopeKernelFiles(t *testing.T) {
	e := newEnvelope(t)
	e.expect(t, [][2]string{
		{"[ $(ls /proc | grep -c '^[0-9]') -le 4 ] && echo few", "few"},
		{"ls -d /proc/1", "...No such file"}, // PID 1 is another user's
		{"echo x >/proc/sys/kernel/hostname", "...Read-only file system"},
		{"for f in /proc/kcore /proc/keys /proc/timer_list; do [ ! -e $f ] || [ -z \"$(head -c 9 $f)\" ] || echo $f; done; echo masked", "masked"},
		{"mknod /tmp/n c 1 3", "...Operation not permitted"},
		{"ls -A /.agentguard", "...Permission denied"},
		{"ls /sys | tr '\\n' ' '; ls /sys/fs | tr '\\n' ' '; ls -A /sys/fs/cgroup | wc -l", "devices fs cgroup 0"},
		{"echo x >/sys/fs/cgroup/f", "...Read-only file system"},
		{"kill -9 1; echo still here", "...still here"},
		{"cat /proc/self/cgroup | grep -v -c ':/$'", "0"}, // a cgroup namespace of its own
		{"ls /proc/net/dev >/dev/null && grep -c : /proc/net/dev", "1"},
	})
}

// What is granted is there, as granted.
func TestEnvelopeGrants(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/ro/file", "text\n", 0o644, 0, 0)
	mkfile(t, base+"/ro/sub/inner", "below\n", 0o644, 0, 0)
	mkfile(t, base+"/ws/mine", "ws\n", 0o600, 0, 0) // root's, and so the run's
	mkfile(t, base+"/single", "one\n", 0o644, 0, 0)
	mkfile(t, base+"/not/granted", "secret\n", 0o644, 0, 0)
	odd := base + "/odd name's\tdir"
	mkfile(t, odd+"/f", "odd\n", 0o644, 0, 0)
	must(t, os.Symlink(base+"/not/granted", base+"/ws/out"))
	e := newEnvelope(t, "workspace="+base+"/ws", "mode=rw", "output=none", "ro="+base+"/ro", "rw="+base+"/ro/sub", "ro="+base+"/single", "ro="+base+"/ro:/opt/elsewhere")
	e.policy.ReadOnly = append(e.policy.ReadOnly, mountAt(odd, 1)) // a file could not write this name
	id := itoa(e.identity.UID)
	e.expect(t, [][2]string{
		{"pwd", base + "/ws"},
		{"cat mine; stat -c '%u %a' mine", "ws\n" + id + " 600"},
		{"echo new >made && stat -c %u made", id},
		{"cat " + base + "/ro/file; echo x >>" + base + "/ro/file", "...text\n"},
		{"echo x >" + base + "/ro/new", "...Read-only file system"},
		{"chmod 777 " + base + "/ro/file; touch " + base + "/ro/file; rm " + base + "/ro/file", "...Read-only file system"},
		{"cat " + base + "/ro/sub/inner; echo deeper >" + base + "/ro/sub/new && cat " + base + "/ro/sub/new", "below\ndeeper"},
		{"cat /opt/elsewhere/file", "text"},
		{"cat " + base + "/single; ls " + base, "one\nodd name's\tdir\nro\nsingle\nws"},
		{"cat \"" + odd + "/f\"", "odd"},
		{"cat " + base + "/not/granted", "...No such file"},
		{"cat out", "...No such file"},
		{"ln -s /proc/1/root r; cat r/etc/shadow", "...No such file"},
		{"ls -A .. | wc -l", "4"},
		{"mv mine " + base + "/ro/sub/ 2>&1 | head -1; cat " + base + "/ro/sub/mine", "ws"},
	})
	var st unix.Stat_t
	must(t, unix.Stat(base+"/ws/made", &st))
	if st.Uid != 0 || st.Gid != 0 {
		t.Errorf("on the host the new file belongs to %d:%d", st.Uid, st.Gid)
	}
	if b, err := os.ReadFile(base + "/ro/file"); err != nil || string(b) != "text\n" {
		t.Errorf("the read-only file is %q, %v", b, err)
	}
}

// Each mount inside has the flags that its access means.
func TestEnvelopeMountFlags(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/ro/f", "", 0o644, 0, 0)
	mkfile(t, base+"/rw/f", "", 0o644, testUID, testGID)
	e := newEnvelope(t, "ro="+base+"/ro", "rw="+base+"/rw", "output=none")
	out := e.run(t, "cut -d' ' -f5,6 /proc/self/mountinfo")
	flags := map[string][]string{}
	for l := range strings.Lines(out) {
		place, opts, _ := strings.Cut(strings.TrimSpace(l), " ")
		flags[place] = strings.Split(opts, ",")
	}
	for place, want := range map[string]string{
		"/": "ro nosuid noexec", base + "/ro": "ro nosuid nodev", base + "/rw": "rw nosuid nodev", "/usr": "ro nosuid nodev",
		"/tmp": "rw nosuid nodev", "/dev/shm": "rw nosuid nodev", Home: "rw nosuid nodev", "/proc": "rw nosuid nodev noexec",
		"/proc/sys": "ro nosuid nodev noexec", "/sys/fs/cgroup": "ro nosuid nodev noexec", "/dev/pts": "rw nosuid noexec", "/etc/ssl/certs": "ro nosuid nodev noexec",
	} {
		have, there := flags[place]
		if !there {
			if _, err := os.Lstat(place); err == nil || place == Home {
				t.Errorf("%s is no mount:\n%s", place, out)
			}
			continue
		}
		for _, f := range strings.Fields(want) {
			if !slices.Contains(have, f) {
				t.Errorf("%s is %v, without %s", place, have, f)
			}
		}
	}
	for place := range flags {
		if strings.Contains(place, "deleted") || within(place, "/root") || within(place, "/run") {
			t.Errorf("the host's %s is a mount inside", place)
		}
	}
}

// A socket of the host in a granted tree cannot be connected to.
func TestEnvelopeMasksSockets(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/tree/f", "", 0o644, 0, 0)
	l, err := net.Listen("unix", base+"/tree/sock")
	must(t, err, os.Chmod(base+"/tree/sock", 0o777))
	defer l.Close()
	e := newEnvelope(t, "ro="+base+"/tree")
	e.host.sockets, err = hostSockets()
	must(t, err)
	if !slices.ContainsFunc(e.host.sockets, func(s hostSocket) bool { return s.path == base+"/tree/sock" }) {
		t.Fatalf("the socket is not seen among %v", e.host.sockets)
	}
	e.expect(t, [][2]string{
		{"stat -c '%F %a %s' " + base + "/tree/sock", "regular empty file 0 0"},
		{"cat " + base + "/tree/sock", "...Permission denied"},
		{"[ -S " + base + "/tree/sock ] || echo no socket", "no socket"},
	})
}

// A place inside a granted directory that is not there is never made on the host.
func TestMountsNeedTheirPlace(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/tree/f", "", 0o644, 0, 0)
	mkfile(t, base+"/other/f", "", 0o644, 0, 0)
	must(t, os.Symlink("/etc", base+"/tree/link"))
	for _, place := range []string{"missing", "link/x", "link", "f/x"} {
		e := newEnvelope(t, "ro="+base+"/tree", "ro="+base+"/other:"+base+"/tree/"+place)
		before := testenv.Descriptors()
		err := e.decide(t)
		r := refusal(t, err)
		want := base + "/other cannot be shown at " + base + "/tree/" + place + ", which lies in " + base + "/tree"
		if r.What != want || r.Remedy != "create the place first, or choose another with PATH:AT" || r.Clause != "filesystem.read_only_mounts (flag --ro)" {
			t.Errorf("%+v", r)
		}
		if _, err := os.Lstat(base + "/tree/missing"); err == nil {
			t.Error("the place was made on the host")
		}
		if n := testenv.Since(before); n > 2 { // the two grants are the caller's to close
			t.Errorf("%d descriptors are left", n-2)
		}
	}
}

// A place that became a link after it was looked at is not mounted onto.
func TestEnvelopePlaceBecomesALink(t *testing.T) {
	base := publicDir(t)
	mkfile(t, base+"/tree/sub/f", "", 0o644, 0, 0)
	mkfile(t, base+"/other/f", "", 0o644, 0, 0)
	for _, target := range []string{"/usr", "real", "../../../../usr"} {
		e := newEnvelope(t, "ro="+base+"/tree", "ro="+base+"/other:"+base+"/tree/sub")
		e.prepared = func() {
			must(t, os.Rename(base+"/tree/sub", base+"/tree/real"), os.Symlink(target, base+"/tree/sub"))
		}
		_, err := e.start(t, "")
		var se *initproc.StepError
		if !errors.As(err, &se) || se.Errno != unix.ELOOP || se.Step.Stage != "mount" {
			t.Errorf("a link to %s: %v", target, err)
		}
		must(t, os.Remove(base+"/tree/sub"), os.Rename(base+"/tree/real", base+"/tree/sub"))
	}
}

// Preparing and closing leaves no mount and no descriptor.
func TestMountsAreReleased(t *testing.T) {
	e := newEnvelope(t)
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	before := testenv.Descriptors()
	must(t, e.decide(t))
	if len(e.mounts.mounts) < 5 || len(e.mounts.rules) < 5 {
		t.Errorf("%d mounts, %d rules", len(e.mounts.mounts), len(e.mounts.rules))
	}
	must(t, e.mounts.Close(), e.mounts.Close())
	if testenv.Since(before) != 0 {
		t.Errorf("%d descriptors are left", testenv.Since(before))
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if string(after) != string(table) {
		t.Error("the host's mount table has changed")
	}
}

// Each entry that is mounted has a Landlock rule of its own kind.
func TestMountsHaveRules(t *testing.T) {
	e := newEnvelope(t)
	must(t, e.decide(t))
	defer func() { must(t, e.mounts.Close()) }()
	f, err := e.mounts.ruleset(e.plan.LandlockABI)
	must(t, err, f.Close())
	kinds := map[string]landlock.Kind{}
	for _, r := range e.mounts.rules {
		kinds[r.Name] = r.Kind
		if r.FD < 0 || !filepath.IsAbs(r.Name) {
			t.Errorf("rule %+v", r)
		}
	}
	for i := range e.plan.View {
		switch v := &e.plan.View[i]; v.Op {
		case "bind", "scratch":
			if kind, ok := kinds[v.At]; !ok || kind != v.kind() {
				t.Errorf("%s has rule %d (%v), want %d", v.At, kind, ok, v.kind())
			}
		}
	}
	if kinds["/"] != landlock.List || kinds["/etc"] != landlock.Plain || kinds["/dev"] != landlock.Device {
		t.Errorf("the root's rules: %d %d %d", kinds["/"], kinds["/etc"], kinds["/dev"])
	}
}
