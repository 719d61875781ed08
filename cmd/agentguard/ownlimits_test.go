package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// Small limits of the caller's own process: what works works, and what cannot says which limit it is.
var ownLimits = []struct {
	limit string // of prlimit(1)
	says  string // "": the command runs
}{
	{"--nofile=64:64", "RLIMIT_NOFILE"},
	{"--nofile=100:100", "RLIMIT_NOFILE"},
	{"--nofile=512:512", ""},
	{"--fsize=1000:1000", "RLIMIT_FSIZE"},
	{"--core=0:0", ""},
	{"--stack=65536:65536", ""},
	{"--memlock=0:0", ""},
	{"--sigpending=0:0", ""},
	{"--msgqueue=0:0", ""},
	{"--rtprio=0:0", ""},
	{"--cpu=60:60", ""},
	{"--locks=0:0", ""},
}

// prlimit is prlimit(1), by its path.
func prlimit(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("prlimit")
	if err != nil {
		testenv.Missing(t, "prlimit", err.Error())
	}
	return path
}

func wantLimits(t *testing.T, guard func(argv ...string) (out, errs string, status int), args ...string) {
	t.Helper()
	for _, tt := range ownLimits {
		argv := append([]string{prlimit(t), tt.limit, agentguard(), "exec", "-q", "--mode", "ro"}, args...)
		out, errs, status := guard(append(argv, "--", "echo", "done")...)
		switch {
		case tt.says == "" && (out != "done\n" || status != 0):
			t.Errorf("%s: %d %q %q", tt.limit, status, out, errs)
		case tt.says != "" && (status != 125 || !strings.Contains(errs, "("+tt.says+")") || !strings.Contains(errs, "ulimit -") || out != ""):
			t.Errorf("%s: %d %q %q", tt.limit, status, out, errs)
		}
	}
}

func TestUserNSOwnLimits(t *testing.T) {
	l := alone(t)
	wantLimits(t, func(argv ...string) (string, string, int) { return l.finish(l.as(argv...)) })
}

func TestLandlockOwnLimits(t *testing.T) {
	c := corner(t, "filter")
	wantLimits(t, func(argv ...string) (string, string, int) { return c.finish(c.as(argv...)) }, "--allow-gap", "landlock")
}

func TestRootOwnLimits(t *testing.T) {
	testenv.Root(t)
	l := newLoner(t) // its directories
	wantLimits(t, func(argv ...string) (string, string, int) {
		cmd := l.native(argv...)
		cmd.SysProcAttr.Credential = nil
		return l.finish(cmd)
	}, "--state", filepath.Join(t.TempDir(), "state"))
}

// fewFiles runs a command that may have fewer descriptors than those that put it into its envelope.
func fewFiles(t *testing.T, l *loner, guard func(args ...string) (out, errs string, status int), args ...string) {
	t.Helper()
	policy := filepath.Join(l.work, "few.yaml")
	if err := os.WriteFile(policy, []byte("sandbox:\n  process: {max_open_files: 6}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"exec", "-q", "-w", ".", "--mode", "ro", "--policy", policy}, args...)
	if out, errs, status := guard(append(args, "--", "sh", "-c", "ulimit -n")...); out != "6\n" || status != 0 {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

func TestUserNSFewFiles(t *testing.T) {
	l := alone(t)
	fewFiles(t, l, l.guard)
}

func TestLandlockFewFiles(t *testing.T) {
	c := corner(t, "filter")
	fewFiles(t, c.loner, c.guard, "--allow-gap", "landlock")
}

// A record that the caller's RLIMIT_FSIZE bounds is ended like one that has met its own limit: it has a summary, and says what it lacks.
func TestUserNSRecordCut(t *testing.T) {
	l := alone(t)
	const many = `i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done`
	out, errs, status := l.finish(l.as(prlimit(t), "--fsize=30000:30000", agentguard(), "exec", "--mode", "ro", "--", "sh", "-c", many))
	if status != 0 || !strings.Contains(errs, "the record is incomplete") || strings.Contains(errs, "throttle") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if _, errs, status := l.finish(l.as(prlimit(t), "--fsize=30000:30000", agentguard(), "exec", "-q", "--on-loss", "kill", "--mode", "ro", "--", "sh", "-c", many)); status != 137 {
		t.Errorf("%d %q", status, errs)
	}
	if out, errs, _ := l.guard("exec", "--dry-run", "--mode", "ro", "--", "true"); strings.Contains(out, "RLIMIT_FSIZE") {
		t.Errorf("%q %q", out, errs)
	}
	if out, errs, _ := l.finish(l.as(prlimit(t), "--fsize=100000:100000", agentguard(), "exec", "--dry-run", "--mode", "ro", "--", "true")); !strings.Contains(out, "the record: 100000 bytes, by the RLIMIT_FSIZE") {
		t.Errorf("%q %q", out, errs)
	}
}
