package supervisor

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"

	"github.com/agentguard/agentguard/internal/terminal"
)

// When the caller reads no more, the command gets EPIPE, as without a relay:
// `exec -- yes | head -1` ends.
func TestReaderGoneGivesEPIPE(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	must(t, s.out.Close())
	s.start(nil, s.limits, terminal.Colours, s.record)
	done := make(chan error, 1)
	w := s.childOut
	go func() {
		var err error
		for i := 0; i < 1000 && err == nil; i++ {
			_, err = w.Write(make([]byte, 64<<10))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EPIPE) {
			t.Errorf("the command's write: %v, want EPIPE", err)
		}
	case <-time.After(time.Minute):
		t.Error("the command hangs in write though nobody reads")
		s.outs[0].from.Close()
		<-done
	}
	must(t, s.closeChild())
	s.finish(nil)
}

// A caller that does not read does not keep the supervisor once the run is dead.
func TestFinishIsBoundedWithAStalledReader(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	s.start(nil, s.limits, terminal.Colours, s.record)
	_ = s.childOut.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = s.childOut.Write(make([]byte, 1<<20)) // more than both pipes hold
	must(t, s.closeChild())
	done := make(chan []Stream, 1)
	giveUp := make(chan struct{})
	go func() { done <- s.finish(giveUp) }()
	close(giveUp) // a signal, or a limit that ended the run a while ago
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("finish waits for a reader that never reads")
		s.out.Close()
		<-done
	}
}

// A gap that allow_gaps cannot accept is refused though it is listed there.
func TestFinalGapIsNotAccepted(t *testing.T) {
	p := policyOf(t)
	p.Unsafe = append(p.Unsafe, textOf("host-network"))
	p.AllowGaps = append(p.AllowGaps, textOf("unsafe.host-network"))
	if _, err := newPlan(fakeInput(p)); err == nil {
		t.Error("a final gap was accepted by allow_gaps")
	}
}

// A group id that the kernel does not take would leave the thread with group 0.
func TestGroupThatDoesNotTake(t *testing.T) {
	for _, gid := range []int{1<<32 - 1, 1 << 32} {
		c := Caller{UID: testUID, GID: gid, Sudo: true}
		err := c.As(func() error {
			ids, _ := threadIDs(unix.Gettid())
			t.Errorf("gid %d: ran with %q", gid, ids)
			return nil
		})
		if err == nil {
			t.Errorf("gid %d was accepted", gid)
		}
	}
}

// The text of a link is another user's: no control character of it reaches an error.
func TestLinkTargetIsQuoted(t *testing.T) {
	base := publicDir(t)
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	must(t, os.Symlink("/tmp/\x1b[2Jx\nagentguard: fake", base+"/user/link"), os.Symlink("/tmp/\x1b[2Jx\nagentguard: fake", base+"/link"))
	for _, p := range []string{base + "/user/link", base + "/link"} {
		_, err := openGrants(&policy.Policy{ReadOnly: []policy.Mount{mountAt(p, 1)}}, Caller{UID: os.Getuid()}, nil)
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%q", err)
		}
	}
}

// Magic links are not followed, not by their text either.
func TestMagicLinks(t *testing.T) {
	for _, p := range []string{"/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/exe"} {
		if o, err := openPath(p); err == nil {
			t.Errorf("%s was opened (%d)", p, o.Stat.Ino)
			o.File.Close()
		}
	}
}

// A grant below a symbolic link of the base has no place of its own, and says so.
func TestGrantBelowALinkOfTheBase(t *testing.T) {
	_, err := mergeView(smallBase, grantsOf("/bin/bash ro"))
	var r *Refusal
	if !errors.As(err, &r) || r.Clause == "" {
		t.Errorf("%v", err)
	}
}

// No grant lies where the run keeps its own things.
func TestOwnPlaces(t *testing.T) {
	for _, at := range []string{"/" + scratchAt, "/.agentguard", "/agentguard-canary"} {
		if _, err := mergeView(smallBase, grantsOf("/srv:"+at+" rw")); err == nil {
			t.Errorf("%s is granted", at)
		}
	}
}

// The canary does not take a grant of /etc for a layer that does not bite.
func TestCanaryUnderAGrantOfEtc(t *testing.T) {
	in := fakeInput(policyOf(t))
	etc := grant("/etc ro")
	etc.open = &Opened{Stat: unix.Stat_t{Mode: unix.S_IFDIR}}
	in.grants.entries = append(in.grants.entries, etc)
	p, err := newPlan(in)
	if err != nil {
		return // refused with a sentence
	}
	prog := commandProgram(p, fakeMaterials(t, p))
	if i := index(prog, "open of /etc/shadow"); i >= 0 && prog.Steps[i].Want == int(syscall.ENOENT) && prog.Steps[i].Want2 == 0 {
		t.Error("the canary expects ENOENT from a directory that is granted")
	}
}

// A probe that the filter answers is labelled as one of the filter: it would prove
// nothing about the layer behind.
func TestProbesAreAnsweredByTheirLayer(t *testing.T) {
	_, prog := fakeProgram(t, nil)
	for _, s := range prog.Steps[index(prog, "seccomp(")+1:] {
		nr, args := numbers(s)
		if v := (seccomp.Config{}).Decide(nr, args); v.Errno() != 0 && !strings.HasSuffix(s.Label, "[seccomp]") {
			t.Errorf("%s: the filter already says %v", s, v.Errno())
		}
	}
}

// What is visible at a place is what the deepest mount there shows.
func TestVisibleTakesTheDeepest(t *testing.T) {
	view, err := mergeView(smallBase, grantsOf("/x:/opt ro", "/opt/tool ro", "/srv ro", "/y:/srv/bin ro"))
	must(t, err)
	if !visible(view, "/opt/tool/bin") || visible(view, "/srv/bin") {
		t.Errorf("/opt/tool/bin %v (want true), /srv/bin %v (want false)", visible(view, "/opt/tool/bin"), visible(view, "/srv/bin"))
	}
}

// No grant hides the home directory: the command may start there.
func TestHomeIsNeverHidden(t *testing.T) {
	view, err := mergeView(baseView(nil, nil, nil, Identity{UID: 5}, false), grantsOf("/srv:/home ro"))
	if err != nil {
		return
	}
	for _, e := range view {
		if e.At == Home {
			return
		}
	}
	t.Errorf("no %s inside", Home)
}

// An open with O_TMPFILE makes a file.
func TestTmpfileIsCreation(t *testing.T) {
	list, _ := record(t, recordPlan(), onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ro", unix.O_TMPFILE|unix.O_RDWR))
	if e := only(t, list); e.Kind != trace.KindCreate {
		t.Errorf("kind %s", e.Kind)
	}
}

// Without its directory nothing is known about a path: Landlock is not blamed for it.
func TestRelativePathIsNotLandlocks(t *testing.T) {
	list, _ := record(t, recordPlan(), onPath(unix.SYS_OPENAT, unix.EACCES, "secret", 0))
	if e := only(t, list); e.Layer == trace.LayerLandlock {
		t.Errorf("a relative path is blamed on %s (%s)", e.Layer, e.Rule)
	}
}

// Events of other CPUs between the parts of an exec's arguments cost nothing.
func TestInterleavedExecKeepsItsArguments(t *testing.T) {
	fork := bpf.Event{Type: bpf.Fork, Phase: bpf.Command, TGID: 2, TID: 2, Fork: bpf.ForkInfo{TGID: 9, TID: 9}}
	list, _ := record(t, recordPlan(), execEvent(1, "/a", "a\x00b", 5), fork, moreArgs(1, 3, "c\x00"))
	for _, e := range list {
		if e.Kind == trace.KindExec && (len(e.Argv) != 2 || e.ArgvLen != 0) {
			t.Errorf("argv %q, cut from %d", e.Argv, e.ArgvLen)
		}
	}
}

// Attributes are removed by descriptor too.
func TestFremovexattr(t *testing.T) {
	if callOf(unix.SYS_FREMOVEXATTR).kind != trace.KindSetxattr {
		t.Error(callOf(unix.SYS_FREMOVEXATTR).kind)
	}
}

// A refused unix socket follows from network.unix.
func TestUnixRule(t *testing.T) {
	un := bpf.Event{Type: bpf.Unix, Phase: bpf.Command, TGID: 1, TID: 1, Socket: bpf.SocketInfo{Hook: bpf.HookConnect, Family: unix.AF_UNIX, Text: []byte("/run/x")}}
	list, _ := record(t, recordPlan(), un)
	if e := only(t, list); e.Verdict == trace.VerdictDeny && e.Rule != "network.unix" {
		t.Errorf("rule %s", e.Rule)
	}
}

// The limit of files is the command's: what a run itself needs comes on top.
func TestFewFiles(t *testing.T) {
	e := newEnvelope(t, "files=2")
	if err := e.decide(t); err != nil {
		t.Fatal(err)
	}
	must(t, e.mounts.Close())
	e = newEnvelope(t, "files=2")
	if out := e.run(t, "touch /tmp/a && touch /tmp/b && echo two; touch /tmp/c 2>/dev/null || echo refused"); out != "two\nrefused\n" {
		t.Errorf("%q", out)
	}
}

// A limit says where it was set, as every other event does.
func TestLimitRuleSource(t *testing.T) {
	r := testRun(t)
	r.plan.setLimits(policyOf(t, "memory=64M"))
	r.limitHits(&runs.Result{}, 1, 0)
	must(t, r.rec.w.Flush())
	if e := r.events(t)[0]; e.RuleSource != "flag --memory" {
		t.Errorf("%q", e.RuleSource)
	}
}
