package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentguard/agentguard/internal/testenv"
)

// TestScript runs testdata/script/*.txt, the specification of the command line
// by example. Besides the commands of testscript they know:
//
//	agentguard ARGS...   runs the program; with "!" before it, it must fail
//	status N             the exit status of the last agentguard
//	count N PATTERN FILE the regular expression matches N times (stdout, stderr or a file)
//
// Each script begins in its own empty directory with no record in
// /var/lib/agentguard. After it nothing may be left: no cgroup, mount or
// process of a run, no run without a result (unless the script says
// `unsealed N`).
func TestScript(t *testing.T) {
	testenv.Root(t)
	root, err := os.MkdirTemp("", "agentguard-script-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil { // other users run in it
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("../../testdata/script/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		testscript.RunT(serial{t}, testscript.Params{
			Files: []string{script}, WorkdirRoot: root, RequireUniqueNames: true,
			Deadline: time.Now().Add(scriptLimit), Setup: setup,
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"agentguard": cmdAgentguard, "status": cmdStatus, "count": cmdCount, "unsealed": cmdUnsealed,
			},
		})
	}
}

// scriptLimit ends a script that hangs; most take less than a second.
const scriptLimit = 2 * time.Minute

// serial runs one script at a time: each looks for what it left on the machine.
type serial struct{ *testing.T }

func (s serial) Parallel() {}
func (s serial) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serial{t}) })
}
func (s serial) Verbose() bool { return testing.Verbose() }

// state is what a script's commands remember.
type state struct {
	status   int // of the last agentguard
	unsealed int // runs that may lack a result
}

type stateKey struct{}

func setup(env *testscript.Env) error {
	if err := emptyDir(stateDir); err != nil {
		return err
	}
	st := &state{status: -1}
	env.Values[stateKey{}] = st
	env.Setenv("PATH", programs()+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	env.Setenv("STATE", stateDir)
	examples, err := filepath.Abs("../../docs/examples")
	if err != nil {
		return err
	}
	env.Setenv("EXAMPLES", examples)
	env.Setenv("PROBE", filepath.Join(programs(), "probe"))
	before := held()
	env.Defer(func() {
		for _, left := range leftovers(st.unsealed, before) {
			env.T().Log("left behind: " + left)
			env.T().FailNow()
		}
	})
	return nil
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

func remembered(ts *testscript.TestScript) *state { return ts.Value(stateKey{}).(*state) }

func cmdAgentguard(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("agentguard", args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		remembered(ts).status = 0
	case errors.As(err, &exit):
		remembered(ts).status = exit.ExitCode()
	default:
		ts.Fatalf("agentguard: %v", err)
	}
	if st := remembered(ts).status; (st != 0) != neg {
		ts.Fatalf("agentguard ended with status %d", st)
	}
}

func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg {
		ts.Fatalf("usage: status N")
	}
	if got := strconv.Itoa(remembered(ts).status); got != args[0] {
		ts.Fatalf("exit status %s, want %s", got, args[0])
	}
}

func cmdUnsealed(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(strings.Join(args, ""))
	if err != nil || neg {
		ts.Fatalf("usage: unsealed N")
	}
	remembered(ts).unsealed = n
}

func cmdCount(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 || neg {
		ts.Fatalf("usage: count N TEXT FILE")
	}
	if got := strconv.Itoa(strings.Count(ts.ReadFile(args[2]), args[1])); got != args[0] {
		ts.Fatalf("%q is there %s times, want %s, in:\n%s", args[1], got, args[0], ts.ReadFile(args[2]))
	}
}
