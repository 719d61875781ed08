package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/testenv"
)

// Users of the tests: they are in no passwd file, and own nothing but what a test gives them.
const (
	ann = 424201
	bob = 424202
)

// service is a helper that a test has started, and a directory of ann's.
type service struct {
	t      *testing.T
	socket string
	home   string // ann's
	cmd    *exec.Cmd
	said   lockedBuffer
	rates  bool // ann has a cgroup that bounds CPU time
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveUsers starts a helper. When the test ends it must still be alive, end by SIGTERM,
// and nothing may be left of what it was asked for.
func serveUsers(t *testing.T) *service {
	t.Helper()
	return serveBy(t, agentguard())
}

// serveBy is serveUsers with a command that becomes the helper.
func serveBy(t *testing.T, argv ...string) *service {
	t.Helper()
	testenv.Root(t)
	dir, err := os.MkdirTemp("", "agentguard-helper-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{t: t, socket: filepath.Join(dir, "socket"), home: filepath.Join(dir, "ann")}
	if err := os.Mkdir(s.home, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, s.home: 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(s.home, ann, ann); err != nil {
		t.Fatal(err)
	}
	before := held()
	s.cmd = asUnit(t, append(argv, "helper", "--socket", s.socket)...)
	s.cmd.Stderr = &s.said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(before) })
	s.until("the helper listens", func() bool { return exists(s.socket) && s.spare() })
	return s
}

// asUnit makes a command that has the capabilities of agentguard.service and no others.
func asUnit(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	b, err := os.ReadFile("../../packaging/systemd/agentguard.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(b), "\nCapabilityBoundingSet=")
	line, _, _ := strings.Cut(rest, "\n")
	if !found || len(strings.Fields(line)) < 8 {
		t.Fatalf("the unit's capabilities: %q", line)
	}
	set := "-all"
	for _, name := range strings.Fields(line) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return exec.Command("setpriv", append([]string{"--bounding-set=" + set, "--inh-caps=-all", "--no-new-privs"}, argv...)...)
}

func (s *service) end(before holdings) {
	s.until("all requests have ended", s.spare)
	if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
		s.t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the helper: %v: %s", err, s.said.String())
	}
	for _, left := range leftovers(0, before) {
		s.t.Error("left behind: " + left)
	}
}

// until waits for a condition; the deadline only ends a hang.
func (s *service) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not before the deadline: %s; the helper said: %s", what, s.said.String())
		}
	}
}

// spare reports whether the one child of the helper is the process that waits for a caller.
func (s *service) spare() bool { return s.children() == 1 }

func (s *service) children() (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		n += len(strings.Fields(string(b)))
	}
	return n
}

// as makes a command of a user's, without any group, in ann's directory.
func (s *service) as(uid int, argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = s.home
	cmd.Env = []string{"AGENTGUARD_SOCKET=" + s.socket, "PATH=/usr/bin:/bin", "HOME=" + s.home, stageVar + "=" + programs()}
	cmd.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd
}

// guard runs agentguard as a user and returns stdout, stderr and the exit status.
func (s *service) guard(uid int, args ...string) (out, errs string, status int) {
	s.t.Helper()
	return s.finish(s.as(uid, append([]string{agentguard()}, args...)...))
}

func (s *service) finish(cmd *exec.Cmd) (string, string, int) {
	s.t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// works fails the test unless the helper still serves.
func (s *service) works() {
	s.t.Helper()
	if out, errs, status := s.guard(ann, "exec", "-q", "--", "echo", "served"); out != "served\n" || status != 0 {
		s.t.Fatalf("the helper does not serve any more: status %d, %q, %q; it said: %s", status, out, errs, s.said.String())
	}
}

// log is the helper's own log.
func (s *service) log() []helper.Entry {
	s.t.Helper()
	b, err := os.ReadFile(helperLog)
	if err != nil {
		s.t.Fatal(err)
	}
	var list []helper.Entry
	for line := range strings.Lines(string(b)) {
		var e helper.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

// logged reports whether the log has such a line with why in its reason.
func (s *service) logged(outcome, request string, uid int, why string) bool {
	s.t.Helper()
	for _, e := range s.log() {
		if e.Outcome == outcome && e.Request == request && e.UID == uid && strings.Contains(e.Why, why) {
			return true
		}
	}
	return false
}

// An ordinary user gets what root gets: status, output, record, staged changes and their
// commit, with the user's own ids and nothing of root's.
func TestHelperRuns(t *testing.T) {
	s := serveUsers(t)
	cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sh", "-c", "id -u; id -G; cat; echo new >made; echo err >&2; exit 7")
	cmd.Stdin = strings.NewReader("typed\n")
	out, errs, status := s.finish(cmd)
	if want := fmt.Sprintf("%d\n%d\ntyped\n", ann, ann); out != want || errs != "err\n" || status != 7 {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	if exists(filepath.Join(s.home, "made")) {
		t.Error("the change is not staged")
	}
	for _, args := range [][]string{{"diff"}, {"runs", "ls"}, {"runs", "show"}, {"trace", "show", "last"}, {"trace", "verify", "last"}, {"explain"}, {"keys", "export"}} {
		if out, errs, status := s.guard(ann, args...); status != 0 || out == "" {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
	}
	if _, errs, status := s.guard(ann, "exec", "-q", "--continue", "last", "--mode", "cow", "--", "grep", "new", "made"); status != 0 {
		t.Errorf("continued: %d %q", status, errs)
	}
	if out, errs, status := s.guard(ann, "commit"); status != 0 {
		t.Fatalf("commit: %q %q", out, errs)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.home, "made"), &st); err != nil || st.Uid != ann || st.Gid != ann {
		t.Errorf("%v, owner %d:%d", err, st.Uid, st.Gid)
	}
	if out, _, status := s.guard(ann, "exec", "--dry-run", "--", "true"); status != 0 || !strings.Contains(out, "command    true") {
		t.Errorf("dry run: %q", out)
	}
	if !s.logged("granted", "exec", ann, "") || !s.logged("ended", "exec", ann, "") || !s.logged("granted", "commit", ann, "") {
		t.Error("the log lacks a request")
	}
}

// A commit in the way of which the user's own changes stand says so, with root's status.
func TestHelperConflict(t *testing.T) {
	s := serveUsers(t)
	file := filepath.Join(s.home, "f")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, ann, ann); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if _, errs, status := s.guard(ann, "exec", "-q", "--", "sh", "-c", "echo two >f"); status != 0 {
		t.Fatal(errs)
	}
	write("three and more")
	if _, errs, status := s.guard(ann, "commit"); status != statusConflict || !strings.Contains(errs, "nothing was committed") {
		t.Errorf("%d %q", status, errs)
	}
	if out, errs, status := s.guard(ann, "discard"); status != 0 {
		t.Errorf("discard: %q %q", out, errs)
	}
	if out, _, _ := s.guard(ann, "diff"); !strings.Contains(out, "[settled]") {
		t.Errorf("after the discard: %q", out)
	}
}

// A person sees no difference: the run has a terminal, Ctrl-C and Ctrl-Z are the
// command's, the size is that of the window.
func TestHelperTerminal(t *testing.T) {
	s := serveUsers(t)
	p := sit(t, s.home, [3]*os.File{}, "/usr/bin/env", "AGENTGUARD_SOCKET="+s.socket,
		"setpriv", "--reuid="+strconv.Itoa(ann), "--regid="+strconv.Itoa(ann), "--clear-groups", "bash", "--norc", "-i")
	p.answers("P> ", "agentguard exec -- sh -c 'stty size; trap g=1 INT; read x; echo got $x; while [ ! $g ]; do sleep 0.05; done; echo over'\n",
		"24 80", "word\r", "got word", "\x03", "over", "", "P> ", "")
	p.keys("agentguard exec -q -- sh -c 'echo one; kill -STOP $$; echo two'\n")
	p.answers("one", "", "Stopped", "echo in-between; fg\n", "in-between", "", "two", "", "P> ", "exit\n")
	p.wait()
}

// A run ends with its client; the record says that it did.
func TestHelperClientDies(t *testing.T) {
	s := serveUsers(t)
	cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sleep", "1000000.4242")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until("the run is live", func() bool { out, _, _ := s.guard(ann, "ps"); return strings.Contains(out, "1000000.4242") })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.until("it has ended", s.spare)
	out, _, _ := s.guard(ann, "runs", "show")
	if !strings.Contains(out, "cancelled") {
		t.Errorf("%s", out)
	}
}

// runs kill ends a live run of the user's.
func TestHelperRunsKill(t *testing.T) {
	s := serveUsers(t)
	cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sleep", "1000000.4243")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until("the run is live", func() bool { out, _, _ := s.guard(ann, "ps"); return strings.Contains(out, "1000000.4243") })
	if out, errs, status := s.guard(ann, "runs", "kill", "last"); status != 0 {
		t.Errorf("%q %q", out, errs)
	}
	_ = cmd.Wait()
	if n := cmd.ProcessState.ExitCode(); n != 128+int(unix.SIGTERM) {
		t.Errorf("status %d", n)
	}
}

// systemd's socket is taken over as it is.
func TestHelperActivated(t *testing.T) {
	testenv.Root(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var said lockedBuffer
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" helper`, agentguard())
	cmd.ExtraFiles, cmd.Stderr = []*os.File{f}, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := helper.Read(c) // root is told so
	if err != nil || answer.Kind != helper.Failed || !strings.Contains(answer.Lists[0][0], "root needs no helper") {
		t.Errorf("%+v %v; it said %s", answer, err, said.String())
	}
	c.Close()
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !exists(path) {
		t.Errorf("%v, socket there: %v", err, exists(path))
	}
}

// A detached run goes on without its client, can be followed and ended, and is the user's.
func TestHelperDetach(t *testing.T) {
	s := serveUsers(t)
	out, errs, status := s.guard(ann, "exec", "--detach", "--", "sh", "-c", "echo begun; while ! test -e go; do sleep 0.02; done; echo over; exit 5")
	id := strings.TrimSpace(out)
	if status != 0 || id == "" {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	if out, _, _ := s.guard(ann, "ps"); !strings.Contains(out, id) {
		t.Errorf("ps: %q", out)
	}
	if _, _, status := s.guard(bob, "attach", id); status != 125 {
		t.Errorf("bob attaches: %d", status)
	}
	if _, errs, status := s.guard(ann, "runs", "kill", id); status != 0 {
		t.Errorf("kill: %q", errs)
	}
	s.until("it has ended", s.spare)
	out, errs, status = s.guard(ann, "exec", "--detach", "--", "sh", "-c", "echo begun; sleep 0.3; echo over >&2; exit 5")
	if status != 0 {
		t.Fatalf("%d %q", status, errs)
	}
	out, errs, status = s.guard(ann, "attach", strings.TrimSpace(out))
	if out != "begun\n" || !strings.Contains(errs, "over") || status != 5 {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if _, errs, status := s.guard(ann, "exec", "--detach", "--", "/no/such/program"); status != 127 {
		t.Errorf("a run that does not start: %d %q", status, errs)
	}
	cmd := exec.Command(agentguard(), "exec", "--detach", "--", "true")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "takes the helper") {
		t.Errorf("root: %v %q", err, out)
	}
}
