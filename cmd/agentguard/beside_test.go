package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

// What flags do beside the policy has the bound of the clause that does the same.
func TestCeilingBesideThePolicy(t *testing.T) {
	for _, c := range []struct {
		ceiling       string
		cont, collect bool // are refused
		asks          bool
	}{
		{"persistence: ephemeral", true, false, true},
		{"persistence: keep", false, false, true},
		{"commit: never", false, true, false},
		{"commit: ask", false, true, true},
		{"commit: success", false, false, true},
		{"max_files: 9", false, false, true},
	} {
		path := filepath.Join(t.TempDir(), "ceiling.yaml")
		if err := os.WriteFile(path, []byte("ceiling: {filesystem: {"+c.ceiling+"}}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ceiling, err := policy.ReadCeiling(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Merge(policy.Defaults(policy.Context{Cwd: "/"}))
		if err == nil {
			err = p.Bound(ceiling)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := (&execFlags{cont: "last"}).beside(p); (err != nil) != c.cont || err != nil && !strings.HasPrefix(err.Error(), "flag --continue: filesystem.persistence: ") {
			t.Errorf("%s: --continue: %v", c.ceiling, err)
		}
		if err := (&execFlags{collect: []string{"x"}}).beside(p); (err != nil) != c.collect || err != nil && !strings.HasPrefix(err.Error(), "flag --collect: filesystem.commit: ") {
			t.Errorf("%s: --collect: %v", c.ceiling, err)
		}
		if err := (&execFlags{}).beside(p); err != nil || asksByDefault(p) != c.asks {
			t.Errorf("%s: without: %v; asks %v", c.ceiling, err, asksByDefault(p))
		}
	}
}

// An empty path is a script's variable that has no value, and not the current directory.
func TestEmptyPaths(t *testing.T) {
	if err := (&execFlags{collect: []string{"out", ""}}).beside(&policy.Policy{}); err == nil || !strings.Contains(err.Error(), "a path is empty") {
		t.Errorf("--collect: %v", err)
	}
	if _, _, _, err := stagedArgs(t.TempDir(), []string{"none", ""}); err == nil || !strings.Contains(err.Error(), "a path is empty") {
		t.Errorf("commit: %v", err)
	}
	c := newExec()
	c.SetArgs([]string{"--continue=", "--", "true"})
	c.SilenceUsage, c.SilenceErrors = true, true
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "--continue names no run") {
		t.Errorf("--continue: %v", err)
	}
	if p, err := absolute("."); err != nil || !filepath.IsAbs(p) {
		t.Errorf("%q, %v", p, err)
	}
}
