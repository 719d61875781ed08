package tally

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// start runs a script whose process is the root of a tree, and returns when the
// script has said that it is ready.
func start(t *testing.T, script string) (*Tally, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // the group, which is ours as long as it is not reaped
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	tally, err := New(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return tally, cmd
}

// until looks again until ok, for as long as a slow machine may take.
func until(t *testing.T, tally *Tally, most int64, ok func(u Use) bool) Use {
	t.Helper()
	var u Use
	var err error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if u, err = tally.Look(most); err == nil && ok(u) {
			return u
		}
	}
	t.Fatalf("%+v, %v", u, err)
	return u
}

func TestTasks(t *testing.T) {
	tally, _ := start(t, "sleep 1000 & sleep 1000 & (sleep 1000 & wait) & echo ready; wait")
	u := until(t, tally, 0, func(u Use) bool { return u.Tasks == 4 })
	if u.Memory <= 0 || u.Memory > 64<<20 {
		t.Errorf("%+v", u)
	}
}

// Memory that processes share counts once where that matters.
func TestSharedMemory(t *testing.T) {
	const script = `sh -c 'x=$(head -c 20000000 /dev/zero | tr "\000" a)
for i in 1 2 3 4; do (while :; do sleep 1000; done) & done; echo ready; wait; echo $x'`
	tally, _ := start(t, script+"; :")
	until(t, tally, 0, func(u Use) bool { return u.Tasks == 9 && u.Memory >= 5*20e6 })
	u := until(t, tally, 60e6, func(u Use) bool { return u.Memory < 60e6 })
	if u.Memory < 20e6 {
		t.Errorf("%+v", u)
	}
}

// What is in a memfd counts without being mapped, and once when it is.
func TestMemfd(t *testing.T) {
	const script = `exec python3 -c '
import mmap, os, sys
fd = os.memfd_create("x"); os.write(fd, bytes(40000000)); rest = bytes(40000000 - os.fstat(fd).st_size)
os.write(fd, rest); del rest
if os.fork() == 0:
    m = mmap.mmap(fd, 40000000); m[:]; print("ready", flush=True)
input()'`
	if _, err := exec.LookPath("python3"); err != nil {
		testenv.Missing(t, "python3", err.Error())
	}
	tally, _ := start(t, "exec 3<&0; ("+script+" <&3); :")
	for _, most := range []int64{0, 45e6} {
		u := until(t, tally, most, func(u Use) bool { return u.Tasks == 2 })
		if u.Memory < 40e6 || u.Memory > 75e6 {
			t.Errorf("%+v", u)
		}
	}
}

// CPU time stays when the process that used it is gone.
func TestCPU(t *testing.T) {
	// The shell itself reads how many ticks it has used (proc_pid_stat(5)).
	const busy = `sh -c 'n=0; while [ $n -lt 5 ]; do read -r line </proc/self/stat; set -- $line; n=$((${14} + ${15})); done'`
	tally, _ := start(t, busy+`; echo ready; sleep 1000; :`)
	u := until(t, tally, 0, func(u Use) bool { return u.Tasks == 1 })
	if u.CPU < 5*tick {
		t.Errorf("%+v", u)
	}
	if again, err := tally.Look(0); err != nil || again.CPU < u.CPU {
		t.Errorf("%+v after %+v, %v", again, u, err)
	}
}

// What ended children have written counts when they were waited for.
func TestWritten(t *testing.T) {
	dir, err := os.MkdirTemp(".", "written-") // on a disk, where there is one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tally, _ := start(t, "sh -c 'head -c 3000000 /dev/zero >"+dir+"/a; echo ready; sleep 1000; :'; :")
	tally.Writes = true
	u, err := tally.Look(0)
	if err != nil {
		t.Fatal(err)
	}
	if u.Written == 0 {
		testenv.Beyond(t, "disk", "the tests are on a file system without one, or the kernel counts no writes")
	}
	if u.Written < 3e6 || u.Written > 4e6 {
		t.Errorf("%+v", u)
	}
}

// A process that nobody waited for counts with what it had when it was last seen.
func TestSeen(t *testing.T) {
	tally := &Tally{}
	for i, c := range []struct {
		live map[process]spent
		want spent
	}{
		{map[process]spent{{1, 1}: {10, 1}, {2, 1}: {20, 2}}, spent{30, 3}},
		{map[process]spent{{2, 1}: {25, 2}}, spent{35, 3}},
		{map[process]spent{{2, 2}: {5, 1}}, spent{40, 4}}, // the number is used again
		{nil, spent{40, 4}},
	} {
		if got := tally.seen(c.live); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// Who hides is told at the second look in a row at which somebody does; the dead do not hide.
func TestHidden(t *testing.T) {
	_, cmd := start(t, "echo ready; sleep 1000; :")
	me, err := statusOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tally := &Tally{}
	for i, c := range []struct {
		p    process
		err  error
		want int
	}{
		{me.process, unix.EACCES, 0},
		{me.process, unix.EPERM, me.pid},
		{me.process, unix.ENOENT, 0},
		{me.process, unix.EACCES, 0},
		{process{me.pid, me.start + 1}, unix.EACCES, 0}, // it is gone
		{me.process, nil, 0},
	} {
		tally.hiding = nil
		if tally.refused(c.p, me.pid, c.err); tally.twice().PID != c.want {
			t.Errorf("%d: not %d", i, c.want)
		}
	}
}

func TestStop(t *testing.T) {
	tally, _ := start(t, `sleep 1000 & stopped=$!; kill -STOP $stopped; sh -c 'while :; do /bin/true; done' & echo ready; wait`)
	states := func() string {
		list, err := tally.list()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for i := range list {
			switch list[i].state {
			case 'T', 'D': // D: the parent of a vfork(2), until its child, which is stopped, goes on
				b.WriteByte(list[i].state)
			default:
				b.WriteByte('.')
			}
		}
		return b.String()
	}
	wait := func(ok func(s string) bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !ok(states()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q", states())
			}
		}
	}
	wait(func(s string) bool { return strings.Count(s, "T") == 1 && len(s) >= 2 })
	s, err := tally.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if s := states(); len(s) < 2 || strings.Trim(s, "TD") != "" {
		t.Errorf("%q go on when all were stopped", s)
	}
	before := until(t, tally, 0, func(Use) bool { return true })
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	wait(func(s string) bool { return strings.Count(s, "T") == 1 }) // the one that was stopped before
	until(t, tally, 0, func(u Use) bool { return u.CPU > before.CPU })
	if err := s.Continue(); err != nil {
		t.Errorf("twice: %v", err)
	}
}

func TestGone(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) || !Supported() {
		t.Error(err)
	}
	tally := &Tally{root: cmd.Process.Pid}
	if _, err := tally.Look(0); err == nil {
		t.Error("a dead root is looked at")
	}
	if err := (process{cmd.Process.Pid, 1}).signal(unix.SIGSTOP); err != nil {
		t.Error(err)
	}
	if _, err := tally.Stop(); err == nil {
		t.Error("a dead root's processes are stopped")
	}
}

const stat = "42 (%s) S 7 1 1 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 5 0 9999 1 2 3\n"

func TestParseStat(t *testing.T) {
	for _, name := range []string{"sh", ") R 1 (", "a b\nc", "", "42 (x) S"} {
		s, err := parseStat([]byte(strings.Replace(stat, "%s", name, 1)))
		want := status{process{42, 9999}, 'S', 7, 1200 * time.Millisecond, 70 * time.Millisecond, 5, true, 0}
		if err != nil || s != want {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	for _, text := range []string{"", "42", "42 (sh", "42 (sh)", "x (sh) S" + strings.Repeat(" 1", 20), "1 (sh) SS" + strings.Repeat(" 1", 20), "1 (sh) S" + strings.Repeat(" -1", 20)} {
		if s, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestKilobytes(t *testing.T) {
	const text = "Name:\tRssAnon: 9 kB\nRssAnon:\t   12 kB\nRssShmem:\t 3 kB\nVmSwap:\t x kB\nRssFile:\t 100 kB\n"
	if n := kilobytes([]byte(text), "RssAnon", "RssShmem", "VmSwap"); n != 15<<10 {
		t.Error(n)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(stat))
	f.Add([]byte("1 (x) S"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && (s.self < 0 || s.pid < 0) {
			t.Errorf("%+v of %q", s, b)
		}
	})
}

// Memory that is shared and of no file counts besides what is in files, and what is mapped of these once.
func TestSharedOfNone(t *testing.T) {
	const size = 20_000_000
	const both = `python3 -c '
import mmap, os
fd = os.memfd_create("x"); os.ftruncate(fd, 20000000)
a, b = mmap.mmap(fd, 20000000), mmap.mmap(-1, 20000000)
for m in (a, b):
    for at in range(0, 20000000, 4096): m[at] = 1
if %d: a.close()
if os.fork() == 0: b[0] = 2
else: print("ready", flush=True)
os.read(os.pipe()[0], 1)'; :`
	if _, err := exec.LookPath("python3"); err != nil {
		testenv.Missing(t, "python3", err.Error())
	}
	for _, unmaps := range []int{0, 1} {
		tally, _ := start(t, fmt.Sprintf(both, unmaps))
		until(t, tally, 9*size/5, func(u Use) bool { return u.Memory >= 2*size && u.Memory < 3*size })
	}
}
