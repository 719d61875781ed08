package supervisor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

func gapNames(list []Gap) (names []string) {
	for _, g := range list {
		name := g.Clause
		if g.byDefault {
			name += " (default)"
		}
		names = append(names, name)
	}
	return names
}

// What takes a mount is lost, each time with its clause, and nothing is wider for it.
func TestUnstaged(t *testing.T) {
	asked := policy.Source{Flag: "--x"}
	p := &policy.Policy{
		Workspace: policy.Workspace{Path: "/w", Mode: "cow"},
		ReadOnly:  []policy.Mount{{Path: "/a"}, {Path: "/b", At: "/c", Source: asked}, {Path: "/d", At: "/d/", Source: asked}},
		Writable:  []policy.Mount{{Path: "/e", At: "/f", Source: asked}},
		Cow:       []policy.Mount{{Path: "/g", Source: asked}},
		Caches:    []policy.Text{{Value: "npm", Source: asked}},
		Upper:     policy.Text{Value: upperRAM, Source: asked}, Commit: policy.Text{Value: "success", Source: asked}, Persistence: policy.Text{Value: "keep", Source: asked},
	}
	out, lost := unstaged(p)
	want := []string{
		"filesystem.workspace.mode (default)", clauseCow, clauseCaches, clauseUpper, "filesystem.persistence", "filesystem.commit", clauseReadOnly, clauseWritable,
	}
	if got := gapNames(lost); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if out.Workspace.Mode != "ro" || len(out.Cow) != 0 || len(out.Caches) != 0 || len(out.ReadOnly) != 4 || out.ReadOnly[1].At != "" || out.Writable[0].At != "" {
		t.Errorf("%+v", out)
	}
	if p.Workspace.Mode != "cow" || p.ReadOnly[1].At != "/c" || p.Writable[0].At != "/f" {
		t.Error("the caller's policy was changed")
	}
	for _, mode := range []string{"ro", "rw"} {
		if out, lost := unstaged(&policy.Policy{Workspace: policy.Workspace{Path: "/w", Mode: mode, ModeSource: asked}}); out.Workspace.Mode != mode || len(lost) > 0 {
			t.Errorf("%s became %s, %v", mode, out.Workspace.Mode, lost)
		}
	}
}

// The word accepts what comes from nobody's clause, and each name itself; the refusal of the
// rest names all of it, what forbids more, and the word.
func TestLandlockGaps(t *testing.T) {
	h := &Host{Info: HostInfo{Mode: ModeLandlock, Landlock: 7, MissingControllers: []string{"memory", "pids"}}}
	h.userns = UserNS{Reason: "unshare: ENOSPC", Setting: "user.max_user_namespaces=0", Remedy: "its administrator sets it"}
	p := &policy.Policy{MaxMemory: policy.Limit{N: 1 << 30}, MaxOutputBytes: policy.Limit{N: 1 << 30}}
	in := planInput{policy: p, host: h, grants: &grants{}}
	_, _, err := gaps(in)
	if err == nil {
		t.Fatal("accepted by nobody")
	}
	for _, want := range []string{"filesystem.view", "process.namespaces", "network.namespace", clauseMemory, "user.max_user_namespaces=0", "its administrator sets it", "--allow-gap landlock"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	p.AllowGaps = []policy.Text{{Value: gapLandlock}}
	accepted, degraded, err := gaps(in)
	if err != nil || len(accepted) != len(degraded) || len(accepted) < 8 || slices.ContainsFunc(accepted, func(g Gap) bool { return g.Clause == gapLandlock }) {
		t.Errorf("%v: %q, %d degraded", err, gapNames(accepted), len(degraded))
	}
	p.MaxMemory.Source = policy.Source{Flag: "--memory"}
	if _, _, err := gaps(in); err == nil || !strings.Contains(err.Error(), clauseMemory) {
		t.Errorf("a limit that somebody has asked for: %v", err)
	}
	p.AllowGaps = append(p.AllowGaps, policy.Text{Value: clauseMemory}, policy.Text{Value: gapMetadata})
	if accepted, _, err := gaps(in); err != nil || !slices.Contains(gapNames(accepted), gapMetadata) || !sharing(p, h).Metadata {
		t.Errorf("%v: %q", err, gapNames(accepted))
	}
}

// The word does not stand for what somebody has written: paths to be protected in a directory that
// is written in place, calls that are refused all the same, and a toolchain with credentials.
func TestLandlockWritten(t *testing.T) {
	h := &Host{Info: HostInfo{Mode: ModeLandlock, Landlock: 7}}
	asked := policy.Source{File: "p.yaml", Line: 3, Col: 5}
	dir := t.TempDir()
	held, err := openPath(dir)
	must(t, err)
	defer held.File.Close()
	g := &grants{entries: []Entry{{Op: "bind", At: dir, From: dir, Access: "rw", Dev: 1, Ino: 2, Source: asked, open: &held}}}
	secret := &grants{entries: []Entry{{Op: "bind", At: dir, From: dir, Access: "ro", Dev: 1, Ino: 2, Source: asked, open: &held}}, secrets: []hostSocket{{in: devIno{1, 2}}}}
	protect := policy.Policy{Protect: []policy.Text{{Value: "kept", Source: asked}}}
	for _, c := range []struct {
		p      policy.Policy
		g      *grants
		clause string // "": nothing is refused
	}{
		{protect, g, clauseProtect},
		{protect, &grants{}, ""}, // nothing is written in place
		{policy.Policy{SeccompAllow: []policy.Text{{Value: "shmget", Source: asked}}}, g, clauseSeccomp},
		{policy.Policy{SeccompAllow: []policy.Text{{Value: "ptrace", Source: asked}}}, g, ""},
		{policy.Policy{}, secret, clauseToolchains},
	} {
		c.p.AllowGaps = []policy.Text{{Value: gapLandlock}}
		_, _, err := gaps(planInput{policy: &c.p, host: h, grants: c.g})
		if c.clause == "" && err != nil || c.clause != "" && (err == nil || !strings.Contains(err.Error(), c.clause+" (p.yaml:3:5)")) {
			t.Errorf("%s: %v", c.clause, err)
		}
		c.p.AllowGaps = append(c.p.AllowGaps, policy.Text{Value: c.clause})
		if _, _, err := gaps(planInput{policy: &c.p, host: h, grants: c.g}); err != nil {
			t.Errorf("%s by its name: %v", c.clause, err)
		}
	}
}

// A rule cannot take away what another gives.
func TestOverlaidGrants(t *testing.T) {
	g := &grants{entries: grantsOf("/w rw", "/w/inner ro", "/other ro")}
	if list := overlaid(g); len(list) != 1 || !strings.Contains(list[0].Missing, "/w/inner") || list[0].byDefault {
		t.Errorf("%+v", list)
	}
}

func TestTaskCount(t *testing.T) {
	if n := taskCount(os.Getuid()); n < 2 { // this process has threads
		t.Errorf("%d", n)
	}
	if n := taskCount(1_999_999_999); n != 0 {
		t.Errorf("%d of nobody's", n)
	}
}

// The guardian's domain, which its last kill finds full of others, logs as little as the command's.
func TestKeeperLogs(t *testing.T) {
	for _, abi := range []int{6, 7} {
		if have, err := landlock.ABI(); err != nil || have < 6 {
			testenv.Beyond(t, "landlock", fmt.Sprintf("ABI %d, %v: no scope for signals", have, err))
		}
		_, p, scope, err := keeper(abi)
		must(t, err)
		must(t, scope.Close())
		i := slices.IndexFunc(p.Steps, func(s *initproc.Step) bool { return s.Label == restrictLabel })
		if nr, args := numbers(p.Steps[i]); nr != landlock.SysRestrictSelf || args[1] != uint64(landlock.RestrictFlags(abi)) {
			t.Errorf("ABI %d: %d%v", abi, nr, args)
		}
	}
}
