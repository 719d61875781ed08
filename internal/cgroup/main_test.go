package cgroup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A child of the tests is this binary again, with the name of an act in this variable.
const actVariable = "AGENTGUARD_CGROUP_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		acts[act]()
		os.Exit(0)
	}
	os.Exit(testenv.Main(m))
}

var acts = map[string]func(){
	"delegated":  func() { tell(useDelegated) },
	"with child": tellWithChild,
	"abandon":    func() { tell(abandonDelegated) },
	"sweep":      func() { tell(sweepDelegated) },
	// wait lives until its standard input ends.
	"wait": func() {
		fmt.Println("here")
		_, _ = io.Copy(io.Discard, os.Stdin)
	},
	// hog takes memory until it is killed.
	"hog": func() {
		for kept := [][]byte{}; len(kept) < 1<<10; {
			kept = append(kept, bytes.Repeat([]byte{1}, 1<<20))
		}
		fmt.Println("took 1 GiB")
	},
	// spin uses 50 ms of CPU.
	"spin": func() {
		for {
			var u unix.Rusage
			if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil || u.Utime.Nano()+u.Stime.Nano() > 50e6 {
				return
			}
		}
	},
}

// testParent makes a parent of the test's own and removes it at the end.
func testParent(t testing.TB) *Parent {
	t.Helper()
	testenv.Root(t)
	l := detect(t)
	p, err := l.Parent(testenv.CgroupName())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeParent(t, p) })
	return p
}

func detect(t testing.TB) Layout {
	t.Helper()
	l, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	if l.Unified == "" {
		testenv.Missing(t, "cgroup", "no cgroup v2 hierarchy is mounted")
	}
	return l
}

func removeParent(t testing.TB, p *Parent) {
	t.Helper()
	ids, err := p.ids()
	if err != nil {
		t.Error(err)
	}
	for _, id := range ids { // of this process, which Sweep leaves alone
		endLeaf(t, p.leaf(id))
	}
	for _, dir := range []string{p.V1[Memory], p.V1[Pids], p.Path} {
		if dir == "" {
			continue
		}
		if err := removeDir(dir, time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
	}
}

// need ends the test when the controller cannot limit runs here.
func (p *Parent) need(t testing.TB, controller string) {
	t.Helper()
	for _, c := range p.Missing {
		if c == controller {
			testenv.Missing(t, "cgroup", "no "+controller+" controller")
		}
	}
}

func newLeaf(t testing.TB, p *Parent, lim Limits) *Leaf {
	t.Helper()
	l, err := p.New("r"+strconv.FormatInt(time.Now().UnixNano(), 36), lim, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endLeaf(t, l) })
	return l
}

func endLeaf(t testing.TB, l *Leaf) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := l.Kill(ctx); err != nil {
		t.Error(err)
	}
	if err := l.Remove(2 * time.Minute); err != nil {
		t.Error(err)
	}
}

// born returns a command that is born into the v2 leaf and joins the v1
// hierarchies before it becomes argv. The shell has one thread: "tasks" of v1
// moves the writing thread only.
func born(t testing.TB, l *Leaf, argv ...string) *exec.Cmd {
	t.Helper()
	files, err := l.JoinFiles(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	script := ""
	for i := range files {
		script += fmt.Sprintf("echo 0 >&%d && exec %d>&- && ", 3+i, 3+i)
	}
	cmd := exec.Command("sh", append([]string{"-c", script + `exec "$0" "$@"`}, argv...)...)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.Dir().Fd())}
	return cmd
}

// act returns a command for the named act in the leaf.
func act(t testing.TB, l *Leaf, name string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := born(t, l, exe)
	cmd.Env = append(os.Environ(), actVariable+"="+name)
	return cmd
}

// startWaiting starts the act "wait" and returns when it runs.
func startWaiting(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("here\n"))); err != nil {
		t.Fatal("the child did not start: ", err)
	}
}

// cgroupsOf returns a process's cgroups by controller, "" for v2.
func cgroupsOf(t testing.TB, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, c := range strings.Split(f[1], ",") {
			all[c] = f[2]
		}
	}
	return all
}

func content(t testing.TB, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
