package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/testenv"
)

// A throttled run is frozen from time to time, PID 1 with it. When the
// supervisor is killed just then, nobody lets it go on; it must die all the same.
func TestKilledWhileFrozen(t *testing.T) {
	testenv.Root(t)
	before := held()
	state := t.TempDir()
	cmd := exec.Command(agentguard(), "exec", "--state", state, "--on-loss", "throttle", "--",
		"sh", "-c", "sleep 1000 & setsid sleep 1000 & echo ready; while :; do :; done")
	cmd.Dir = "/usr"
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	dirs, err := filepath.Glob(filepath.Join(state, "runs", "*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%q, %v", dirs, err)
	}
	leaf := unifiedLeaf(t, filepath.Base(dirs[0]))
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	waitFor(t, leaf, "frozen 1")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	_ = cmd.Wait()
	t.Logf("dead %v after its supervisor", waitFor(t, leaf, "populated 0").Sub(begun))

	again := exec.Command(agentguard(), "exec", "-q", "--state", state, "--", "true") // sweeps
	again.Dir = "/usr"
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, left := range leftovers(0, before) {
		t.Error("left behind: " + left)
	}
}

// unifiedLeaf is the v2 cgroup of a run.
func unifiedLeaf(t *testing.T, id string) string {
	t.Helper()
	for _, leaf := range leaves() {
		if filepath.Base(leaf) == id+".run" && exists(filepath.Join(leaf, "cgroup.freeze")) {
			return leaf
		}
	}
	t.Fatalf("run %s has no cgroup", id)
	return ""
}

// waitFor waits until cgroup.events has a line, and kills what is there when it never comes.
func waitFor(t *testing.T, leaf, line string) time.Time {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		events, err := os.ReadFile(filepath.Join(leaf, "cgroup.events"))
		if err == nil && strings.Contains(string(events), line+"\n") || !exists(leaf) {
			return time.Now()
		}
	}
	l := cgroup.Leaf{Path: leaf}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t.Fatalf("never %q; killing what is left: %v", line, l.Kill(ctx))
	return time.Time{}
}
