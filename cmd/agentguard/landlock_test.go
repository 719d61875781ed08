package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/landlock"
)

// cornered is a user without root, without a helper and without user namespaces, for one of
// two reasons: "filter", a seccomp filter as containers have it; "sysctl", there is room for none.
type cornered struct{ *loner }

func corner(t *testing.T, how string) cornered {
	t.Helper()
	c := cornered{newLoner(t)}
	c.confine = func(cmd *exec.Cmd) {
		probe := filepath.Join(programs(), "probe")
		cmd.Path, cmd.Args = probe, append([]string{probe, "confined", how}, cmd.Args...)
		if how == "sysctl" { // a user namespace in which everybody is who he is
			all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
			cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings, cmd.SysProcAttr.GidMappingsEnableSetgroups = all, all, true
			cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_RESOURCE}
		}
	}
	if _, errs, _ := c.guard("exec", "--", "true"); strings.Contains(errs, "without Landlock nothing is left") {
		testenv.Missing(t, "landlock", errs)
	}
	t.Cleanup(func() { c.until("no process is left", func() bool { return len(c.processes()) == 0 }) })
	return c
}

// scoped ends the test on kernels whose Landlock keeps neither signals nor truncation in: the
// gap landlock.abi says so there.
func scoped(t *testing.T) {
	t.Helper()
	if abi, err := landlock.ABI(); abi < 6 {
		testenv.Beyond(t, "landlock", fmt.Sprintf("ABI %d, %v: signals have no scope before Linux 6.12", abi, err))
	}
}

// inside runs a command with the gaps of the mode accepted, and what the test needs granted.
func (c cornered) inside(args ...string) (out, errs string, status int) {
	c.t.Helper()
	return c.guard(append([]string{"exec", "-q", "--allow-gap", "landlock", "--ro", programs()}, args...)...)
}

// Without acceptance nothing runs, and the error names what is missing, what forbids more,
// and the word that accepts it.
func TestLandlockIsAccepted(t *testing.T) {
	for how, setting := range map[string]string{"filter": "a seccomp filter around us", "sysctl": "user.max_user_namespaces=0"} {
		c := corner(t, how)
		_, errs, status := c.guard("exec", "--", "true")
		if status != 125 {
			t.Errorf("%s: status %d", how, status)
		}
		for _, want := range []string{setting, "helper", "--allow-gap landlock", "filesystem.view", "process.namespaces", "network.namespace", "record", "process.max_subprocesses"} {
			if !strings.Contains(errs, want) {
				t.Errorf("%s: the refusal does not say %q: %s", how, want, errs)
			}
		}
		if r := c.result("--allow-gap", "landlock", "--", "true"); r.Mode != "landlock" || len(r.Gaps) < 8 || len(r.Degraded) < 8 || r.Record.Verdict != "degraded" {
			t.Errorf("%s: %s, %d gaps, %d degraded, %s", how, r.Mode, len(r.Gaps), len(r.Degraded), r.Record.Verdict)
		}
	}
}

// What a clause asks for, and the mode cannot give, is not among what the word accepts.
func TestLandlockRefusesClauses(t *testing.T) {
	c := corner(t, "filter")
	for args, want := range map[string]string{
		"--pids 10":                               "process.max_subprocesses",
		"--mode cow":                              "filesystem.workspace.mode",
		"--cow " + c.work:                         "filesystem.cow_mounts",
		"--ro /usr/share:/elsewhere":              "filesystem.read_only_mounts",
		"--allow example.com:443":                 "allowlist",
		"--tty always":                            "terminal",
		"--mode rw --ro " + c.mkdir("kept"):       "filesystem.read_only_mounts",
		"--unix " + filepath.Join(c.home, "none"): "unix",
		"--output 1M":                             "or accept with --allow-gap filesystem.max_output_bytes",
		"--user 0":                                "may not run commands as user 0",
		"--allow-gap process.max_subprocesses --pids 100": "",
		"--memory 100M --cpu 30s":                         "",
	} {
		_, errs, status := c.inside(append(strings.Fields(args), "--", "true")...)
		if want == "" && status != 0 || want != "" && (status != 125 || !strings.Contains(errs, want)) {
			t.Errorf("%s: %d %s", args, status, errs)
		}
	}
}

func (c cornered) mkdir(name string) string {
	dir := filepath.Join(c.work, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chown(dir, c.uid(), lonerGID); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// held is a process of the user with all that reach tries to get at.
func (c cornered) held(dir string) (args []string) {
	c.t.Helper()
	key, queue := fmt.Sprint(0x61670000+os.Getpid()%0x10000), fmt.Sprintf("agentguard-reach-%d", os.Getpid())
	cmd := c.native(filepath.Join(programs(), "probe"), "victim", dir, key, queue)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) != 4 {
		c.t.Fatalf("the victim says %q, %v", line, err)
	}
	return []string{filepath.Join(programs(), "probe"), "reach", dir, f[0], f[1], f[2], f[3], key, queue}
}

// answers are the lines of a probe by the name of what was tried.
func answers(t *testing.T, out string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for line := range strings.Lines(out) {
		name, answer, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Fatalf("%q", out)
		}
		m[name] = answer
	}
	return m
}

// All that a process may do to what is its user's succeeds without agentguard, and is refused
// inside, but for what the documentation says is not kept.
func TestLandlockReach(t *testing.T) {
	scoped(t)
	c := corner(t, "filter")
	dir := filepath.Join(c.home, "outside")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, c.uid(), lonerGID); err != nil {
		t.Fatal(err)
	}
	attack := c.held(dir)
	inside, errs, status := c.inside(append([]string{"--"}, attack...)...)
	if status != 0 {
		t.Fatalf("%d %s", status, errs)
	}
	native, errs, status := c.finish(c.native(attack...))
	if status != 0 {
		t.Fatalf("%d %s", status, errs)
	}
	without, with := answers(t, native), answers(t, inside)
	if len(without) < 35 {
		t.Errorf("tried %d things only", len(without))
	}
	for name, answer := range without {
		if answer != "ok" {
			t.Errorf("%s: %s without agentguard: the attack proves nothing", name, answer)
		}
		if got := with[name]; got != "EPERM" && got != "EACCES" {
			t.Errorf("%s: %s inside", name, got)
		}
	}
}

// The command has what the policy gives and no more: streams, ids, environment, descriptors, status.
func TestLandlockRuns(t *testing.T) {
	for _, how := range []string{"filter", "sysctl"} {
		c := corner(t, how)
		cmd := c.as(agentguard(), "exec", "-q", "--allow-gap", "landlock", "--ro", programs(), "--mode", "rw", "--env", "PASSED", "--", "sh", "-c",
			`id -u; id -g; cat; echo err >&2; echo "$SECRET$PASSED"; `+programs()+`/probe fds; echo kept >made; echo x >$HOME/f && echo y >$TMPDIR/f && cat $HOME/f $TMPDIR/f; exit 7`)
		cmd.Env = append(cmd.Env, "SECRET=s", "PASSED=p")
		cmd.Stdin = strings.NewReader("typed\n")
		cmd.ExtraFiles = []*os.File{os.Stdin}
		out, errs, status := c.finish(cmd)
		want := fmt.Sprintf("%d\n%d\ntyped\np\n0\n1\n2\nx\ny\n", c.uid(), lonerGID)
		if !strings.HasPrefix(out, want) || !strings.HasPrefix(errs, "err\n") || status != 7 {
			t.Errorf("%s: %d %q, want %q; %q", how, status, out, want, errs)
		}
		if b, err := os.ReadFile(filepath.Join(c.work, "made")); string(b) != "kept\n" {
			t.Errorf("%s: %q, %v", how, b, err)
		}
		if left, _ := filepath.Glob(filepath.Join(c.home, ".local/state/agentguard/private/*")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", how, left)
		}
	}
}

// A run's own guardian and supervisor are out of its reach, and its record too.
func TestLandlockKeepsItsOwn(t *testing.T) {
	scoped(t)
	c := corner(t, "filter")
	out, errs, status := c.inside("--", "sh", "-c", `kill -9 $PPID && echo killed; cd "$HOME/../../../runs" && ls 2>&1; chmod 777 "$HOME/../../../runs"; touch "$HOME/../probe" "$HOME/../../../runs/x"; exit 5`)
	if status != 5 || strings.Contains(out, "killed") || strings.Count(errs, "ermi") < 3 {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if _, errs, status := c.guard("trace", "verify", "last"); status > 1 {
		t.Errorf("%d %s", status, errs)
	}
}

// agentguard in agentguard is confined by what is left to it, and says so; when Landlock has no
// layer left, that is what it says.
func TestLandlockNested(t *testing.T) {
	c := corner(t, "filter")
	inner := []string{agentguard(), "exec", "-q", "--allow-gap", "landlock", "--", "sh", "-c", "id -u; exit 4"}
	user := cornered{&loner{t: t, home: c.home, work: c.work}} // can have user namespaces
	out, errs, status := user.guard(append([]string{"exec", "-q", "--mode", "ro", "--ro", programs(), "--"}, inner...)...)
	if strings.Contains(errs, "lacks process.max_subprocesses") {
		testenv.Missing(t, "userns", errs)
	}
	if out != fmt.Sprintln(c.uid()) || status != 4 {
		t.Errorf("in a user namespace: %d %q %q", status, out, errs)
	}
	if _, errs, status := user.guard("exec", "-q", "--mode", "ro", "--ro", programs(), "--", agentguard(), "exec", "--", "true"); status != 125 || !strings.Contains(errs, "runs of agentguard") {
		t.Errorf("not accepted: %d %q", status, errs)
	}
	if _, errs, status := c.inside(append([]string{"--"}, inner...)...); status != 125 || !strings.Contains(errs, "--allow-gap process.proc") {
		t.Errorf("without /proc: %d %q", status, errs)
	}
	if out, errs, status := c.inside(append([]string{"--allow-gap", "process.proc", "--"}, inner...)...); out != fmt.Sprintln(c.uid()) || status != 4 {
		t.Errorf("with /proc: %d %q %q", status, out, errs)
	}
	if _, errs, status := corner(t, "layers").inside("--", "true"); status != 125 || !strings.Contains(errs, "as many Landlock layers as the kernel takes, 16") {
		t.Errorf("without a layer: %d %q", status, errs)
	}
}

// The two gaps that lift something lift that and nothing else; a limit on memory is kept.
func TestLandlockLifts(t *testing.T) {
	c := corner(t, "filter")
	const acts = "chmod 700 $HOME/../.. && echo chmod; ls /proc/1 >/dev/null && echo proc; cat /etc/shadow && echo shadow"
	for gap, want := range map[string]string{"filesystem.metadata": "chmod\n", "process.proc": "proc\n", "landlock": ""} {
		if out, errs, _ := c.inside("--allow-gap", gap, "--", "sh", "-c", acts); out != want {
			t.Errorf("%s: %q, %q", gap, out, errs)
		}
	}
	if r := c.result("--allow-gap", "landlock", "--ro", programs(), "--memory", "50M", "--", filepath.Join(programs(), "probe"), "hog", "400", "100"); r.Status != 137 || r.Reason != runs.ReasonMemory {
		t.Errorf("memory: %d %s", r.Status, r.Reason)
	}
	if r := c.result("--allow-gap", "landlock", "--memory", "100M", "--", "/usr/bin/python3", "-c", hide+memfds); r.Status != 137 || r.Reason != runs.ReasonHidden {
		t.Errorf("hidden memory: %d %s %s", r.Status, r.Reason, r.Error)
	}
}

// The private directory of a run whose supervisor was killed goes with the next run.
func TestLandlockSweeps(t *testing.T) {
	c := corner(t, "filter")
	cmd := c.as(agentguard(), "exec", "-q", "--allow-gap", "landlock", "--", "sh", "-c", `mkdir -p "$HOME/a/b"; (umask 777; mkdir "$HOME/closed" "$HOME/a/closed"); echo "$HOME"; while :; do sleep 1000; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(strings.TrimSuffix(line, "\n"))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	c.until("the run is dead", func() bool { return len(c.processes()) == 0 })
	if !exists(dir) {
		t.Fatal("there is nothing to be swept: ", dir)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, long, long); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := c.inside("--", "true"); status != 0 || exists(dir) {
		t.Errorf("%d %s; %s is there: %v", status, errs, dir, exists(dir))
	}
}
