package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
)

// loner is a user without root and without a helper.
type loner struct {
	t    *testing.T
	home string
	work string // below it; the directory that runs start in
	id   int    // nobody else's until the test ends

	confine func(*exec.Cmd) // of a user without user namespaces (landlock_test.go); nil: one that has them
}

// lonerGID is the group of all of them.
const lonerGID = 424399

func (l *loner) uid() int { return l.id }

// newLoner makes such a user, with a home directory.
func newLoner(t *testing.T) *loner {
	t.Helper()
	id := testenv.User(t)
	home, err := os.MkdirTemp("", "agentguard-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	l := &loner{t: t, home: home, work: filepath.Join(home, "work"), id: id}
	if err := os.Mkdir(l.work, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{l.home, l.work} {
		if err := os.Chown(dir, l.uid(), lonerGID); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// alone is a user that can have user namespaces. When the test ends none of its processes may be left.
func alone(t *testing.T) *loner {
	t.Helper()
	l := newLoner(t)
	if out, errs, status := l.guard("exec", "--mode", "ro", "--", "true"); status != 0 {
		if strings.Contains(errs, "cannot have a user namespace") {
			testenv.Missing(t, "userns", errs)
		}
		t.Fatalf("%d %q %q", status, out, errs)
	}
	t.Cleanup(func() { l.until("no process is left", func() bool { return len(l.processes()) == 0 }) })
	return l
}

// Who names a helper by the environment gets that one, and nothing less in its place.
func TestNamedHelperIsNotThere(t *testing.T) {
	l := newLoner(t)
	for _, args := range [][]string{{"exec", "--mode", "ro", "--", "true"}, {"runs", "ls"}} {
		cmd := l.as(append([]string{agentguard()}, args...)...)
		cmd.Env = append(cmd.Env, "AGENTGUARD_SOCKET="+l.home+"/none")
		out, errs, status := l.finish(cmd)
		if status == 0 || out != "" || !strings.Contains(errs, "does not answer at "+l.home+"/none") || !strings.Contains(errs, "AGENTGUARD_SOCKET=none goes without") {
			t.Errorf("%v: status %d, %q %q", args, status, out, errs)
		}
	}
	cmd := l.as(agentguard(), "exec", "-q", "--without-helper", "--mode", "ro", "--", "echo", "ran")
	cmd.Env = append(cmd.Env, "AGENTGUARD_SOCKET="+l.home+"/none")
	if out, errs, status := l.finish(cmd); out != "ran\n" || status != 0 {
		t.Errorf("--without-helper: status %d, %q %q", status, out, errs)
	}
}

// as makes a command of the user's.
func (l *loner) as(argv ...string) *exec.Cmd {
	cmd := l.native(argv...)
	if l.confine != nil {
		l.confine(cmd)
	}
	return cmd
}

func (l *loner) native(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = l.work
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + l.home, "AGENTGUARD_SOCKET=none"}
	cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(l.uid()), Gid: lonerGID}}
	return cmd
}

// guard runs agentguard.
func (l *loner) guard(args ...string) (out, errs string, status int) {
	l.t.Helper()
	return l.finish(l.as(append([]string{agentguard()}, args...)...))
}

func (l *loner) finish(cmd *exec.Cmd) (string, string, int) {
	l.t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		l.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// result runs a command with --json and returns what it says.
func (l *loner) result(args ...string) *runs.Result {
	l.t.Helper()
	file := filepath.Join(l.home, "result.json")
	_, errs, status := l.guard(append([]string{"exec", "-q", "--json", file}, args...)...)
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatalf("%v: %d %s", err, status, errs)
	}
	r, err := runs.ParseResult(b)
	if err != nil {
		l.t.Fatal(err)
	}
	if r.Status != status {
		l.t.Errorf("exit status %d, the result says %d: %s", status, r.Status, errs)
	}
	return r
}

// processes are those of the user that live, by "PID name".
func (l *loner) processes() []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		var st unix.Stat_t
		b, err := os.ReadFile(filepath.Join(d, "status"))
		if err != nil || unix.Stat(d, &st) != nil || bytes.Contains(b, []byte("State:\tZ")) {
			continue
		}
		if bytes.Contains(b, []byte("Uid:\t"+strconv.Itoa(l.uid())+"\t")) {
			name, _, _ := strings.Cut(string(b), "\n")
			out = append(out, filepath.Base(d)+" "+strings.TrimPrefix(name, "Name:\t"))
		}
	}
	return out
}

func (l *loner) until(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("not before the deadline: %s; alive: %q", what, l.processes())
		}
	}
}

// A user without root and without a helper gets the envelope: own ids and nothing else, the
// streams, the status, the record; and is told what is missing.
func TestUserNSRuns(t *testing.T) {
	l := alone(t)
	const script = `id -u; id -g; cat; echo err >&2; ls /proc | grep '^1$'
grep -E '^(CapPrm|CapEff|CapInh|CapAmb):' /proc/self/status | tr -d '0:\n'; echo
ls / /home; cat /proc/net/dev | grep -c :; echo new >made || echo refused; exit 7`
	for _, mode := range []string{"ro", "cow", "rw"} {
		cmd := l.as(agentguard(), "exec", "-q", "--mode", mode, "--", "sh", "-c", script)
		cmd.Stdin = strings.NewReader("typed\n")
		out, errs, status := l.finish(cmd)
		want := fmt.Sprintf("%d\n%d\ntyped\nCapInhCapPrmCapEffCapAmb\n", l.uid(), lonerGID)
		if !strings.HasPrefix(strings.ReplaceAll(out, "\t", ""), want) || status != 7 || !strings.HasPrefix(errs, "err\n") {
			t.Errorf("%s: %d %q %q", mode, status, out, errs)
		}
		if strings.Contains(out, "refused") != (mode == "ro") {
			t.Errorf("%s: %q", mode, out)
		}
		if strings.Contains(out, "root\n") || strings.Contains(out, "boot\n") || !strings.Contains(out, "/home:\nagent\n1\n") {
			t.Errorf("%s: the view, or another interface than lo: %q", mode, out)
		}
		if exists(filepath.Join(l.work, "made")) != (mode == "rw") {
			t.Errorf("%s: wrong place of what was written", mode)
		}
	}
	for args, status := range map[string]int{"runs ls": 0, "runs show": 0, "trace show last": 1, "trace verify last": 1, "keys export": 0} {
		out, errs, got := l.guard(strings.Fields(args)...)
		if got != status || out == "" {
			t.Errorf("%s: %d %q %q", args, got, out, errs)
		}
		if strings.HasSuffix(args, "last") && !strings.Contains(out, "degraded") {
			t.Errorf("%s does not say that the record is degraded: %q", args, out)
		}
	}
}

// Statuses and ends are those of every run.
func TestUserNSEnds(t *testing.T) {
	l := alone(t)
	for _, tt := range []struct {
		argv   []string
		status int
		reason string
	}{
		{[]string{"true"}, 0, "exit"},
		{[]string{"sh", "-c", "exit 9"}, 9, "exit"},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, "signal"},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, "signal"},
		{[]string{"/no/such"}, 127, "error"},
		{[]string{"/etc/passwd"}, 126, "error"},
		{[]string{"sh", "-c", "sleep 1000 & exit 3"}, 3, "exit"},
	} {
		if r := l.result(append([]string{"--mode", "ro", "--"}, tt.argv...)...); r.Status != tt.status || r.Reason != tt.reason {
			t.Errorf("%v: %d %s", tt.argv, r.Status, r.Reason)
		}
	}
	if r := l.result("--mode", "ro", "--wall", "50ms", "--", "sleep", "1000"); r.Status != 124 {
		t.Errorf("wall: %d %s", r.Status, r.Reason)
	}
}

// What the mode lacks is said when nobody asked for it, and refused when somebody did.
func TestUserNSLacks(t *testing.T) {
	l := alone(t)
	r := l.result("--mode", "ro", "--", "true")
	if r.Mode != "userns" || r.Record.Verdict != "degraded" || r.Record.Tier == "1" {
		t.Errorf("%s %+v", r.Mode, r.Record)
	}
	found := false
	for _, d := range r.Degraded {
		found = found || d.Guarantee == "record" && strings.Contains(d.Remedy, "helper")
	}
	if !found {
		t.Errorf("degraded: %v", r.Degraded)
	}
	if _, errs, status := l.guard("exec", "--user", "0", "--", "true"); status != 125 || !strings.Contains(errs, "may not run commands as user 0") {
		t.Errorf("another user: %d %q", status, errs)
	}
	var plan struct {
		Host     struct{ Mode string }
		Degraded []struct{ Guarantee string }
	}
	out, errs, status := l.guard("exec", "--dry-run", "--json", "-", "--mode", "ro", "--", "true")
	if err := json.Unmarshal([]byte(out), &plan); err != nil || status != 0 || plan.Host.Mode != "userns" || len(plan.Degraded) == 0 {
		t.Errorf("plan: %v %d %q %+v", err, status, errs, plan)
	}
}

// The run dies with its supervisor, and with it every process of the user's.
func TestUserNSKilled(t *testing.T) {
	l := alone(t)
	cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "sh", "-c", "sleep 1000 & setsid sleep 1001 & sleep 1002")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.until("the command runs", func() bool {
		n := 0
		for _, p := range l.processes() {
			if strings.HasSuffix(p, " sleep") {
				n++
			}
		}
		return n == 3
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	l.until("all of it is dead", func() bool { return len(l.processes()) == 0 })
	l.result("--mode", "ro", "--", "true") // recovers the record
	if out, errs, _ := l.guard("runs", "ls"); !strings.Contains(out, "incomplete") {
		t.Errorf("%q %q", out, errs)
	}
}
