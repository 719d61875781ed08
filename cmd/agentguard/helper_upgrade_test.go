package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/testenv"
)

// otherBuild is agentguard with other programs for the kernel, as the next release may have:
// what tells builds apart is changed, and nothing else.
func otherBuild(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		testenv.Missing(t, "go", err.Error())
	}
	set, err := filepath.Abs("../../bpf/set.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(set)
	if err != nil {
		t.Fatal(err)
	}
	const was = "\nconst layout = "
	if strings.Count(string(text), was) != 1 {
		t.Fatal("bpf/set.go has no layout")
	}
	dir := t.TempDir()
	changed, overlay, bin := filepath.Join(dir, "set.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "agentguard")
	b, err := json.Marshal(map[string]map[string]string{"Replace": {set: changed}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, changed, strings.Replace(string(text), was, was+"100 + ", 1))
	write(t, overlay, string(b))
	cmd := exec.Command("go", "build", "-overlay", overlay, "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// parentsOf are the parent cgroups of a build's runs.
func parentsOf(t *testing.T, bin string) (out []string) {
	t.Helper()
	b, err := exec.Command(bin, "version", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		BPF string `json:"bpf"`
	}
	if err := json.Unmarshal(b, &v); err != nil || v.BPF == "" {
		t.Fatalf("%v: %s", err, b)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/agentguard-", "/sys/fs/cgroup/*/agentguard-"} {
		dirs, _ := filepath.Glob(pattern + v.BPF + "*")
		out = append(out, dirs...)
	}
	return out
}

// pinnedSets are the sets of programs that are pinned on this host.
func pinnedSets() []string {
	sets, _ := filepath.Glob("/run/agentguard/bpf/set_*")
	return sets
}

// While a run of one build lives, another build takes over the socket and starts runs. The
// old run is bounded and recorded as before; what the dead build kept goes later.
func TestHelperUpgrade(t *testing.T) {
	s := serveUsers(t)
	bin, before := otherBuild(t), pinnedSets()
	const script = `read x; bash -c "exec 3<>/dev/udp/192.0.2.1/9" 2>/dev/null && echo connected; touch /etc/x 2>/dev/null && echo written; /bin/echo after; exit 5`
	old, goOn := s.begin("--pids", "50", "--", "bash", "-c", script)

	var sets []string
	t.Run("the next build", func(t *testing.T) { // its helper has ended when this has: what it held in reserve is gone
		next := serveBy(t, bin)
		if out, errs, status := next.guard(ann, "exec", "-q", "--mode", "ro", "--", "echo", "new"); out != "new\n" || status != 0 {
			t.Errorf("the new build: %d %q %q", status, out, errs)
		}
		if out, _, status := next.guard(ann, "trace", "verify", "last"); status != 0 {
			t.Errorf("its record: %q", out)
		}
		sets = slices.DeleteFunc(pinnedSets(), func(set string) bool { return slices.Contains(before, set) })
		if len(parentsOf(t, bin)) == 0 || len(parentsOf(t, agentguard())) == 0 || len(sets) == 0 {
			t.Errorf("parents %v and %v, new sets %v", parentsOf(t, bin), parentsOf(t, agentguard()), sets)
		}

		_ = goOn.Close()
		_ = old.Wait()
		if text := old.Stdout.(interface{ String() string }).String(); text != "after\n" || old.ProcessState.ExitCode() != 5 {
			t.Errorf("the old run: %v %q", old.ProcessState, text)
		}
		list, _, _ := next.guard(ann, "runs", "ls")
		var id string
		for line := range strings.Lines(list) { // newest first, and the new one is echo
			if id == "" && strings.Contains(line, "/dev/udp") {
				id = strings.Fields(line)[0]
			}
		}
		out, _, _ := next.guard(ann, "trace", "show", id)
		verdict, _, status := next.guard(ann, "trace", "verify", id)
		if !strings.Contains(out, "192.0.2.1:9") || !strings.Contains(out, "/bin/echo") || status != 0 || !strings.Contains(verdict, "complete") {
			t.Errorf("the old run's record: %s\n%s", out, verdict)
		}
	})

	long := time.Now().Add(-2 * time.Hour)
	for _, dir := range append(parentsOf(t, bin), "/run/agentguard/live.swept") {
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Error(err)
		}
	}
	if out, err := exec.Command(agentguard(), "exec", "-q", "-w", "/usr", "--mode", "ro", "--state", t.TempDir(), "--", "true").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if left := parentsOf(t, bin); len(left) != 0 {
		t.Errorf("the dead build's cgroups are still there: %v", left)
	}
	for _, set := range sets {
		if exists(set) {
			t.Errorf("the dead build's programs are still pinned: %s", set)
		}
	}
}
