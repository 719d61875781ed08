package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// detectLayout is where this host's cgroups are.
func detectLayout(t *testing.T) cgroup.Layout {
	t.Helper()
	layout, err := cgroup.Detect()
	must(t, err)
	if layout.Unified == "" {
		testenv.Missing(t, "cgroup", "no cgroup v2 hierarchy is mounted")
	}
	return layout
}

// testLeaf makes a cgroup of the test's own.
func testLeaf(t *testing.T, l cgroup.Limits) *cgroup.Leaf {
	t.Helper()
	testenv.Root(t)
	parent, err := detectLayout(t).Parent(testenv.CgroupName())
	must(t, err)
	t.Cleanup(func() {
		for _, d := range append([]string{parent.Path}, parent.V1["memory"], parent.V1["pids"]) {
			if d != "" {
				_ = unix.Rmdir(d)
			}
		}
	})
	leaf, err := parent.New("x", l, 0)
	must(t, err)
	t.Cleanup(func() { must(t, leaf.Kill(context.Background()), leaf.Remove(patience)) }) // a test that failed may leave tasks
	return leaf
}

// watched is a watcher whose command is a shell of the test's in a leaf, which
// has set its traps: the test stands in for PID 1.
type watched struct {
	*watcher
	out     *bufio.Reader
	signals chan os.Signal
	cmd     *exec.Cmd
}

func watchScript(t *testing.T, limits Limits, traps, script string) *watched {
	t.Helper()
	r := testRun(t)
	r.leaf = testLeaf(t, cgroup.Limits{})
	r.plan.Limits = limits
	cmd := exec.Command("/bin/sh", "-c", traps+"\necho ready\n"+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, PidFD: new(int), UseCgroupFD: true, CgroupFD: int(r.leaf.Dir().Fd())}
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	w := &watched{&watcher{r: r, ended: make(chan exited, 1), begun: time.Now(), grace: patience, asked: map[unix.Signal]int{}}, bufio.NewReader(out), make(chan os.Signal, 4), cmd}
	r.cfg.Signals = w.signals
	r.proc = &initproc.Process{Command: os.NewFile(uintptr(*cmd.SysProcAttr.PidFD), "pidfd")}
	t.Cleanup(func() { must(t, r.proc.Close()) })
	w.expect(t, "ready")
	return w
}

func (w *watched) expect(t *testing.T, want string) {
	t.Helper()
	got, err := w.out.ReadString('\n')
	if err != nil || got != want+"\n" {
		t.Errorf("the command says %q, %v, want %q", got, err, want)
	}
}

// loop watches to the end, within the tests' patience.
func (w *watched) loop(t *testing.T, ctx context.Context) exited {
	t.Helper()
	go func() {
		_, _ = io.Copy(io.Discard, w.out)
		_ = w.cmd.Wait()
		status := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
		e := exited{exit: initproc.Exit{Status: status}}
		if status.Signaled() && status.Signal() == unix.SIGKILL {
			e.err = initproc.ErrDied
		}
		w.ended <- e
	}()
	var end exited
	inTime(t, "the watch", func() { end = w.watcher.loop(ctx) })
	return end
}

var noLimits = Limits{Wall: -1, CPU: -1, Memory: -1, Output: -1}

func TestWatchEnd(t *testing.T) {
	w := watchScript(t, noLimits, "", "exit 7")
	if end := w.loop(t, t.Context()); end.reason != "" || end.exit.Status.ExitStatus() != 7 || end.err != nil || end.after <= 0 {
		t.Errorf("%+v", end)
	}
	w = watchScript(t, noLimits, "", "kill -KILL $$")
	if end := w.loop(t, t.Context()); end.reason != "" || !errors.Is(end.err, initproc.ErrDied) {
		t.Errorf("killed, and no limit is to blame: %+v", end)
	}
}

// The wall limit asks first, and then kills all of the cgroup.
func TestWatchWall(t *testing.T) {
	limits := noLimits
	limits.Wall = int64(50 * time.Millisecond)
	w := watchScript(t, limits, "", "sleep 1000")
	if end := w.loop(t, t.Context()); end.reason != runs.ReasonWall || end.exit.Status.Signal() != unix.SIGTERM {
		t.Errorf("%+v", end)
	}
	w = watchScript(t, limits, "trap '' TERM", "setsid sleep 1000 & while :; do sleep 1000; done")
	w.grace = Grace
	end := w.loop(t, t.Context())
	if end.reason != runs.ReasonWall || !errors.Is(end.err, initproc.ErrDied) || end.after < Grace {
		t.Errorf("deaf: %+v", end)
	}
}

// CPU time of the whole cgroup counts, and no grace is given.
func TestWatchCPU(t *testing.T) {
	limits := noLimits
	limits.CPU = int64(100 * time.Millisecond)
	w := watchScript(t, limits, "trap '' TERM", "(while :; do :; done) & (while :; do :; done) & wait")
	end := w.loop(t, t.Context())
	if end.reason != runs.ReasonCPU || !errors.Is(end.err, initproc.ErrDied) {
		t.Errorf("%+v", end)
	}
	user, system, err := w.r.leaf.CPU()
	if err != nil || user+system < 100*time.Millisecond {
		t.Errorf("killed after %v, %v", user+system, err)
	}
}

func TestWatchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := watchScript(t, noLimits, "", "sleep 1000")
	cancel()
	if end := w.loop(t, ctx); end.reason != runs.ReasonError || end.exit.Status.Signal() != unix.SIGTERM {
		t.Errorf("%+v", end)
	}
}

// Signals reach the command's process group; what it does with them is its own
// affair, until the second of a kind that asks it to end.
func TestWatchForwards(t *testing.T) {
	w := watchScript(t, noLimits, "trap 'echo usr1' USR1; trap 'echo int' INT; trap 'echo term' TERM", "while :; do sleep 0.01; done")
	w.signals <- unix.SIGUSR1
	done := make(chan exited, 1)
	heard := make(chan string, 100)
	go func() {
		for {
			line, err := w.out.ReadString('\n')
			if err != nil {
				break
			}
			heard <- line
		}
		_ = w.cmd.Wait()
		w.ended <- exited{exit: initproc.Exit{Status: w.cmd.ProcessState.Sys().(syscall.WaitStatus)}}
	}()
	go func() { done <- w.watcher.loop(t.Context()) }()
	var asked time.Time // just before the first that has it killed in time
	for _, step := range []struct {
		hear string
		send unix.Signal
	}{{"usr1\n", unix.SIGINT}, {"int\n", unix.SIGTERM}, {"term\n", unix.SIGTERM}} {
		select {
		case got := <-heard:
			if got != step.hear {
				t.Errorf("heard %q, want %q", got, step.hear)
			}
		case <-time.After(patience):
			t.Fatalf("never heard %q", step.hear)
		}
		if step.send == unix.SIGTERM && asked.IsZero() {
			asked = time.Now()
		}
		w.signals <- step.send // the second that asks to end is the last
	}
	select {
	case end := <-done:
		if s := end.exit.Status; end.reason != "" || w.begun.Add(end.after).Sub(asked) >= 5*Grace || s.Signal() != unix.SIGKILL {
			t.Errorf("%+v", end)
		}
	case <-time.After(patience):
		t.Error("a second request to end does nothing")
	}
}

// What is flushed in time survives the supervisor.
func TestWatchFlushes(t *testing.T) {
	w := watchScript(t, noLimits, "", "sleep 1000")
	e := denied(unix.SYS_MOUNT, unix.EPERM)
	must(t, w.r.rec.event(&e))
	if len(w.r.events(t)) != 0 {
		t.Error("written without a flush: the test shows nothing")
	}
	done := make(chan exited, 1)
	go func() { done <- w.watcher.loop(t.Context()) }()
	for deadline := time.Now().Add(patience); len(w.r.events(t)) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the record is not flushed while the command lives")
		}
	}
	w.end(runs.ReasonError, 0)
	_ = w.cmd.Wait()
	w.ended <- exited{}
	<-done
}
