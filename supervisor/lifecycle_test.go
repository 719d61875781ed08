package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

var heldLock *os.File // a variable of the package: a local one is closed by the collector

func holdLock() {
	var err error
	heldLock, err = os.OpenFile(os.Getenv("LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(heldLock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	fmt.Println("held", err == nil)
	for {
		_ = unix.Pause() // select{} would be a deadlock to the runtime, which ends the process
	}
}

// A run is alive as long as its supervisor holds the lock, however that ends.
func TestAlive(t *testing.T) {
	run := t.TempDir()
	must(t, os.Mkdir(filepath.Dir(lockPath(run, "x")), 0o700))
	if alive(run, "x") {
		t.Error("a run without a lock is alive")
	}
	must(t, os.WriteFile(lockPath(run, "dead"), nil, 0o600), os.Symlink(lockPath(run, "dead"), lockPath(run, "link")))
	if alive(run, "dead") || alive(run, "link") {
		t.Error("a lock that nobody holds makes a run alive")
	}
	other, err := os.Open(lockPath(run, "dead"))
	must(t, err, unix.Flock(int(other.Fd()), unix.LOCK_SH))
	if alive(run, "dead") {
		t.Error("somebody else who asks makes a run alive")
	}
	must(t, other.Close())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), actVariable+"=hold-lock", "LOCK="+lockPath(run, "x"))
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	var word, held string
	if _, err := fmt.Fscan(out, &word, &held); err != nil || held != "true" {
		t.Fatal(word, held, err)
	}
	before := testenv.Descriptors()
	must(t, os.Symlink(lockPath(run, "x"), lockPath(run, "alias")))
	if alive(run, "alias") {
		t.Error("a link was followed to another run's lock")
	}
	for range 2 { // asking does not take the lock
		if !alive(run, "x") {
			t.Error("a live supervisor is taken for dead")
		}
	}
	if testenv.Since(before) != 0 {
		t.Error("a descriptor is left")
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if alive(run, "x") {
		t.Error("a killed supervisor is alive")
	}
}

func TestRecordErrorSaysWhatToDo(t *testing.T) {
	s, err := runs.OpenState(filepath.Join(t.TempDir(), "state"), os.Getuid())
	must(t, err)
	defer s.Close()
	r := &Run{state: s}
	for cause, remedy := range map[error]string{
		unix.EACCES:                          "choose another place with --state DIR",
		unix.ENOSPC:                          "make room (agentguard runs ls), or choose another place with --state DIR",
		fmt.Errorf("write: %w", unix.ENOSPC): "make room (agentguard runs ls), or choose another place with --state DIR",
	} {
		got := refusal(t, r.recordError(cause))
		if got.Remedy != remedy || !errors.Is(got, cause) || !strings.HasPrefix(got.What, "cannot write the record in "+s.Path()) {
			t.Errorf("%v: %+v", cause, got)
		}
	}
}

// A run that did not start leaves no directory; one that did keeps it.
func TestOpenRecord(t *testing.T) {
	for _, kept := range []bool{false, true} {
		s, err := runs.OpenState(filepath.Join(t.TempDir(), "state"), os.Getuid())
		must(t, err)
		before := testenv.Descriptors()
		r := &Run{id: runs.NewID(time.Now()), state: s, files: map[string]*os.File{}}
		must(t, r.openRecord())
		where := r.dir.Path()
		for _, name := range []string{runs.TraceFile, runs.StdoutFile, runs.StderrFile} {
			st, err := os.Stat(filepath.Join(where, name))
			must(t, err)
			if st.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", name, st.Mode())
			}
			if r.files[name] == nil {
				t.Errorf("%s is not open", name)
			}
		}
		r.kept = kept
		must(t, r.Close(), r.Close())
		if _, err := os.Stat(where); (err == nil) != kept {
			t.Errorf("kept %v, but the directory: %v", kept, err)
		}
		if testenv.Since(before) != 0 {
			t.Errorf("%d descriptors are left", testenv.Since(before))
		}
		must(t, s.Close())
	}
}

func TestBootIdentity(t *testing.T) {
	id, err := bootID()
	must(t, err)
	if len(id) != 36 || strings.Count(id, "-") != 4 {
		t.Errorf("boot id %q", id)
	}
	if a, b := bootTime(), bootTime(); a == 0 || b < a {
		t.Errorf("boot time %d, then %d", a, b)
	}
}

// How a step that failed is told: the status is the caller's only machine-readable sign.
func TestExplain(t *testing.T) {
	step := func(stage string, want int) *initproc.Step {
		return &initproc.Step{Stage: stage, Label: "the call", Want: want}
	}
	other := errors.New("anything else")
	r := &Run{plan: &Plan{Argv: []string{"pro\x1bgram"}}}
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{&initproc.StepError{Step: step("exec", 0), Errno: syscall.ENOENT}, 127, `$'pro\x1bgram' was not found inside; the host does not have it either on this PATH`},
		{&initproc.StepError{Step: step("exec", 0), Errno: syscall.EACCES}, 126, `$'pro\x1bgram' could not be executed: permission denied`},
		{&initproc.StepError{Step: step("exec", 0), Errno: syscall.ENOEXEC}, 126, `$'pro\x1bgram' could not be executed: exec format error; it is neither a program for this machine nor a script with a #! line; name the interpreter`},
		{&initproc.StepError{Step: step("exec", 0), Errno: syscall.E2BIG}, 126, `$'pro\x1bgram' could not be executed: argument list too long`},
		{&initproc.StepError{Step: step("mount", 0), Errno: syscall.EPERM}, 125, "the envelope could not be put on: mount: the call: operation not permitted; nothing was run; see agentguard doctor"},
		{&initproc.StepError{Step: step("canary", int(syscall.EPERM)), Errno: syscall.ERANGE}, 125, "the canary found a layer that does not bite: canary: the call was allowed, and must be refused; nothing was run; see agentguard doctor"},
		{errors.Join(&initproc.StepError{Step: &initproc.Step{Stage: "guardian", Label: loSocketLabel}, Errno: syscall.EPERM}, other), 125, "a program that is not of this agentguard's guards the cgroup of all runs, and refuses sockets in it: guardian: socket(AF_INET, SOCK_DGRAM): operation not permitted; nothing was run; another agentguard"},
		{fmt.Errorf("wrapped: %w", &initproc.StepError{Step: step("exec", 0), Errno: syscall.ENOENT}), 127, "was not found inside"},
		{other, 125, "anything else"},
	} {
		got := r.explain(c.err)
		if StatusOf(got) != c.status || !strings.Contains(got.Error(), c.text) {
			t.Errorf("status %d, %v\nwant   %d, %s", StatusOf(got), got, c.status, c.text)
		}
	}
	if r.explain(other) != other {
		t.Error("an error was replaced")
	}
	// A program that the host has is named with the flag that shows it.
	r.plan.Argv[0] = "/bin/sh"
	if got := r.whereOnHost(); got != "the host has it as /bin/sh; show it with --ro /bin/sh" {
		t.Error(got)
	}
	r.plan.View = []Entry{grant("/bin ro")}
	if got := r.whereOnHost(); got != "the host does not have it either" {
		t.Error(got)
	}
}

// A run that cannot be asked about must not be swept away.
func TestAliveWithoutDescriptors(t *testing.T) {
	run := t.TempDir()
	must(t, os.Mkdir(filepath.Dir(lockPath(run, "x")), 0o700), os.WriteFile(lockPath(run, "x"), nil, 0o600))
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) })
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}))
	got := alive(run, "x")
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	if !got {
		t.Error("a run is taken for dead when no descriptor is left to ask with")
	}
}
