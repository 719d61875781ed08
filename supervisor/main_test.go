package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
)

// A child of the tests is this binary again, with the name of an act in this variable.
const actVariable = "AGENTGUARD_SUPERVISOR_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		acts[act]()
		os.Exit(0)
	}
	os.Exit(testenv.Main(m))
}

// acts are what a child of the tests does in place of testing.
var acts = map[string]func(){"hold-uid": holdUID, "hold-lock": holdLock, "prepare": prepareAsUser, "open-storm": openStorm, "refused-storm": refusedStorm, "process-storm": processStorm}

// ids that no host gives to anybody.
const (
	testUID   = 723401
	testGID   = 723402
	testGroup = 723403
)

// publicDir makes a directory that everybody may enter; root owns it.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentguard-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// must ends the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// mkfile makes a file with its parents, and gives it to an owner.
func mkfile(t testing.TB, name, content string, mode os.FileMode, uid, gid int) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600),
		os.Chown(name, uid, gid), os.Chmod(name, mode))
	return name
}

// mkdirOwned makes a directory with an owner and a mode.
func mkdirOwned(t testing.TB, name string, mode os.FileMode, uid, gid int) string {
	t.Helper()
	must(t, os.MkdirAll(name, 0o755), os.Chown(name, uid, gid), os.Chmod(name, mode))
	return name
}

// mustOpen opens a path as the caller of a grant would.
func mustOpen(t testing.TB, name string) *Opened {
	t.Helper()
	o, err := openPath(name)
	must(t, err)
	t.Cleanup(func() { o.File.Close() })
	return &o
}

// lineOf is the source of a clause in a file that no test reads.
func lineOf(n int) policy.Source { return policy.Source{File: "p.yaml", Line: n, Col: 3} }

func textOf(s string) policy.Text { return policy.Text{Value: s, Source: lineOf(1)} }

func itoa(n int) string { return strconv.Itoa(n) }

// refusal returns err's Refusal or ends the test.
func refusal(t testing.TB, err error) *Refusal {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) {
		t.Fatalf("no refusal: %v", err)
	}
	return r
}
