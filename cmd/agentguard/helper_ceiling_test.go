package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/policy"
)

// etc puts files into an /etc/agentguard that is there for this test only: a copy of /etc
// lies over it, in the mount namespace of the tests.
func etc(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("cp", "-a", "/etc/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, text := range files {
		path := filepath.Join(dir, "agentguard", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(dir, "/etc", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// What the administrator's files say is believed only where nobody else can write them.
func TestAdministratorsFiles(t *testing.T) {
	etc(t, map[string]string{"policy.yaml": "sandbox:\n  process: {max_open_files: 300}\n", "ceiling.yaml": hostCeiling, "ceiling.d/user-1.yaml": "ceiling: {}\n"})
	s := serveUsers(t)
	for _, c := range []struct {
		name string
		mode os.FileMode
		uid  int
		said string
	}{
		{"policy.yaml", 0o666, 0, "must be a file of root's"},
		{"policy.yaml", 0o644, 1, "must be a file of root's"},
		{"policy.yaml", 0o644, 0, ""},
		{"ceiling.yaml", 0o620, 0, "must be a file of root's"},
		{"ceiling.yaml", 0o644, 0, ""},
		{".", 0o777, 0, "must be a directory of root's"}, // a ceiling that is taken away bounds nobody
		{".", 0o755, 1, "must be a directory of root's"},
		{".", 0o755, 0, ""},
		{"ceiling.d", 0o775, 0, "must be a directory of root's"},
		{"ceiling.d", 0o755, 0, ""},
	} {
		path := filepath.Clean("/etc/agentguard/" + c.name)
		if err := errors.Join(os.Chmod(path, c.mode), os.Chown(path, c.uid, 0)); err != nil {
			t.Fatal(err)
		}
		_, errs, status := s.guard(ann, "exec", "-q", "--mode", "ro", "--", "true")
		if refused := status == 125 && strings.Contains(errs, path+" "+c.said); refused != (c.said != "") || !refused && status != 0 {
			t.Errorf("%s, mode %o of %d: %d %q", c.name, c.mode, c.uid, status, errs)
		}
	}
}

const hostCeiling = `ceiling:
  filesystem:
    workspace: {mode: cow}
    read_only_mounts: [/usr, /tmp]
    writable_mounts: []
    max_output_bytes: 10M
    persistence: ephemeral
    commit: never
  network: {egress: deny, allow_private: [], unix: [], publish: []}
  process: {max_cpu_seconds: 60, max_memory_mb: 512, max_wall_seconds: 120, max_subprocesses: 64, max_open_files: 512, seccomp_allow: []}
  output: {max_stdout_bytes: 1M, terminal: sanitize}
  trace: {files: all, syscalls: true, max_bytes: 100M}
  allow_gaps: []
  unsafe: []
`

// Whatever a user asks for, by flags, by a policy, or past the client: the host's ceiling
// holds, the user's own as well, and so do those of its groups.
func TestHelperCeiling(t *testing.T) {
	etc(t, map[string]string{
		"ceiling.yaml": hostCeiling,
		fmt.Sprintf("ceiling.d/user-%d.yaml", ann):     "ceiling:\n  process: {max_memory_mb: 128}\n",
		fmt.Sprintf("ceiling.d/group-%d.yaml", ann):    "ceiling:\n  process: {max_wall_seconds: 30}\n",
		fmt.Sprintf("ceiling.d/user-%d.yaml", bob):     "ceiling:\n  process: {max_memory_mb: 1}\n",
		fmt.Sprintf("ceiling.d/group-%d.yaml", bob+10): "ceiling:\n  process: {max_wall_seconds: 1}\n",
	})
	s := serveUsers(t)
	for _, flags := range []string{
		"--rw .", "--mode rw", "--ro /var", "--cow /var", "--output 1G", "--output none", "--allow 192.0.2.1:443", "--unix /run/x", "--publish 8080",
		"--cpu 1h", "--cpu none", "--memory 200M", "--memory none", "--wall 31s", "--wall none", "--pids 65", "--pids none", "--stdout 2M",
		"--allow-gap record", "--trace changes", "--memory 100M --memory 129M", "--wall 10s --wall none", "--commit success",
	} {
		args := append(append([]string{"exec", "-q"}, strings.Fields(flags)...), "--", "echo", "gained")
		out, errs, status := s.guard(ann, args...)
		if out != "" || status == 0 {
			t.Errorf("%s: %d %q", flags, status, errs)
		}
	}
	out, errs, status := s.guard(ann, "exec", "-q", "--", "sh", "-c", "ulimit -n; echo served")
	if status != 0 || out != "512\nserved\n" {
		t.Errorf("what is below the ceiling: %d %q %q", status, out, errs)
	}
	s.pastTheClient()
}

// pastTheClient sends what the client would have refused.
func (s *service) pastTheClient() {
	s.t.Helper()
	texts := map[string]string{
		"filesystem.writable_mounts": s.home, "filesystem.workspace.mode": "rw", "filesystem.read_only_mounts": "/var", "filesystem.cow_mounts": "/var",
		"filesystem.max_output_bytes": "none", "network.allowlist": "192.0.2.1:443", "network.egress": "allowlist", "network.unix": "/run/x",
		"process.max_cpu_seconds": "none", "process.max_memory_mb": "129", "process.max_wall_seconds": "31", "process.max_subprocesses": "none",
		"process.max_open_files": "1024", "process.seccomp_allow": "bpf", "process.user": "0", "output.terminal": "raw", "trace.files": "changes",
		"trace.syscalls": "false", "trace.max_bytes": "none", "allow_gaps": "record", "unsafe": "credential-env", "filesystem.persistence": "keep", "filesystem.commit": "success",
	}
	sources := map[string]policy.Source{
		"a flag": {Flag: "--x"}, "the ceiling": {File: policy.CeilingFile, Line: 1},
	}
	dir, wish := s.t.TempDir(), map[string]string{}
	for key, text := range texts {
		for from, src := range sources {
			q := request("true")
			q.json = true
			q.asked = append(q.asked, policy.Statements{Name: policy.HostFile, List: []policy.Statement{{Key: key, Text: text, Source: src}}})
			name := strconv.Itoa(len(wish))
			wish[name] = key + ": " + text + ", said by " + from
			if err := os.WriteFile(filepath.Join(dir, name), bytesOf(helper.DryRun, q.lists()), 0o644); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	q := request("true")
	q.json = true
	q.asked = append(q.asked, policy.Statements{List: []policy.Statement{{Key: "process.max_memory_mb", Text: "100", Source: policy.Source{Flag: "--x"}}}})
	if err := os.WriteFile(filepath.Join(dir, "below"), bytesOf(helper.DryRun, q.lists()), 0o644); err != nil {
		s.t.Fatal(err)
	}
	for d := dir; d != "/tmp"; d = filepath.Dir(d) { // ann reads them
		if err := os.Chmod(d, 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	below := false
	for line := range strings.Lines(s.attack("plans", "REQUESTS="+dir)) {
		var a planAnswer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		if a.Kind == helper.Failed {
			continue
		}
		below = below || a.Name == "below"
		if over := beyond(a.Text); over != "" {
			s.t.Errorf("%s: %s", wish[a.Name], over)
		}
		if strings.HasSuffix(wish[a.Name], "said by the ceiling") {
			s.t.Errorf("%s: nobody speaks for a ceiling", wish[a.Name])
		}
	}
	if !below {
		s.t.Error("what is below the ceiling was refused")
	}
}

type planAnswer struct {
	Name, Text string
	Kind       helper.Kind
}

// attackPlans asks for a plan by each request of a directory.
func attackPlans() error {
	dir := os.Getenv("REQUESTS")
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		f, err := sendRaw(b)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(planAnswer{e.Name(), f.Lists[0][0], f.Kind}); err != nil {
			return err
		}
	}
	return nil
}

// beyond says what of a plan is above the ceiling of ann.
func beyond(plan string) string {
	var p struct {
		Argv   []string
		View   []struct{ From, Access string }
		Limits struct {
			Memory int64 `json:"memory_bytes"`
			Tasks  int64 `json:"tasks"`
			CPU    int64 `json:"cpu_ns"`
			Wall   int64 `json:"wall_ns"`
			Output int64 `json:"output_bytes"`
			Trace  int64 `json:"trace_bytes"`
			Clean  bool  `json:"stdout_sanitized"`
		}
		Syscalls bool
		Egress   any
		Extra    []string `json:"seccomp_allow"`
		Gaps     []any    `json:"gaps_accepted"`
		Identity struct{ UID int }
	}
	if err := json.Unmarshal([]byte(plan), &p); err != nil || len(p.Argv) == 0 {
		return fmt.Sprintf("no plan: %v %.200q", err, plan)
	}
	over := func(n, most int64) bool { return n < 0 || n > most }
	l := p.Limits
	for what, bad := range map[string]bool{
		"memory": over(l.Memory, 128<<20), "tasks": over(l.Tasks, 64), "cpu": over(l.CPU, 60e9), "wall": over(l.Wall, 30e9), "output": over(l.Output, 10<<20),
		"trace": over(l.Trace, 100<<20), "terminal": !l.Clean, "syscalls": !p.Syscalls, "egress": p.Egress != nil, "seccomp": len(p.Extra) > 0, "gaps": len(p.Gaps) > 0, "user": p.Identity.UID != ann,
	} {
		if bad {
			return what
		}
	}
	for _, e := range p.View {
		if e.Access == "rw" && strings.HasPrefix(e.From, "/tmp/") || strings.HasPrefix(e.From, "/var") && e.Access != "" && e.From != "/var/tmp" {
			return "view: " + e.From + " " + e.Access
		}
	}
	return ""
}
