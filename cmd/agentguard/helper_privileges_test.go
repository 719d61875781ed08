package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/supervisor"
)

// Capabilities of a request's process while its command runs, and what it keeps for the end.
var (
	livingCaps = lockdown.Of(unix.CAP_KILL, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_LEASE)
	endingCaps = livingCaps | lockdown.Of(unix.CAP_SYS_ADMIN)
)

// capsOf are the words of proc_pid_status(5) for the capabilities of each thread of a
// process, all alike; "" while they are not.
func capsOf(pid int) string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	all := ""
	for i, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		var words []string
		for line := range strings.Lines(string(b)) {
			if name, value, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "Cap") || name == "NoNewPrivs" {
				words = append(words, name+" "+strings.TrimLeft(strings.TrimSpace(value), "0"))
			}
		}
		if text := strings.Join(words, ", "); i == 0 {
			all = text
		} else if text != all {
			return ""
		}
	}
	return all
}

func capWords(effective, permitted, bounding lockdown.Set) string {
	hex := func(s lockdown.Set) string { return strings.TrimLeft(strconv.FormatUint(uint64(s), 16), "0") }
	return fmt.Sprintf("CapInh , CapPrm %s, CapEff %s, CapBnd %s, CapAmb , NoNewPrivs 1", hex(permitted), hex(effective), hex(bounding))
}

// pids are the helper's children.
func (s *service) pids() (out []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// begin starts a run that waits for a line, and returns when its supervisor has
// given up what it gives up.
func (s *service) begin(args ...string) (cmd *exec.Cmd, goOn io.WriteCloser) {
	s.t.Helper()
	cmd = s.as(ann, append([]string{agentguard(), "exec", "-q"}, args...)...)
	goOn, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	want := capWords(endingCaps, endingCaps, endingCaps)
	s.until("the supervisor has given up its capabilities: "+want, func() bool {
		return hasEnded(cmd) || slices.ContainsFunc(s.pids(), func(pid int) bool { return capsOf(pid) == want })
	})
	return cmd, goOn
}

// hasEnded reports whether a child has, and leaves it to be waited for: on a machine that
// is slow enough a limit may have ended the run.
func hasEnded(cmd *exec.Cmd) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// The unit's list is the one that the program keeps to.
func TestUnitCapabilities(t *testing.T) {
	cmd := asUnit(t, "true")
	b, err := os.ReadFile("../../packaging/systemd/agentguard.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nCapabilityBoundingSet=")
	line, _, _ := strings.Cut(rest, "\n")
	if n, want := len(strings.Fields(line)), bits(supervisor.BirthCapabilities()); n != want {
		t.Errorf("%d in the unit, %d in the program: %v", n, want, cmd.Args)
	}
}

func bits(s lockdown.Set) (n int) {
	for ; s != 0; s &= s - 1 {
		n++
	}
	return n
}

// No process of the helper has a capability that it does not use: the listener none, the
// one that waits for a caller that of looking at it, the supervisor of a command those of
// its life, and for its end two more.
func TestHelperPrivileges(t *testing.T) {
	s := serveUsers(t)
	birth := supervisor.BirthCapabilities()
	waiting := capWords(lockdown.Of(unix.CAP_SYS_PTRACE), birth, birth)
	s.until("the listener has given up its capabilities", func() bool { return capsOf(s.cmd.Process.Pid) == capWords(0, birth, birth) })
	s.until("the spare process has given up its capabilities", func() bool {
		return slices.ContainsFunc(s.pids(), func(pid int) bool { return capsOf(pid) == waiting })
	})
	cmd, goOn := s.begin("--", "sh", "-c", "read x; exit 7")
	_ = goOn.Close()
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v: %s", cmd.ProcessState, cmd.Stdout)
	}
}

// What the process has given up is not missed at any end of a run.
func TestHelperEnds(t *testing.T) {
	s := serveUsers(t)
	script := s.as(ann, "sh", "-c", "mkdir -p d/e r/s; echo a >f; chmod 600 f; echo b >d/e/g; chmod 700 d; echo c >h; echo z >r/s/t")
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	for _, c := range []struct {
		name   string
		status int
		shown  string // by runs show
		end    func(*exec.Cmd)
		args   []string
	}{
		{name: "changes", shown: "staged", args: []string{"--", "sh", "-c", "read x; umask 077; echo n >n; echo x >>f; rm h; mv d dd; rm -r r; mkdir r; echo q >r/q; chmod 0 n; ln -s /x l"}},
		{name: "disk", shown: "staged", args: []string{"--upper", "disk", "--", "sh", "-c", "read x; echo 1 >disk"}},
		{name: "memory", status: 137, shown: "memory", args: []string{"--memory", "48M", "--", "python3", "-c", "input(); x=bytearray(200<<20)"}},
		{name: "cpu", status: 137, shown: "cpu", args: []string{"--cpu", "300ms", "--", "sh", "-c", "read x; while :; do :; done"}},
		{name: "wall", status: 124, shown: "wall", args: []string{"--wall", "1s", "--", "sh", "-c", "sleep 1000 & trap '' INT; wait"}},
		{name: "code", shown: "exit", args: []string{"--mode", "ro", "--", "sh", "-c", "read x; umask 077; cp /bin/sh /tmp/x; /tmp/x -c 'cp /bin/cat /tmp/y; /tmp/y /dev/null; rm /tmp/y'"}},
		{name: "left behind", shown: "exit", args: []string{"--on-loss", "throttle", "--", "sh", "-c", "read x; setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & true"}},
		{name: "kill", status: 143, shown: "SIGTERM", args: []string{"--", "sleep", "1000"}, end: func(*exec.Cmd) {
			if _, errs, status := s.guard(ann, "runs", "kill", "last"); status != 0 {
				t.Error(errs)
			}
		}},
		{name: "interrupt", status: 130, shown: "SIGINT", args: []string{"--", "sleep", "1000"}, end: func(cmd *exec.Cmd) { _ = cmd.Process.Signal(unix.SIGINT) }},
		{name: "client dies", status: -1, shown: "cancelled", args: []string{"--", "sleep", "1000"}, end: func(cmd *exec.Cmd) { _ = cmd.Process.Kill() }},
	} {
		if _, errs, _ := s.guard(ann, "exec", "-q", "--upper", "disk", "--", "true"); c.name == "disk" && errs != "" {
			continue // the records of this host lie in memory
		}
		cmd, goOn := s.begin(c.args...)
		if c.end != nil {
			c.end(cmd)
		} else {
			_, _ = io.WriteString(goOn, "\n")
		}
		_ = cmd.Wait()
		_ = goOn.Close()
		s.until(c.name+": the request has ended", s.spare)
		out, _, _ := s.guard(ann, "runs", "show")
		verdict, _, status := s.guard(ann, "trace", "verify", "last")
		if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(out, c.shown) || status != 0 || strings.Contains(out, "could not") {
			t.Errorf("%s: %v: %s\n%s\n%s", c.name, cmd.ProcessState, cmd.Stdout, out, verdict)
		}
		if c.name == "changes" {
			s.committed()
		}
	}
}

// committed commits what the first of TestHelperEnds has staged.
func (s *service) committed() {
	s.t.Helper()
	if _, errs, status := s.guard(ann, "commit"); status != 0 {
		s.t.Error(errs)
	}
	const check = "test -e n -a ! -e h -a -e dd/e/g -a ! -e d -a ! -e r/s -a -e r/q -a -L l && grep -q x f"
	if out, err := s.as(ann, "sh", "-c", check).CombinedOutput(); err != nil {
		left, _ := exec.Command("ls", "-lR", s.home).CombinedOutput()
		s.t.Errorf("%v %s\n%s", err, out, left)
	}
}
