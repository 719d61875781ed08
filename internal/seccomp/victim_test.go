package seccomp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A filter cannot be taken off again, so the test binary runs itself as the
// victim: it installs a filter, makes the calls of its part, and prints
// "LABEL ERRNO" for each. The parent compares with Decide.
const victimEnv = "AGENTGUARD_SECCOMP_VICTIM"

func TestMain(m *testing.M) {
	part, victim := os.LookupEnv(victimEnv)
	if !victim {
		os.Exit(testenv.Main(m))
	}
	runtime.LockOSThread()
	victimParts[part]()
	os.Exit(0)
}

var victimParts = map[string]func(){
	"plain":      func() { makeCalls(nil) },
	"granted":    func() { makeCalls(debugger) },
	"modes":      func() { command(debugger); makeModes() },
	"modes-bare": makeModes,
	"init-exit": func() {
		install(InitFilter(), 0)
		for {
			rawCall(unix.SYS_EXIT_GROUP, [6]uint64{7})
		}
	},
	"init-write": func() {
		install(InitFilter(), 0)
		rawCall(unix.SYS_WRITE, [6]uint64{1})
	},
	"x32": func() {
		command(nil)
		rawCall(x32Bit|unix.SYS_GETPID, [6]uint64{})
	},
}

// probes are argProbes, and every call that the table refuses.
func probes() []probe {
	all := argProbes
	for _, c := range native.calls {
		if c.action == refuse || c.action == never {
			all = append(all, probe{c.name, int(c.nr), [6]uint64{none, none, none, none, none, none}, unix.EPERM})
		}
	}
	return all
}

// command installs the command's filter, and makes sure that it bites before
// anything is called that would do harm without.
func command(extra []string) {
	filter, err := Config{Extra: extra}.Filter()
	if err != nil {
		panic(err)
	}
	install(filter, unix.SECCOMP_FILTER_FLAG_TSYNC)
	if errno := rawCall(unix.SYS_IO_URING_SETUP, [6]uint64{1}); errno != unix.EPERM {
		panic(fmt.Sprintf("io_uring_setup under the filter: %v", errno))
	}
}

func makeCalls(extra []string) {
	all := probes()
	command(extra)
	for _, p := range all {
		fmt.Printf("%s\t%d\n", p.label, rawCall(p.nr, p.args))
	}
}

func install(filter []byte, flags uintptr) {
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	prog := struct {
		n      uint16
		filter unsafe.Pointer
	}{uint16(len(filter) / 8), unsafe.Pointer(&filter[0])}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		panic(errno)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func rawCall(nr int, a [6]uint64) unix.Errno {
	_, _, errno := unix.RawSyscall6(uintptr(nr), uintptr(a[0]), uintptr(a[1]), uintptr(a[2]), uintptr(a[3]), uintptr(a[4]), uintptr(a[5]))
	return errno
}

// victim runs part in a process of its own.
func victim(t *testing.T, part string) ([]byte, error) {
	t.Helper()
	return victimIn(t, part, "")
}

// victimIn runs part in the directory dir.
func victimIn(t *testing.T, part, dir string) ([]byte, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), victimEnv+"="+part)
	return cmd.Output()
}

func TestVictim(t *testing.T) {
	for part, extra := range map[string][]string{"plain": nil, "granted": debugger} {
		t.Run(part, func(t *testing.T) {
			out, err := victim(t, part)
			if err != nil {
				t.Fatalf("victim: %v\n%s", err, exitText(err))
			}
			lines := bufio.NewScanner(bytes.NewReader(out))
			for _, p := range probes() {
				if !lines.Scan() {
					t.Fatalf("the victim stopped before %s", p.label)
				}
				label, got, _ := strings.Cut(lines.Text(), "\t")
				want := Config{Extra: extra}.Decide(p.nr, p.args).Errno()
				if label != p.label || !answers(got, want) {
					t.Errorf("%s: the kernel says %s, Decide says %d for %s", label, got, want, p.label)
				}
			}
		})
	}
}

// answers reports whether the errno got can come from a filter that answers
// want: any but EPERM when it allows the call. A call that this kernel lacks
// fails with ENOSYS all the same.
func answers(got string, want unix.Errno) bool {
	if want == 0 {
		return got != fmt.Sprint(int(unix.EPERM))
	}
	return got == fmt.Sprint(int(want))
}

func exitText(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}

func TestVictimKilled(t *testing.T) {
	parts := []string{"init-write"}
	if native.x32 {
		parts = append(parts, "x32")
	}
	for _, part := range parts {
		_, err := victim(t, part)
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
			t.Errorf("%s: %v, want bad system call\n%s", part, err, exitText(err))
		}
	}
}

// Go's scheduler may take the thread in between, with calls that the filter kills for: one
// that comes to its end is enough.
func TestVictimInitMayExit(t *testing.T) {
	var err error
	for range 10 {
		_, err = victim(t, "init-exit")
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 7 {
			return
		}
	}
	t.Errorf("%v, want exit status 7\n%s", err, exitText(err))
}
