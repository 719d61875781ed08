//go:build linux

package notify_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
)

// programs are what a command does that wants the record to be wrong, by name. The
// victim "program" executes the test binary, or what argument 0 names, as one of them.
var programs = map[string]func(args []string){
	"failed":  failsAndMoves,
	"again":   executesItself,
	"leaves":  leavesAThread,
	"hides":   func([]string) { must(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)); acts() },
	"unseen":  func([]string) { acts() },
	"nowhere": failsBehindLinks,
}

func runProgram(args []string) {
	must(unix.Exec(args[0], append([]string{"program"}, args[1:]...), []string{roleEnv + "=program"}))
}

// acts does what is told: it is refused something, connects, and has a child execute.
func acts() {
	fmt.Println(call(unix.SYS_SWAPON, cstring("/dev/swap"), 0, 0))
	fmt.Println(call(unix.SYS_CONNECT, ^uintptr(0), 0, 0))
	p, err := os.StartProcess("/bin/true", []string{"true", "child"}, &os.ProcAttr{})
	must(err)
	_, err = p.Wait()
	must(err)
}

// self are fields of /proc/self/stat, by proc_pid_stat(5).
func self(id string) (f [60]uint64) {
	b, err := os.ReadFile("/proc/" + id + "/stat")
	must(err)
	for i, word := range strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) {
		if n, err := strconv.ParseUint(word, 10, 64); err == nil {
			f[3+i] = n
		}
	}
	return f
}

// moveImage is prctl(PR_SET_MM, PR_SET_MM_MAP): it sets where /proc says that the stack and
// the arguments begin.
func moveImage(stack, args uint64) unix.Errno {
	f := self("self")
	brk, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0)
	m := struct { // struct prctl_mm_map
		startCode, endCode, startData, endData, startBrk, brk, stack, args, argsEnd, env, envEnd, auxv uint64
		auxvSize, exe                                                                                  uint32
	}{f[26], f[27], f[45], f[46], f[47], uint64(brk), stack, args, max(args+8, f[49]), f[50], f[51], 0, 0, ^uint32(0)}
	_, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0, 0)
	return errno
}

// failsAndMoves is a program whose execve fails, and which then looks like another.
func failsAndMoves([]string) {
	argv := []uintptr{cstring("make"), 8}
	fmt.Println(call(unix.SYS_EXECVE, cstring("/bin/true"), uintptr(unsafe.Pointer(&argv[0])), 0))
	f := self("self")
	fmt.Println(moveImage(f[28]-64, f[48]+1))
}

// executesItself is a program that executes itself, and then looks as if it had not.
func executesItself(args []string) {
	if len(args) == 0 {
		f := self("self")
		must(unix.Exec("/proc/self/exe", []string{"second", "again", fmt.Sprint(f[28]), fmt.Sprint(f[48])}, []string{roleEnv + "=program"}))
	}
	stack, err := strconv.ParseUint(args[0], 10, 64)
	must(err)
	at, err := strconv.ParseUint(args[1], 10, 64)
	must(err)
	fmt.Println(moveImage(stack, at))
}

// leavesAThread ends its first thread; another one executes a program.
func leavesAThread([]string) {
	go func() {
		runtime.LockOSThread()
		for {
			b, err := os.ReadFile("/proc/self/stat")
			must(err)
			if strings.Contains(string(b), ") Z") {
				break
			}
		}
		fmt.Println(call(unix.SYS_SWAPON, cstring("/dev/swap"), 0, 0))
		must(unix.Exec("/bin/true", []string{"true", "by a thread"}, nil))
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // does not return
}

// failsBehindLinks fails to execute files that are there, and are not there for who looks
// from outside.
func failsBehindLinks([]string) {
	fd, err := unix.Open("/bin/true", unix.O_RDONLY, 0)
	must(err)
	must(unix.Dup3(fd, 177, 0))
	argv := []uintptr{8}
	for _, path := range []string{"/proc/self/fd/177", "/dev/fd/177", "/proc/self/exe", "/nowhere/../bin/true", "/bin//missing/"} {
		fmt.Println(call(unix.SYS_EXECVE, cstring(path), uintptr(unsafe.Pointer(&argv[0])), 0))
	}
}

// hidden copies the test binary to where uid may execute it, with a mode.
func hidden(t *testing.T, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentguard-notify-")
	must(err)
	t.Cleanup(func() { must(os.RemoveAll(dir)) })
	must(os.Chmod(dir, 0o755))
	in, err := os.Open("/proc/self/exe")
	must(err)
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, "program"), os.O_WRONLY|os.O_CREATE, 0o755)
	must(err)
	_, err = io.Copy(out, in)
	must(err)
	must(out.Close())
	must(os.Chmod(out.Name(), mode))
	return out.Name()
}

// Where its stack and its arguments lie is not for a program to choose: neither does an
// execve that failed look like one that did not, nor the other way.
func TestMovedImage(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "program", "/proc/self/exe", "failed")
		if e := w.exec(t, "make"); e.Outcome != notify.Failed || w.text != fmt.Sprintln(unix.EFAULT)+fmt.Sprintln(unix.EPERM) {
			t.Errorf("one that failed: %+v\n%s", e, &w)
		}
		wantRefused(t, &w, unix.SYS_PRCTL, unix.PR_SET_MM)
		w = watch(t, uid, nil, "program", "/proc/self/exe", "again")
		if e := w.exec(t, "second"); e.Outcome != notify.Done || w.text != fmt.Sprintln(unix.EPERM) {
			t.Errorf("one that succeeded: %+v\n%s", e, &w)
		}
		wantRefused(t, &w, unix.SYS_PRCTL, unix.PR_SET_MM)
	})
}

func wantRefused(t *testing.T, w *watched, nr int, arg uint64) {
	t.Helper()
	for _, e := range w.of(notify.Refused) {
		if e.NR == nr && e.Args[0] == arg && e.Errno == unix.EPERM {
			return
		}
	}
	t.Errorf("call %d(%d) was not told to be refused\n%s", nr, arg, w)
}

// A program that cannot be looked at is the command all the same, and what it does is told
// in its order.
func TestHiddenProgram(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		for how, file := range map[string]string{"hides": "/proc/self/exe", "unseen": hidden(t, 0o111)} {
			w := watch(t, uid, nil, "program", file, how)
			var order []string
			for _, e := range w.events {
				switch {
				case e.Launcher:
					t.Errorf("%s: of the launcher: %+v", how, e)
				case e.Type == notify.Exec && len(e.Argv) == 2:
					order = append(order, string(e.Argv[0])+" "+string(e.Argv[1]))
				case e.Type == notify.Refused:
					order = append(order, "refused")
				case e.Type == notify.Connect:
					order = append(order, "connect")
				}
			}
			if got := strings.Join(order, ", "); !strings.HasPrefix(got, "program "+how+", refused, connect") {
				t.Errorf("%s: %s\n%s", how, got, &w)
			}
		}
	})
}

// A process goes on when its first thread has ended, and executes.
func TestFirstThreadEnds(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "program", "/proc/self/exe", "leaves")
		if e := w.exec(t, "program"); e.Outcome != notify.Done {
			t.Errorf("%+v", e)
		}
		if e := w.exec(t, "true"); e.Outcome != notify.Done || len(e.Argv) != 2 || e.TID == e.PID {
			t.Errorf("%+v", e)
		}
		wantRefused(t, &w, unix.SYS_SWAPON, w.of(notify.Refused)[0].Args[0])
	})
}

// Why an execve failed is not said of paths that lead elsewhere for who looks.
func TestWhyItFailed(t *testing.T) {
	w := watch(t, os.Getuid(), nil, "program", "/proc/self/exe", "nowhere")
	got := map[string]unix.Errno{}
	for _, e := range w.of(notify.Exec) {
		if e.Outcome == notify.Failed {
			got[string(e.Path)] = e.Errno
		}
	}
	want := map[string]unix.Errno{"/proc/self/fd/177": 0, "/dev/fd/177": 0, "/proc/self/exe": 0, "/nowhere/../bin/true": unix.ENOENT, "/bin//missing/": unix.ENOENT}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v\n%s", got, want, &w)
	}
}
