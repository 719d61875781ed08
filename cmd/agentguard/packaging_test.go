//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentguard/agentguard/internal/anchor"
	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
)

// TestInstalledExamples reads what make install puts into /etc/agentguard as it
// is read there.
func TestInstalledExamples(t *testing.T) {
	testenv.Root(t) // the files must be root's
	dir := t.TempDir()
	place := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../../packaging/etc", name+".example"))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return to
	}
	f, err := policy.ReadFile(place("policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: 16 << 30, Cwd: "/home/dev/src"}), f)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.ReadCeiling(place("ceiling.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Bound(c); err != nil { // the examples go together
		t.Error(err)
	}
	if _, err := anchor.Read(place("seal.yaml")); err != nil {
		t.Error(err)
	}
	if c, err := helper.ReadConfig(place("helper.yaml")); err != nil || c.AuditGroup == "" {
		t.Error(err)
	}
}
