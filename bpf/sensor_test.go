package bpf

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func calls(s Stats, nr int) CallCount {
	for _, c := range s.Calls {
		if c.NR == nr {
			return c
		}
	}
	return CallCount{NR: nr}
}

func ofType(events []Event, kind Type) []Event {
	return slices.DeleteFunc(slices.Clone(events), func(ev Event) bool { return ev.Type != kind })
}

func TestCallsAreCountedExactly(t *testing.T) {
	h := sharedHost(t)
	const n = 100000
	_, stats := h.observe(h.open(), RunConfig{}, "getppid", strconv.Itoa(n))
	checkCount(t, stats, calls(stats, unix.SYS_GETPPID).Calls, n)
	if c := calls(stats, unix.SYS_GETPPID); c.Errors != 0 {
		t.Errorf("counted %+v", c)
	}
}

// checkCount says that got is want, or that the record admits what it lacks:
// kernels that preempt tracepoints skip programs, more so in an emulated machine.
func checkCount(t *testing.T, s Stats, got, want uint64) {
	t.Helper()
	if got > want || got+s.Missed < want {
		t.Errorf("counted %d of %d, %d missed", got, want, s.Missed)
	}
	mayMiss(t, s)
}

// mayMiss says that a kernel has skipped programs which does not preempt tracepoints.
func mayMiss(t testing.TB, s Stats) {
	t.Helper()
	if s.Missed == 0 {
		return
	}
	if double, err := preemptsTracepoints(); err != nil || !double {
		t.Errorf("%d programs were skipped by a kernel that does not preempt tracepoints", s.Missed)
	}
}

func TestBytesAndErrorsAreCounted(t *testing.T) {
	h := sharedHost(t)
	_, stats := h.observe(h.open(), RunConfig{}, "bytes")
	for nr, want := range map[int]CallCount{
		unix.SYS_WRITEV:   {Calls: 1000, Bytes: 4096000},
		unix.SYS_READV:    {Calls: 1000, Bytes: 4096000},
		unix.SYS_PWRITE64: {Calls: 1000, Errors: 1000},
	} {
		got := calls(stats, nr)
		checkCount(t, stats, got.Calls, want.Calls)
		if stats.Missed == 0 && (got.Errors != want.Errors || got.Bytes != want.Bytes) {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	}
}

// What makes a file smaller takes nothing off what was written.
func TestHolesAreNotCounted(t *testing.T) {
	h := sharedHost(t)
	_, stats := h.observe(h.open(), RunConfig{}, "holes")
	if stats.Missed == 0 && stats.FileBytes != 1000+8192 {
		t.Errorf("counted %d bytes", stats.FileBytes)
	}
}

func TestExecRecordsTheKernelsArguments(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for _, lengths := range [][]string{{"3"}, {"8192"}, {"100000"}, {"20000", "60000", "40000"}, {"100000", "100000"}} {
		t.Run(strings.Join(lengths, "+"), func(t *testing.T) {
			events, _ := h.observe(p, RunConfig{}, "exec", lengths...)
			checkExec(t, events, lengths)
		})
	}
}

func checkExec(t *testing.T, events []Event, lengths []string) {
	t.Helper()
	var want []byte
	for i, arg := range append([]string{""}, lengths...) {
		n, _ := strconv.Atoi(arg)
		if i == 0 {
			want = append(want, "/proc/self/exe\x00"...)
			continue
		}
		want = append(append(want, bytes.Repeat([]byte{'a' + byte(i) - 1}, n)...), 0)
	}
	execs := ofType(events, Exec)
	if len(execs) != 2 {
		t.Fatalf("%d exec events, want 2", len(execs))
	}
	ev := execs[1]
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		t.Fatal(err)
	}
	if string(ev.Exec.File) != "/proc/self/exe" || ev.Exec.Dev != st.Dev || ev.Exec.Inode != st.Ino {
		t.Errorf("executed %q %x:%d, want %x:%d", ev.Exec.File, ev.Exec.Dev, ev.Exec.Inode, st.Dev, st.Ino)
	}
	if int(ev.Exec.ArgsLen) != len(want) || int(ev.Exec.Argc) != len(lengths)+1 {
		t.Errorf("argc %d, %d bytes, want %d, %d", ev.Exec.Argc, ev.Exec.ArgsLen, len(lengths)+1, len(want))
	}
	got := slices.Clone(ev.Exec.Args)
	for _, more := range ofType(events, ExecArgs) {
		if more.TGID != ev.TGID || int(more.Exec.Offset) != len(got) {
			t.Fatalf("part at %d, want %d", more.Exec.Offset, len(got))
		}
		got = append(got, more.Exec.Args...)
	}
	recorded := min(len(want), 128<<10)
	if !bytes.Equal(got, want[:recorded]) {
		t.Errorf("%d bytes of arguments, want %d of %d", len(got), recorded, len(want))
	}
	if cut := ev.Flags&Truncated != 0; cut != (recorded < len(want)) {
		t.Errorf("truncated is %v", cut)
	}
	fails := ofType(events, ExecFail)
	if len(fails) != 1 || string(fails[0].Call.Path) != "/nonexistent/program" || fails[0].Ret != -int64(unix.ENOENT) || fails[0].NR != unix.SYS_EXECVE {
		t.Errorf("exec failures: %+v", fails)
	}
}

// Who was born, ran and ended can be followed by (TGID, Start) alone. After the
// end come at most the counts of other threads than the one that told it: they had
// left before it, and were interrupted on their way.
func TestProcessTree(t *testing.T) {
	h := sharedHost(t)
	events, _ := h.observe(h.open(), RunConfig{}, "exec", "1")
	type proc struct {
		tgid  uint32
		start uint64
	}
	born := map[proc]bool{}
	for _, ev := range ofType(events, Fork) {
		if ev.Flags&Thread == 0 {
			born[proc{ev.Fork.TGID, ev.Fork.Start}] = true
		}
	}
	if len(born) < 2 {
		t.Errorf("%d processes, want 2 or more", len(born))
	}
	ended := map[proc]uint32{}
	for _, ev := range events {
		p := proc{ev.TGID, ev.Start}
		if teller, ok := ended[p]; ev.Type != Fork && !born[p] && (!ok || ev.Type != Repeat || ev.TID == teller) {
			t.Errorf("event of an unknown process: %s", describe(&ev))
		}
		if ev.Type == Exit {
			delete(born, p)
			ended[p] = ev.TID
		}
	}
	if len(born) != 0 {
		t.Errorf("processes without an end: %v", born)
	}
}

func TestExitStatus(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for _, test := range []struct {
		act  string
		arg  string
		want string
	}{{"exit", "7", "exited 7"}, {"exit", "0", "exited 0"}, {"kill", "", "signal killed"}} {
		events, _ := h.complete(func() ([]Event, Stats) {
			rec := h.start(p, RunConfig{})
			act(rec.leaf, test.act, test.arg).Run()
			return rec.finish(t)
		})
		exits := ofType(events, Exit)
		if len(exits) != 1 {
			logAll(t, events)
			t.Fatalf("%s: %d exit events", test.act, len(exits))
		}
		status := exits[0].Exit.Status
		got := fmt.Sprint("exited ", status.ExitStatus())
		if status.Signaled() {
			got = "signal " + status.Signal().String()
		}
		if got != test.want {
			t.Errorf("%s %s: %s, want %s", test.act, test.arg, got, test.want)
		}
		if e := exits[0].Exit; e.MaxRSS < 1<<20 || e.Runtime == 0 {
			t.Errorf("usage %+v", e)
		}
	}
}

func TestThreadsEndOnce(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for range 20 {
		events, stats := h.observe(p, RunConfig{}, "threads")
		threads := 0
		for _, ev := range ofType(events, Fork) {
			if ev.Flags&Thread != 0 {
				threads++
			}
		}
		checkCount(t, stats, uint64(len(ofType(events, Exit))), 1)
		checkCount(t, stats, stats.ThreadExits, uint64(threads))
		if threads < 16 && stats.Missed == 0 {
			t.Errorf("%d threads born, %+v", threads, stats.Classes)
		}
		if t.Failed() {
			logAll(t, events)
		}
	}
}

func TestRefusedCallsAreRecorded(t *testing.T) {
	h := sharedHost(t)
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode()&0o001 == 0 {
			if err := os.Chmod(d, st.Mode()|0o001); err != nil {
				t.Fatal(err)
			}
		}
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	events, _ := h.observe(h.open(), RunConfig{}, "files", dir)
	var got []string
	for _, ev := range ofType(events, Deny) {
		if ev.Flags != 0 || ev.Class != Verdict || ev.Phase != Command {
			t.Errorf("flags %d class %d phase %d", ev.Flags, ev.Class, ev.Phase)
		}
		got = append(got, fmt.Sprintf("%d %d %s %s", ev.NR, ev.Ret, ev.Call.Path, ev.Call.Path2))
	}
	want := []string{
		fmt.Sprintf("%d -13 %s ", unix.SYS_OPENAT, secret),
		fmt.Sprintf("%d -13 %s/new ", unix.SYS_MKDIRAT, dir),
		fmt.Sprintf("%d -13 %s %s/other", unix.SYS_RENAMEAT, secret, dir),
	}
	if !slices.Equal(got, want) {
		t.Errorf("refused:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What seccomp refuses never enters the call, but it leaves it.
func TestSeccompRefusalsAreRecorded(t *testing.T) {
	h := sharedHost(t)
	events, stats := h.observe(h.open(), RunConfig{}, "seccomp")
	denials := ofType(events, Deny)
	if len(denials) != 2 {
		t.Fatalf("%d denials, want getppid and 1000", len(denials))
	}
	if ev := denials[0]; ev.NR != unix.SYS_GETPPID || ev.Ret != -int64(unix.EPERM) || ev.Call.Args != [6]uint64{11, 12, 13, 14, 15, 16} {
		t.Errorf("getppid: %s", describe(&ev))
	}
	if ev := denials[1]; ev.NR != 1000 || ev.Ret != -int64(unix.ENOSYS) {
		t.Errorf("1000: %s", describe(&ev))
	}
	if c := calls(stats, unix.SYS_CLONE3); c.Errors != 1 {
		t.Errorf("clone3 is not counted: %+v", c)
	}
	if c := calls(stats, callCount-1); c.Calls != 1 {
		t.Errorf("the call 1000 is not counted: %+v", c)
	}
}

// Pid 1 of the sandbox, before and after the command, is not the command.
func TestPhase(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	events, stats := h.complete(func() ([]Event, Stats) {
		rec := h.start(p, RunConfig{})
		cmd := act(rec.leaf, "init")
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return rec.finish(t)
	})
	checkCount(t, stats, calls(stats, unix.SYS_GETPPID).Calls, 50)
	for _, ev := range ofType(events, Exec) {
		if want := Phase(min(ev.Exec.NSPID-1, 1)); ev.Phase != want {
			t.Errorf("exec by pid %d is in phase %d", ev.Exec.NSPID, ev.Phase)
		}
	}
	if n := len(ofType(events, Exec)); n != 2 {
		t.Errorf("%d exec events, want 2", n)
	}
}

// A cgroup below the leaf is the same run.
func TestNestedCgroup(t *testing.T) {
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{})
	out, err := act(rec.leaf, "nested", rec.leaf.Name()).Output()
	if err != nil || string(out) != "tcp4 1\n" {
		t.Fatalf("%q %v", out, err)
	}
	_, stats := rec.finish(t)
	checkCount(t, stats, calls(stats, unix.SYS_GETPPID).Calls, 77)
	if err := removeCgroup(filepath.Join(rec.leaf.Name(), "sub")); err != nil {
		t.Error(err)
	}
}

func TestOutsideIsNotRecorded(t *testing.T) {
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{})
	if err := exec.Command("/bin/true").Run(); err != nil {
		t.Fatal(err)
	}
	events, stats := rec.finish(t)
	if len(events) != 0 || len(stats.Calls) != 0 {
		t.Errorf("recorded %d events, %d calls of nobody", len(events), len(stats.Calls))
	}
}
