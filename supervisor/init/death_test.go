//go:build linux

package initproc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A child of the tests is this binary again, as a supervisor that stops at the
// stage in this variable until it is killed.
const stageVariable = "AGENTGUARD_INIT_STAGE"

func TestMain(m *testing.M) {
	if stage := os.Getenv(stageVariable); stage != "" {
		supervise(stage)
	}
	if spec := os.Getenv(keepVariable); spec != "" {
		keepSupervise(spec)
	}
	os.Exit(testenv.Main(m))
}

// hang waits to be killed. With a timer: where nothing else could run, Go takes an empty
// select for a deadlock and ends the process.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

// supervise starts a run as far as stage, says the pid of PID 1, and hangs.
func supervise(stage string) {
	p, err := Start(Config{Flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Guardian: &Program{}})
	if err == nil && stage != "started" {
		err = p.Locked(limit)
	}
	if err == nil && stage == "running" {
		err = p.Exec(commandPlan("/bin/sh", "-c", "setsid sleep 1000 & trap '' TERM HUP; echo ready; while :; do sleep 1000; done"), limit)
	}
	fmt.Printf("%d %v\n", p.Pid, err)
	hang()
}

// Whenever the supervisor is killed, everything of the run is dead in moments:
// end of file on the output that all of it holds.
func TestSupervisorDeath(t *testing.T) {
	testenv.Root(t)
	for _, stage := range []string{"started", "locked", "running"} {
		t.Run(stage, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), stageVariable+"="+stage)
			stdin, err := cmd.StdinPipe() // the command's, which nobody writes to
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd.Stdout, cmd.Stderr = w, os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			out := bufio.NewReader(r)
			var pid int
			var problem string
			for want := 1 + strings.Count(stage, "running"); want > 0; want-- { // "ready", and the pid
				line, err := out.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if line != "ready\n" {
					if _, err := fmt.Sscan(line, &pid, &problem); err != nil || problem != "<nil>" {
						t.Fatalf("the supervisor says %q", line)
					}
				}
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := r.SetReadDeadline(time.Now().Add(limit)); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(out); err != nil || len(rest) != 0 {
				t.Errorf("after the supervisor's death: %q, %v", rest, err)
			}
			_ = cmd.Wait()
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds())); n != 1 {
				t.Errorf("PID 1 lives on: %d, %v", n, err)
			}
		})
	}
}

// The command's death by any way ends the run, with its descendants.
func TestCommandDeath(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		status int // exit status, or minus the signal
	}{
		"exit":                {"exit 7", 7},
		"exit leaving others": {"setsid sleep 1000 & setsid sleep 1000 & exit 0", 0},
		"signal":              {"kill -SEGV $$", -int(unix.SIGSEGV)},
		"kill":                {"kill -KILL $$", -int(unix.SIGKILL)},
		"orphans reaped":      {"i=0; while [ $i -lt 50 ]; do (true &); i=$((i+1)); done; exit 3", 3},
	} {
		t.Run(name, func(t *testing.T) {
			p, out := born(t, &Program{})
			if err := p.Locked(limit); err != nil {
				t.Fatal(err)
			}
			if err := p.Exec(commandPlan("/bin/sh", "-c", c.script), limit); err != nil {
				t.Fatal(err)
			}
			exit, err := p.Wait()
			if err != nil {
				t.Fatal(err)
			}
			got := exit.Status.ExitStatus()
			if exit.Status.Signaled() {
				got = -int(exit.Status.Signal())
			}
			if got != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if err := out.SetReadDeadline(time.Now().Add(limit)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(out); err != nil {
				t.Errorf("something of the run lives on: %v", err)
			}
		})
	}
}

// The usage of the command and of the children that it waited for is told.
func TestExitUsage(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(commandPlan("/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"), limit); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.User <= 0 || exit.User > limit {
		t.Errorf("%+v, %v", exit, err)
	}
}

// A PID 1 that is killed takes the run along, and Wait says that it died.
func TestPID1Killed(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.Exec(commandPlan("/bin/sh", "-c", "sleep 1000"), limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(int(p.PidFD.Fd()), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != ErrDied {
		t.Errorf("%v", err)
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Error(err)
	}
}

// Killed at any point before it is locked down, PID 1 is said to have died, and not to have failed at something.
func TestPID1KilledAtBirth(t *testing.T) {
	for range 20 {
		p, _ := born(t, &Program{})
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Locked(limit); err != nil && err != ErrDied { // nil: it had said so before
			t.Errorf("%v", err)
		}
	}
}

// Killed between its birth and execve, the command is said to have died.
func TestCommandKilledBeforeExec(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(int(p.Command.Fd()), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || exit.Status.Signal() != unix.SIGKILL {
		t.Errorf("%+v, %v", exit, err)
	}
	if err := p.Exec(commandPlan("/bin/true"), limit); err == nil {
		t.Error("a dead command ran")
	}
}

// What Start refuses leaves nothing behind; TestMain counts the descriptors.
func TestStartFails(t *testing.T) {
	testenv.Root(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	notACgroup, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer notACgroup.Close()
	p, err := Start(Config{Cgroup: notACgroup, Flags: unix.CLONE_NEWPID, Stdin: null, Stdout: null, Stderr: null, Guardian: &Program{}})
	if err == nil || p != nil || !strings.Contains(err.Error(), "clone3 of the run's first process") {
		t.Errorf("%+v, %v", p, err)
	}
}

// A PID 1 that is killed before there is a PID 2 is another thing than one that can make none: it is what
// some kernels do to a birth from a cgroup that was killed once.
func TestLockedTellsDeaths(t *testing.T) {
	for script, died := range map[string]bool{"kill -KILL $$": true, "exit 1": false} {
		p := &Process{plan: &Program{}}
		var theirs *os.File
		var err error
		if p.life, theirs, err = socketpair("lifeline"); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.ExtraFiles = []*os.File{theirs}
		err = cmd.Start()
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		p.Pid = cmd.Process.Pid
		var birth *BirthError
		if err := p.Locked(limit); errors.Is(err, ErrDied) != died || errors.As(err, &birth) == died {
			t.Errorf("%s: %v", script, err)
		}
		_ = cmd.Wait() // the status is the script's
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWriteProgram(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 20 { // runs that begin at once
		all.Go(func() {
			f, err := writeProgram(dir + "/init")
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	all.Wait()
	f, err := writeProgram(dir + "/init")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || string(got) != string(program) {
		t.Errorf("%d bytes of %d, %v", len(got), len(program), err)
	}
	if _, err := f.Write([]byte{0}); err == nil {
		t.Error("the program can be written")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
	if f, err := writeProgram("/nowhere/init"); err == nil {
		f.Close()
		t.Error("written to nowhere")
	}
}

// No process can change what init was given: not the program, not a plan.
func TestSealedMemfd(t *testing.T) {
	f, err := sealedMemfd("x", []byte("content"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("X"), 0); err == nil {
		t.Error("written")
	}
	if err := f.Truncate(1); err == nil {
		t.Error("cut")
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("sealed again")
	}
}
