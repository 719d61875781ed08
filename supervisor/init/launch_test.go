//go:build linux

package initproc

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const limit = time.Minute // ends a hang only

// born starts PID 1 with a plan of its own and its output on a pipe.
func born(t *testing.T, guardian *Program) (*Process, *os.File) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("needs root: run the tests as the README says")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	defer w.Close()
	p, err := Start(Config{Flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Stdin: null, Stdout: w, Stderr: w, Guardian: guardian})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Hangup(), p.Reap(), p.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	return p, r
}

func commandPlan(argv ...string) *Program {
	p := &Program{}
	p.Call("fds", "close_range(3, ~0, CLOEXEC)", unix.SYS_CLOSE_RANGE, Value(3), Value(uint32(0xffffffff)), Value(unix.CLOSE_RANGE_CLOEXEC))
	vec, env := p.Strings(argv), p.Strings([]string{"A=1"})
	p.Exec("execve(/nonexistent/x)", unix.SYS_EXECVE, true, p.String("/nonexistent/x"), vec, env)
	p.Exec("execve("+argv[0]+")", unix.SYS_EXECVE, false, p.String(argv[0]), vec, env)
	return p
}

func TestRunsACommand(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(commandPlan("/bin/sh", "-c", "echo $$ $A; ls /proc/self/fd | wc -l; exit 42"), limit); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "2 1\n4\n" { // the fourth descriptor is ls's own
		t.Errorf("output %q", got)
	}
	exit, err := p.Wait()
	if err != nil || exit.Status.ExitStatus() != 42 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestDescriptorsArriveAndResultsAreSaved(t *testing.T) {
	p, out := born(t, &Program{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	plan := &Program{}
	slot := plan.NewSlot()
	plan.Call("x", "getpid", unix.SYS_GETPID).Save(slot)
	plan.Call("x", "dup2 the pipe", unix.SYS_DUP3, plan.File(int(w.Fd())), Value(9), Value(0))
	plan.Call("x", "kill(saved, 0)", unix.SYS_KILL, plan.Saved(slot), Value(0))
	plan.Call("x", "kill(999999) fails", unix.SYS_KILL, Value(999999), Value(0)).Refused(int(unix.ESRCH), 0)
	plan.Call("x", "close_range", unix.SYS_CLOSE_RANGE, Value(10), Value(uint32(0xffffffff)), Value(0)).Ignore()
	plan.Call("x", "close_range", unix.SYS_CLOSE_RANGE, Value(3), Value(8), Value(unix.CLOSE_RANGE_CLOEXEC))
	plan.Exec("sh", unix.SYS_EXECVE, true, plan.String("/bin/sh"), plan.Strings([]string{"sh", "-c", "echo through >&9"}), plan.Strings(nil))
	if err := errors.Join(p.Locked(limit)); err != nil {
		t.Fatal(err)
	}
	// The error pipe (4) is closed by the close_range from 10 on only if it had moved; it must still be 4.
	if err := p.Exec(plan, limit); err != nil {
		t.Fatal(err)
	}
	w.Close()
	got, _ := io.ReadAll(r)
	r.Close()
	if string(got) != "through\n" {
		t.Errorf("through the passed pipe: %q", got)
	}
	if rest, _ := io.ReadAll(out); len(rest) != 0 {
		t.Errorf("stray output %q", rest)
	}
}

func TestFailuresSayWhichStep(t *testing.T) {
	for _, c := range []struct {
		name string
		add  func(*Program)
		errn syscall.Errno
		text string
	}{
		{"a call fails", func(p *Program) {
			p.Call("mount", "mount of nothing", unix.SYS_MOUNT, Value(0), Value(0), Value(0))
		}, unix.EFAULT, "mount of nothing"},
		{"a probe succeeds", func(p *Program) {
			p.Call("canary", "getpid", unix.SYS_GETPID).Refused(int(unix.EPERM), 0)
		}, unix.ERANGE, "was allowed, and must be refused"},
		{"a probe fails otherwise", func(p *Program) {
			p.Call("canary", "mount", unix.SYS_MOUNT, Value(0), Value(0), Value(0)).Refused(int(unix.EPERM), int(unix.ENOSYS))
		}, unix.EFAULT, "must fail with"},
		{"not found", func(p *Program) {
			p.Exec("execve(/nowhere)", unix.SYS_EXECVE, true, p.String("/nowhere"), p.Strings(nil), p.Strings(nil))
		}, unix.ENOENT, "/nowhere"},
		{"found but not executable, and a later candidate missing", func(p *Program) {
			p.Exec("execve(/etc/passwd)", unix.SYS_EXECVE, true, p.String("/etc/passwd"), p.Strings(nil), p.Strings(nil))
			p.Exec("execve(/nowhere)", unix.SYS_EXECVE, false, p.String("/nowhere"), p.Strings(nil), p.Strings(nil))
		}, unix.EACCES, "execve"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := born(t, &Program{})
			if err := p.Locked(limit); err != nil {
				t.Fatal(err)
			}
			plan := &Program{}
			c.add(plan)
			err := p.Exec(plan, limit)
			var se *StepError
			if !errors.As(err, &se) || se.Errno != c.errn || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestGuardianFailureIsReported(t *testing.T) {
	g := &Program{}
	g.Call("guardian", "bad call", unix.SYS_MOUNT, Value(0), Value(0), Value(0))
	p, _ := born(t, g)
	var se *StepError
	if err := p.Locked(limit); !errors.As(err, &se) || se.Who != "pid 1" || se.Errno != unix.EFAULT {
		t.Fatalf("got %v", err)
	}
}

func TestHangupKillsTheRun(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(commandPlan("/bin/sh", "-c", "setsid sleep 1000 & sleep 1000"), limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Hangup(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil { // end of file: every holder of the pipe is dead
		t.Fatal(err)
	}
	if err := p.Reap(); err != nil {
		t.Fatal(err)
	}
}

func TestWaitAfterACommandKilledBySignal(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(commandPlan("/bin/sh", "-c", "sleep 1000"), limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(int(p.Command.Fd()), unix.SIGTERM, nil, 0); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.Status.Signal() != unix.SIGTERM {
		t.Fatalf("exit %+v, %v", exit, err)
	}
}

func TestUserNSMapsRoot(t *testing.T) {
	const uid = 0x70000001
	f, err := NewUserNS([]IDMap{{0, uid, 1}, {1, 1, uid - 1}, {uid + 1, uid + 1, 1<<32 - 2 - uid}}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.TempDir(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(f.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Uid != uid {
		t.Fatalf("owner %d, %v", st.Uid, err)
	}
}
