package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/supervisor"
)

// What a command could do to the first process of its run, which has its own uid, and
// to its own rights. The calls of a debugger are granted in one round: then no filter stands before
// the kernel's own rules.
func TestUserNSFirstProcess(t *testing.T) {
	l := alone(t)
	probe := filepath.Join(programs(), "probe")
	debugger := filepath.Join(l.home, "debugger.yaml")
	l.write(debugger, "sandbox: {process: {seccomp_allow: [ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd]}}\n")
	for _, policy := range [][]string{nil, {"-p", debugger, "-w", l.work}} {
		args := append(append([]string{"exec", "-q", "--mode", "ro", "--ro", probe}, policy...), "--", "sh", "-c", probe+" first; echo alive; "+probe+" caps")
		out, errs, status := l.guard(args...)
		if status != 0 || !strings.Contains(out, "\nalive\n") || strings.Count(out, "EPERM") < 10 {
			t.Fatalf("%v: %d %q %q", policy, status, out, errs)
		}
		before, rest, _ := strings.Cut(out, "\nalive\n")
		for line := range strings.Lines(before) {
			name, answer, _ := strings.Cut(strings.TrimSpace(line), ": ")
			signal := slices.Contains([]string{"kill", "stop", "tgkill", "pidfd_send_signal"}, name) // before Linux 6.12 it is taken, and nothing comes of it
			if answer != "EPERM" && answer != "ENOENT" && !(signal && answer == "ok") {
				t.Errorf("%v: %s", policy, line)
			}
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
			if !strings.Contains(rest, set+": 0000000000000000\n") {
				t.Errorf("%v: %s is not empty: %q", policy, set, rest)
			}
		}
	}
	out, _, _ := l.guard("exec", "-q", "--mode", "ro", "--", "sh", "-c", "unshare -U true; unshare -n true; unshare -m true; nsenter -t 1 -n true; echo done")
	if out != "done\n" {
		t.Errorf("%q", out)
	}
}

func (l *loner) write(name, text string) {
	l.t.Helper()
	if err := errors.Join(os.WriteFile(name, []byte(text), 0o644), os.Chown(name, l.uid(), lonerGID)); err != nil {
		l.t.Fatal(err)
	}
}

// other runs a command as the same user, outside of all runs.
func (l *loner) other(argv ...string) (out, errs string, status int) {
	l.t.Helper()
	return l.finish(l.as(argv...))
}

// Where a part of /proc is hidden, as in a container, the run is refused; when that is accepted, it is
// shown the /proc around it: names of processes, and nothing of what is in them. The supervisor, which
// holds the rights over the run's namespaces, is among them, with the same uid.
func TestUserNSHiddenProc(t *testing.T) {
	l := alone(t)
	hidden := func(args ...string) (string, string, int) {
		const script = `mount --bind /dev/null /proc/keys && exec setpriv --reuid "$1" --regid "$2" --clear-groups "$0" "${@:3}"`
		cmd := l.as(append([]string{"bash", "-c", script, args[0], strconv.Itoa(l.uid()), strconv.Itoa(lonerGID)}, args[1:]...)...)
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		cmd.Env = append(cmd.Env, "CANARY_SECRET=of-the-caller")
		return l.finish(cmd)
	}
	if out, errs, status := hidden(agentguard(), "exec", "--mode", "ro", "--", "true"); status != 125 || !strings.Contains(errs, "/proc/keys") || !strings.Contains(errs, "--allow-gap process.proc") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	const look = `for p in /proc/[0-9]*; do
	[ $p = /proc/self ] || [ "$(readlink $p/ns/pid)" = "$(readlink /proc/self/ns/pid)" ] && continue
	for f in environ maps mem; do [ "$(head -c 1 $p/$f | wc -c)" = 0 ] || echo $p/$f; done
	for f in root cwd exe ns/user fd/0; do readlink $p/$f && echo $p/$f; done
done 2>/dev/null; echo looked; cat /proc/[0-9]*/comm | grep -c agentguard`
	out, errs, status := hidden(agentguard(), "exec", "-q", "--allow-gap", "process.proc", "--mode", "ro", "--", "sh", "-c", look)
	if number, ok := strings.CutPrefix(out, "looked\n"); !ok || status != 0 || number == "0\n" {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

// The supervisor dies at every step of a start and of an end; nothing is left of it.
func TestUserNSKilledAnywhere(t *testing.T) {
	l := alone(t)
	before := map[string]bool{} // of a test that was killed, with the same uid
	for _, path := range l.places(t) {
		before[path] = true
	}
	steps := 24
	if testing.Short() {
		steps = 8
	}
	for i := range steps {
		cmd := l.as(agentguard(), "exec", "-q", "--", "sh", "-c", "echo x >file; sleep 0.003")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // a different step each time, whatever the machine
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		l.until("all of it is dead", func() bool { return len(l.processes()) == 0 })
	}
	if r := l.result("--", "true"); r.Status != 0 {
		t.Errorf("%+v", r)
	}
	if exists(filepath.Join(l.work, "file")) {
		t.Error("a staged change is on the host")
	}
	for _, path := range l.places(t) {
		if !before[path] {
			t.Errorf("left behind: %s", path)
		}
	}
}

// places are what the user has in the directories where a run may leave something.
func (l *loner) places(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"/tmp", "/dev/shm", l.home} {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			path := filepath.Join(dir, e.Name())
			if info, err := e.Info(); err == nil && info.Sys().(*syscall.Stat_t).Uid == uint32(l.uid()) && !slices.Contains([]string{"work", ".local", "result.json"}, e.Name()) && path != l.home {
				all = append(all, path)
			}
		}
	}
	return all
}

// Whoever sets the variable by which the entry reports gets a refusal, and no loop, no run, and
// no other descriptor than those he has.
func TestUserNSForgedEntry(t *testing.T) {
	l := alone(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "mine"), os.NewFile(uintptr(fds[1]), "theirs")
	defer mine.Close()
	defer theirs.Close()
	for text, want := range map[string]string{
		"":                                   "", // nothing that Enter writes: entered as ever
		"no":                                 "",
		"0000000000000000-1":                 "",
		"0000000000000000-99":                "",
		"00000000000000000-3":                "",
		"0000000000000000-3":                 "is not this process's own",
		"0000000100000000-3":                 "unshare(CLONE_NEWUSER|CLONE_NEWNS)",
		"000b000100000000-3":                 "a security module",
		"fffe000100000000-3":                 "what came back was not Enter's",
		"ffff000b00000000-3":                 "a process could not be made",
		"0000000000000000-3\x00A=B":          "",
		"-3":                                 "",
		strings.Repeat("0", 16) + "-" + "-3": "",
	} {
		if strings.Contains(text, "\x00") {
			continue // execve takes no such text
		}
		cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "echo", "ran")
		cmd.Env = append(cmd.Env, "AGENTGUARD_ENTERED="+text)
		cmd.ExtraFiles = []*os.File{theirs}
		out, errs, status := l.finish(cmd)
		switch {
		case want == "" && (out != "ran\n" || status != 0):
			t.Errorf("%q: %d %q %q", text, status, out, errs)
		case want != "" && (out != "" || status != 125 || !strings.Contains(errs, want)):
			t.Errorf("%q: %d %q %q", text, status, out, errs)
		}
	}
}

// Root of the host never enters: with the same variable it is root as ever.
func TestForgedEntryOfRoot(t *testing.T) {
	testenv.Root(t)
	if !supervisor.HostRoot() {
		testenv.Missing(t, "root", "this root is of a user namespace")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "mine"), os.NewFile(uintptr(fds[1]), "theirs")
	defer mine.Close()
	defer theirs.Close()
	for _, text := range []string{"0000000000000000-3", "0000000100000000-3"} {
		cmd := exec.Command(agentguard(), "exec", "-q", "--mode", "ro", "--state", t.TempDir(), "--json", "-", "--", "true")
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "AGENTGUARD_ENTERED="+text)
		cmd.ExtraFiles = []*os.File{theirs}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte(`"mode":"root"`)) {
			t.Errorf("%s: %v %s", text, err, out)
		}
	}
}

// The streams and descriptors that the caller has, or has not, come through the entry as
// they are.
func TestUserNSDescriptors(t *testing.T) {
	l := alone(t)
	result := filepath.Join(l.home, "fd.json")
	l.write(result, "")
	f, err := os.OpenFile(result, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--json", "fd:3", "--", "sh", "-c", "ls /proc/self/fd | wc -l")
	cmd.ExtraFiles = []*os.File{f}
	if out, errs, status := l.finish(cmd); strings.TrimSpace(out) != "4" || status != 0 { // 0, 1, 2 and the directory
		t.Errorf("%d %q %q", status, out, errs)
	}
	if b, err := os.ReadFile(result); err != nil || !bytes.Contains(b, []byte(`"mode":"userns"`)) {
		t.Errorf("%v %q", err, b)
	}
	for _, closed := range []string{"<&-", ">&-", "2>&-", "<&- >&- 2>&-"} {
		touched := filepath.Join(l.work, "touched")
		out, errs, status := l.other("sh", "-c", "exec "+agentguard()+" exec -q --mode rw -- sh -c 'cat; echo out; echo err >&2; echo x >touched' "+closed)
		if status != 0 || !exists(touched) {
			t.Errorf("%s: %d %q %q", closed, status, out, errs)
		}
		_ = os.Remove(touched)
	}
}

// Whatever name and arguments the caller starts the program with, it comes back as itself.
func TestUserNSArguments(t *testing.T) {
	l := alone(t)
	for _, name := range []string{"", "-", "enter", "agentguard-enter", "/no/such", "e"} {
		cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "echo", "-n", "", "a b", "$(x)")
		cmd.Args[0] = name
		if out, errs, status := l.finish(cmd); out != " a b $(x)" || status != 0 {
			t.Errorf("%q: %d %q %q", name, status, out, errs)
		}
	}
}
