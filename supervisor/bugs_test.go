package supervisor

// Tests that show bugs. Run: cp this into supervisor/ and go test ./supervisor -run Bug. Each goes
// into the tree (with its own _test.go) when it passes.

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
)

// B1 (HIGH): `agentguard exec -- yes | head -1` never ends: relay.run stops reading but
// keeps r.from open, so the command blocks instead of getting SIGPIPE. Fix: close r.from there.
func TestBugReaderGoneGivesEPIPE(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	must(t, s.out.Close())
	s.start(nil, s.limits, s.record)
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
	case <-time.After(5 * time.Second):
		t.Error("the command hangs in write though nobody reads")
		s.outs[0].from.Close()
		<-done
	}
	must(t, s.closeChild())
	s.finish(nil)
}

// B2 (MEDIUM): a caller that does not read keeps the supervisor for ever after the run is
// dead (`exec --wall 1s -- yes | sleep 1000`): stdio.finish has no time bound (os/exec has WaitDelay).
func TestBugFinishIsBoundedWithAStalledReader(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	s.start(nil, s.limits, s.record)
	_ = s.childOut.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = s.childOut.Write(make([]byte, 1<<20)) // more than both pipes hold
	must(t, s.closeChild())
	done := make(chan []Stream, 1)
	giveUp := make(chan struct{})
	go func() { done <- s.finish(giveUp) }()
	close(giveUp) // a signal, or a limit that ended the run a while ago
	select {
	case <-done:
	case <-time.After(15 * time.Second):
		t.Error("finish waits for a reader that never reads")
		s.out.Close()
		<-done
	}
}

// B3 (HIGH, principle "final"): unsafe.host-network is a gap that allow_gaps cannot accept
// (policy.Gap.Final, Policy.AcceptsGap); supervisor.gaps ignores both.
func TestBugFinalGapIsNotAccepted(t *testing.T) {
	p := policyOf(t)
	p.Unsafe = append(p.Unsafe, textOf("host-network"))
	p.AllowGaps = append(p.AllowGaps, textOf("unsafe.host-network"))
	if _, err := newPlan(fakeInput(p)); err == nil {
		t.Error("a final gap was accepted by allow_gaps")
	}
}

// B4 (MEDIUM): setThreadFSIDs says it checks both ids and checks only the uid: a SUDO_GID that
// the kernel does not take leaves fsgid 0, and root's group with it.
func TestBugGroupThatDoesNotTake(t *testing.T) {
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

// B5 (MEDIUM): the text of a link, which another user chose, is put into errors raw: control
// characters and newlines reach the terminal ("quote everything"). ENOENT paths below a
// followed link as well. Use trace.Quote in errSymlink.Error, realPath and walk.next.
func TestBugLinkTargetIsQuoted(t *testing.T) {
	base := publicDir(t)
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	must(t, os.Symlink("/tmp/\x1b[2Jx\nagentguard: fake", base+"/user/link"), os.Symlink("/tmp/\x1b[2Jx\nagentguard: fake", base+"/link"))
	for _, p := range []string{base + "/user/link", base + "/link"} {
		_, err := openGrants(&policy.Policy{ReadOnly: []policy.Mount{mountAt(p, 1)}}, Caller{UID: os.Getuid()})
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%q", err)
		}
	}
}

// B6 (LOW): "magic links are never followed": their text is, e.g. /proc/self/root/etc/passwd.
func TestBugMagicLinks(t *testing.T) {
	for _, p := range []string{"/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/exe"} {
		if o, err := openPath(p); err == nil {
			t.Errorf("%s was opened (%d)", p, o.Stat.Ino)
			o.File.Close()
		}
	}
}

// B7 (MEDIUM): a grant below a symbolic link of the base (/bin/bash, /lib/x, /var/run/x on merged
// /usr) ends in "mkdir root/bin: not a directory", no clause, no remedy. Name the real path instead.
func TestBugGrantBelowALinkOfTheBase(t *testing.T) {
	_, err := mergeView(smallBase, grantsOf("/bin/bash ro"))
	var r *Refusal
	if !errors.As(err, &r) || r.Clause == "" {
		t.Errorf("%v", err)
	}
}

// B8 (LOW): a grant AT /.agentguard/scratch collides with the scratch mount, at / and /agentguard-canary with the canary.
func TestBugOwnPlaces(t *testing.T) {
	for _, at := range []string{"/" + scratchAt, "/.agentguard", "/agentguard-canary"} {
		if _, err := mergeView(smallBase, grantsOf("/srv:"+at+" rw")); err == nil {
			t.Errorf("%s is granted", at)
		}
	}
}

// B9 (MEDIUM): `--ro /etc` shows the host's /etc/shadow (0600): the canary's probe wants ENOENT, gets
// EACCES and says "a layer that does not bite". Accept EACCES (ENOENT, EACCES) when a grant covers
// /etc, or refuse the grant with a sentence.
func TestBugCanaryUnderAGrantOfEtc(t *testing.T) {
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

// B10 (LOW): the UDP-Lite probe is meant for the cgroup program, but the seccomp filter refuses the
// same call with the same EPERM: it proves nothing about bpf. Label it seccomp, or drop it.
func TestBugProbesAreAnsweredByTheirLayer(t *testing.T) {
	_, prog := fakeProgram(t, nil)
	for _, s := range prog.Steps[index(prog, "seccomp(")+1:] {
		nr, args := numbers(s)
		if v := seccomp.Decide(nr, args, nil); v.Errno() != 0 && !strings.HasSuffix(s.Label, "[seccomp]") {
			t.Errorf("%s: the filter already says %v", s, v.Errno())
		}
	}
}

// B11 (LOW): visible looks at the first bind that holds p, not at the deepest.
func TestBugVisibleTakesTheDeepest(t *testing.T) {
	view, err := mergeView(smallBase, grantsOf("/x:/opt ro", "/opt/tool ro", "/srv ro", "/y:/srv/bin ro"))
	must(t, err)
	if !visible(view, "/opt/tool/bin") || visible(view, "/srv/bin") {
		t.Errorf("/opt/tool/bin %v (want true), /srv/bin %v (want false)", visible(view, "/opt/tool/bin"), visible(view, "/srv/bin"))
	}
}

// B12 (LOW): --ro x --at /home hides HOME itself; the command starts in HOME that does not exist, or has none.
func TestBugHomeIsNeverHidden(t *testing.T) {
	view, err := mergeView(baseView(nil, nil, Identity{UID: 5}), grantsOf("/srv:/home ro"))
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

// B13 (LOW): open with O_TMPFILE makes a file: trace.KindCreate's comment names it, recorder.call only tests O_CREAT.
func TestBugTmpfileIsCreation(t *testing.T) {
	list, _ := record(t, recordPlan(), onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ro", unix.O_TMPFILE|unix.O_RDWR))
	if e := only(t, list); e.Kind != trace.KindCreate {
		t.Errorf("kind %s", e.Kind)
	}
}

// B14 (MEDIUM): EACCES on a relative path (chmod 000 file in the workspace) is blamed on Landlock: grantOf
// only knows absolute paths. Without a directory nothing is known: do not name Landlock (LayerDAC, or no layer).
func TestBugRelativePathIsNotLandlocks(t *testing.T) {
	list, _ := record(t, recordPlan(), onPath(unix.SYS_OPENAT, unix.EACCES, "secret", 0))
	if e := only(t, list); e.Layer == trace.LayerLandlock {
		t.Errorf("a relative path is blamed on %s (%s)", e.Layer, e.Rule)
	}
}

// B15 (MEDIUM): an event of another CPU between the parts of an exec's arguments ends it: argv is cut
// though nothing was lost. A command can cause it at will. Keep the pending exec by pid.
func TestBugInterleavedExecKeepsItsArguments(t *testing.T) {
	fork := bpf.Event{Type: bpf.Fork, Phase: bpf.Command, TGID: 2, TID: 2, Fork: bpf.ForkInfo{TGID: 9, TID: 9}}
	list, _ := record(t, recordPlan(), execEvent(1, "/a", "a\x00b", 5), fork, moreArgs(1, "c\x00"))
	for _, e := range list {
		if e.Kind == trace.KindExec && (len(e.Argv) != 2 || e.ArgvLen != 0) {
			t.Errorf("argv %q, cut from %d", e.Argv, e.ArgvLen)
		}
	}
}

// B16 (LOW): fremovexattr is missing in pathKinds.
func TestBugFremovexattr(t *testing.T) {
	if denyKind(unix.SYS_FREMOVEXATTR) != trace.KindSetxattr {
		t.Error(denyKind(unix.SYS_FREMOVEXATTR))
	}
}

// B17 (LOW): a refused unix socket address is given the rule network.egress, not network.unix.
func TestBugUnixRule(t *testing.T) {
	un := bpf.Event{Type: bpf.Unix, Phase: bpf.Command, TGID: 1, TID: 1, Socket: bpf.SocketInfo{Hook: bpf.HookConnect, Family: unix.AF_UNIX, Text: []byte("/run/x")}}
	list, _ := record(t, recordPlan(), un)
	if e := only(t, list); e.Verdict == trace.VerdictDeny && e.Rule != "network.unix" {
		t.Errorf("rule %s", e.Rule)
	}
}

// B20 (LOW): --files N below 7 counts our own inodes of the scratch file system (root, .mask, tmp, vartmp, shm,
// home) against the command: "mkdir scratch/vartmp: no space left on device", 125, no clause. Add ours on top.
func TestBugFewFiles(t *testing.T) {
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

// B21 (LOW): a limit event's RuleSource is "process.max_memory_mb (flag --memory)"; trace.Event says FILE:LINE:COL, "flag --ro" or "default".
func TestBugLimitRuleSource(t *testing.T) {
	r := testRun(t)
	r.plan.setLimits(policyOf(t, "memory=64M"))
	r.limitHits(&runs.Result{}, 1, 0)
	must(t, r.rec.w.Flush())
	if e := r.events(t)[0]; e.RuleSource != "flag --memory" {
		t.Errorf("%q", e.RuleSource)
	}
}
