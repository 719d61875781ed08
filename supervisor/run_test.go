package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
)

func TestWho(t *testing.T) {
	for _, argv := range [][]string{nil, {}, {""}, {"", "x"}} {
		r := &Run{cfg: Config{Argv: argv}}
		if got := refusal(t, r.who()); got.What != "no command" || got.Remedy == "" {
			t.Errorf("%q: %+v", argv, got)
		}
	}
	testenv.Root(t)
	r := &Run{cfg: Config{Argv: []string{"x"}, Environ: []string{"SUDO_UID=" + itoa(testUID), "SUDO_GID=" + itoa(testGID)}}}
	must(t, r.who())
	if r.caller.UID != testUID || !r.caller.Sudo {
		t.Errorf("%+v", r.caller)
	}
}

// A directory that holds the record is never granted, by whatever name.
func TestStateIsOutOfReach(t *testing.T) {
	base := publicDir(t)
	state := filepath.Join(base, "lib/state")
	must(t, os.MkdirAll(base+"/lib", 0o755), os.MkdirAll(base+"/ws", 0o755))
	s, err := runs.OpenState(state, os.Getuid())
	must(t, err, s.Close())
	for _, granted := range []string{state, base + "/lib", base, filepath.Join(state, "runs")} {
		if _, err := os.Stat(granted); err != nil {
			continue
		}
		r := &Run{host: &Host{}, cfg: Config{StateDir: state, Policy: &policy.Policy{ReadOnly: []policy.Mount{mountAt(granted, 3)}}}, caller: Caller{UID: os.Getuid()}}
		must(t, r.openPaths())
		got := refusal(t, r.openState())
		if !strings.Contains(got.What, granted+" reaches the state directory "+state) || got.Clause != "filesystem.read_only_mounts (p.yaml:3:3)" || got.Remedy == "" {
			t.Errorf("%s: %+v", granted, got)
		}
		must(t, r.Close())
	}
}

// What openPaths opened is closed with the run, after an error too.
func TestOpenPathsReleases(t *testing.T) {
	base := publicDir(t)
	before := testenv.Descriptors()
	for _, second := range []string{base, base + "/nowhere"} {
		r := &Run{cfg: Config{Policy: &policy.Policy{ReadOnly: []policy.Mount{mountAt(base, 1), mountAt(second, 2)}}}, caller: Caller{UID: os.Getuid()}}
		err := r.openPaths()
		if (err != nil) != (second != base) {
			t.Errorf("%s: %v", second, err)
		}
		must(t, r.Close(), r.Close())
		if n := testenv.Since(before); n != 0 {
			t.Errorf("%s: %d descriptors are left", second, n)
		}
	}
}

func TestIdentify(t *testing.T) {
	testenv.Root(t)
	r := &Run{cfg: Config{Policy: &policy.Policy{SeccompAllow: []policy.Text{textOf("mount"), textOf("no_such_call")}}}, caller: Caller{UID: testUID, GID: testGID}, grants: &grants{}}
	got := refusal(t, r.identify())
	if got.Clause != "process.seccomp_allow" || !strings.Contains(got.What, "no_such_call") {
		t.Errorf("%+v", got)
	}
	r.cfg.Policy.SeccompAllow = nil
	must(t, r.identify())
	if r.plan.Identity.UID != testUID || r.uid != nil || len(r.filter) == 0 || len(r.filter)%8 != 0 {
		t.Errorf("%+v, filter of %d bytes", r.plan.Identity, len(r.filter))
	}
}

// prepareAsUser is a child that asks for a run as a user who is not root.
func prepareAsUser() {
	_, err := Prepare(Config{Argv: []string{"true"}, Policy: &policy.Policy{}})
	fmt.Println(StatusOf(err), err)
}

func TestPrepareNeedsRoot(t *testing.T) {
	testenv.Root(t)
	bin := filepath.Join(publicDir(t), "tests") // go test's own directory is closed to others
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err, os.WriteFile(bin, self, 0o755))
	cmd := exec.Command(bin)
	cmd.Env = []string{actVariable + "=prepare"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testGID}}
	out, err := cmd.Output()
	if err != nil || string(out) != "125 this process is neither root's nor in a user namespace of its own (supervisor.Enter); call agentguard itself, which goes there, or run it with sudo\n" {
		t.Errorf("%q, %v", out, err)
	}
}
