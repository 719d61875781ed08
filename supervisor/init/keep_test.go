//go:build linux

package initproc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A child of these tests is a supervisor of a user of its own, since it might kill
// all that its user has.
const keepVariable = "AGENTGUARD_INIT_KEEP"

const (
	keepTasks = 200 // of the user, in all
	keepOpen  = "open"

	keepStopped = "stopped" // as "c", and the run is ended when the guardian was stopped
)

// keepSupervise starts "HOW UID SCRIPT" and says what became of it, a line for each step.
func keepSupervise(spec string) {
	f := strings.SplitN(spec, " ", 3)
	uid, _ := strconv.Atoi(f[1])
	err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(uid, uid, uid), syscall.Setresuid(uid, uid, uid),
		unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) // /proc/self is root's otherwise
	keep, before := KeepDomain, &Program{}
	switch f[0] {
	case "c", keepStopped:
		keep = KeepChildren
	case "s":
		err = errors.Join(err, enterScope(before))
	}
	keep.Adopt(before)
	out := os.NewFile(3, "report")
	p, serr := Start(Config{Keep: keep, Before: before, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Guardian: &Program{}})
	if err = errors.Join(err, serr, os.Stdout.Close()); err == nil {
		err = p.Locked(limit)
	}
	fmt.Fprintln(out, "locked", err)
	if err == nil {
		err = p.Exec(keepPlan(f[2]), limit)
	}
	fmt.Fprintln(out, "running", err)
	if f[0] == keepStopped {
		err := waitStopped(p.Pid)
		fmt.Fprintln(out, "stopped", errors.Join(err, p.Kill()))
	} else {
		exit, err := p.Wait()
		fmt.Fprintln(out, "exit", exit.Status.ExitStatus(), err)
	}
	fmt.Fprintln(out, "gone", p.Reap())
	hang()
}

// enterScope puts the guardian into a domain that lets no signal out.
func enterScope(p *Program) error {
	fd, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{Scoped: ll.ScopeSignal}, 0)
	if err != nil {
		return err
	}
	p.Call("guardian", "no_new_privs", unix.SYS_PRCTL, Value(unix.PR_SET_NO_NEW_PRIVS), Value(1), Value(0), Value(0), Value(0))
	p.Call("guardian", "landlock_restrict_self", unix.SYS_LANDLOCK_RESTRICT_SELF, p.File(fd), Value(0))
	return nil
}

func keepPlan(script string) *Program {
	p := commandPlan("/bin/sh", "-c", script)
	exec := slices.Clone(p.Steps[len(p.Steps)-2:]) // both candidates
	p.Steps = p.Steps[:len(p.Steps)-2]
	p.Call("session", "setsid()", unix.SYS_SETSID)
	p.Call("limits", "prlimit(RLIMIT_NPROC)", unix.SYS_PRLIMIT64, Value(0), Value(unix.RLIMIT_NPROC), p.Bytes(append(word(keepTasks), word(keepTasks)...)), Value(0))
	p.Steps = append(p.Steps, exec...)
	return p
}

func word(n uint64) []byte {
	return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), 0, 0, 0, 0}
}

// kept is such a supervisor, and a process of the same user that is none of its run.
type kept struct {
	uid       int
	cmd       *exec.Cmd
	report    *bufio.Reader
	output    *os.File // of the run
	bystander *exec.Cmd
}

func keepRun(t *testing.T, how, script string) *kept {
	t.Helper()
	testenv.Root(t)
	if abi, err := ll.LandlockGetABIVersion(); (how == "s" || how == keepOpen) && abi < 6 {
		testenv.Beyond(t, "landlock", fmt.Sprintf("signals have no scope before ABI 6 (Linux 6.12): %d, %v", abi, err))
	}
	k := &kept{uid: 1_600_000_000 + os.Getpid()}
	k.bystander = exec.Command("sleep", "1000")
	k.bystander.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(k.uid), Gid: uint32(k.uid)}}
	report, theirs := pipe(t)
	output, write := pipe(t)
	k.cmd, k.report, k.output = exec.Command("/proc/self/exe"), bufio.NewReader(report), output
	k.cmd.Env = []string{keepVariable + "=" + fmt.Sprintf("%s %d %s", how, k.uid, script), "PATH=/usr/bin:/bin"}
	k.cmd.Stdout, k.cmd.Stderr, k.cmd.ExtraFiles = write, os.Stderr, []*os.File{theirs}
	if err := errors.Join(k.bystander.Start(), k.cmd.Start(), write.Close(), theirs.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []*exec.Cmd{k.cmd, k.bystander} {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	return k
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func (k *kept) says(t *testing.T, want string) {
	t.Helper()
	if line, err := k.report.ReadString('\n'); err != nil || line != want+"\n" {
		t.Fatalf("the supervisor says %q, %v; want %q", line, err, want)
	}
}

// ends waits for end of file on the output, which everything of the run holds, and
// until nobody of the user lives but for those that are none of the run.
func (k *kept) ends(t *testing.T, others ...int) {
	t.Helper()
	if err := k.output.SetReadDeadline(time.Now().Add(3 * limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, k.output); err != nil {
		t.Errorf("something of the run lives on: %v", err)
	}
	others = append(others, k.bystander.Process.Pid)
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		alive := aliveOf(t, k.uid)
		for _, pid := range others {
			if alive[pid] == "" {
				t.Fatalf("process %d, which is none of the run, is dead", pid)
			}
			delete(alive, pid)
		}
		if len(alive) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still alive: %v", alive)
		}
	}
}

// aliveOf are the processes of a user that are not dead, by number, with their names.
func aliveOf(t *testing.T, uid int) map[int]string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || bytes.Contains(b, []byte("\nState:\tZ")) || !bytes.Contains(b, fmt.Appendf(nil, "\nUid:\t%d\t", uid)) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		name, _, _ := bytes.Cut(b, []byte("\n"))
		out[pid] = string(name)
	}
	return out
}

// Scripts whose processes want to outlive the run. Each says "ready" when they exist.
var (
	daemons = `trap '' TERM HUP INT; (setsid sh -c 'trap "" TERM HUP; (setsid sleep 1000 &) ; echo ready; exec sleep 1000' &); `
	bomb    = `ulimit -c 0; b() { b & b & sleep 1000; }; b 2>/dev/null & echo ready; `
	comets  = `c() { c & }; for i in 1 2 3 4 5 6 7 8; do c; done 2>/dev/null; echo ready; `
)

// When the command has ended, all that it left behind is killed, and nobody else.
func TestKeepEndsWithTheCommand(t *testing.T) {
	for _, how := range []string{"s", "c"} {
		for name, script := range map[string]string{"daemons": daemons, "bomb": bomb, "comets": comets} {
			t.Run(how+" "+name, func(t *testing.T) {
				k := keepRun(t, how, script+"exit 3")
				k.says(t, "locked <nil>")
				k.says(t, "running <nil>")
				k.says(t, "exit 3 <nil>")
				k.says(t, "gone <nil>")
				k.ends(t, k.cmd.Process.Pid)
			})
		}
	}
}

// Where signals have no scope the command can stop its guardian: the run ends all the same.
func TestKeepStopped(t *testing.T) {
	k := keepRun(t, keepStopped, "kill -STOP $PPID; trap '' TERM HUP INT; while :; do sleep 1000; done")
	k.says(t, "locked <nil>")
	k.says(t, "running <nil>")
	k.says(t, "stopped <nil>")
	k.says(t, "gone <nil>")
	k.ends(t, k.cmd.Process.Pid)
}

func waitStopped(pid int) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || bytes.Contains(b, []byte("\nState:\tT")) {
			return err
		}
	}
	return errors.New("the guardian was not stopped")
}

// Nor does anything outlive a supervisor that is killed.
func TestKeepEndsWithTheSupervisor(t *testing.T) {
	for _, how := range []string{"s", "c"} {
		for name, script := range map[string]string{"daemons": daemons, "bomb": bomb, "comets": comets} {
			t.Run(how+" "+name, func(t *testing.T) {
				k := keepRun(t, how, script+"while :; do sleep 1000; done")
				k.says(t, "locked <nil>")
				k.says(t, "running <nil>")
				line, err := bufio.NewReader(io.LimitReader(k.output, 6)).ReadString('\n')
				if err != nil || line != "ready\n" {
					t.Fatalf("the command says %q, %v", line, err)
				}
				if err := k.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = k.cmd.Wait()
				k.ends(t)
			})
		}
	}
}

// A guardian that would say kill(-1) outside of a domain ends before anything is born.
func TestKeepNeedsItsDomain(t *testing.T) {
	k := keepRun(t, keepOpen, "echo born")
	line, err := k.report.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "locked ") || !strings.Contains(line, "signals outside of the run") {
		t.Errorf("%q, %v", line, err)
	}
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
	if out, err := io.ReadAll(k.output); err != nil || len(out) > 0 {
		t.Errorf("%q, %v", out, err)
	}
	k.ends(t)
}
