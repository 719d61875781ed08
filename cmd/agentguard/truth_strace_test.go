package main

import (
	"bufio"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func straced(t *testing.T, dir, command string) facts {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	args := append([]string{
		"-f", "--seccomp-bpf", "-y", "-q", "-s", "4096", "-o", log,
		"-e", "trace=execve,execveat,clone,?clone3,?fork,?vfork,?open,openat,?openat2,?creat,?unlink,unlinkat,?rmdir,?rename,renameat,renameat2,connect,chdir,fchdir",
	}, alike(command)...)
	cmd := exec.Command("strace", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("strace: %v\n%s", err, out)
	}
	f, err := os.Open(log)
	must(t, err)
	defer f.Close()
	var lines []string
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 4<<20)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	must(t, scan.Err())
	return straceFacts(lines, dir)
}

// straceFacts reads the log twice: what a task does, its end too, may stand before
// the call that made it.
func straceFacts(lines []string, dir string) facts {
	first := newStraceLog(dir)
	for _, line := range lines {
		first.line(line)
	}
	s := newStraceLog(dir)
	s.threads, s.parent = first.threads, first.parent
	for _, line := range lines {
		s.line(line)
	}
	return s.facts
}

func newStraceLog(dir string) *straceLog {
	return &straceLog{
		facts: facts{}, cwd: map[string]string{}, threads: map[string]bool{}, parent: map[string]string{}, begun: map[string]string{}, start: dir,
	}
}

// The order in which strace is told of a parent and its child is the scheduler's.
func TestStraceLogInAnyOrder(t *testing.T) {
	want := facts{"exec /bin/x": 1, "thread": 1, "fork": 1, "unlink /w/d/f": 1, "unlink /w/d/e/f": 1, "unlink /w/d/g": 1, "*": 2}
	for name, log := range map[string]string{
		"parent first": `10 execve("/bin/x", ["x"], []) = 0
10 chdir("d") = 0
10 clone(flags=CLONE_VM|CLONE_THREAD) = 11
11 +++ exited with 0 +++
10 clone(flags=SIGCHLD) = 12
12 unlink("f") = 0
12 chdir("e") = 0
12 unlink("f") = 0
12 +++ exited with 0 +++
10 unlink("g") = 0
10 +++ exited with 0 +++`,
		"child first": `10 execve("/bin/x", ["x"], []) = 0
10 chdir("d") = 0
10 clone(flags=CLONE_VM|CLONE_THREAD <unfinished ...>
11 +++ exited with 0 +++
10 <... clone resumed>) = 11
10 clone(flags=SIGCHLD <unfinished ...>
12 unlink("f") = 0
12 chdir("e") = 0
10 <... clone resumed>) = 12
12 unlink("f") = 0
12 +++ exited with 0 +++
10 unlink("g") = 0
10 +++ exited with 0 +++`,
	} {
		if got := straceFacts(strings.Split(log, "\n"), "/w"); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// straceLog reads what strace -f -y wrote.
type straceLog struct {
	facts   facts
	cwd     map[string]string // by process, where it is not start
	threads map[string]bool   // tasks that are no process of their own
	parent  map[string]string // of each process
	begun   map[string]string // calls that another task interrupted
	start   string
}

var (
	straceLine = regexp.MustCompile(`^(\d+) +(.*)$`)
	straceCall = regexp.MustCompile(`^(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?(?: .*)?$`)
	straceText = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	straceDir  = regexp.MustCompile(`^(?:AT_FDCWD|\d+)<([^>]*)>`)
	straceIP   = regexp.MustCompile(`sin6?_port=htons\((\d+)\).*"([0-9a-f.:]+)"`)
	straceExit = regexp.MustCompile(`^\+\+\+ (?:exited with (\d+)|killed by (\w+).*) \+\+\+$`)
)

func (s *straceLog) line(line string) {
	m := straceLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	pid, text := m[1], m[2]
	if head, ok := strings.CutSuffix(text, " <unfinished ...>"); ok {
		s.begun[pid] = head
		return
	}
	if strings.HasPrefix(text, "<... ") {
		_, tail, _ := strings.Cut(text, " resumed>")
		text = s.begun[pid] + tail
	}
	if m := straceExit.FindStringSubmatch(text); m != nil && !s.threads[pid] {
		s.facts.add("exit "+m[1]+m[2], 1)
		return
	}
	if m := straceCall.FindStringSubmatch(text); m != nil && (m[3][0] != '-' || m[1] == "connect") {
		s.call(pid, m[1], m[2], m[3], m[4])
	}
}

// call takes one that succeeded: its arguments, its result and the path of the
// descriptor that this is.
func (s *straceLog) call(pid, name, args, ret, opened string) {
	texts := straceText.FindAllStringSubmatch(args, -1)
	text := func(i int) string {
		if i >= len(texts) {
			return ""
		}
		unquoted, err := strconv.Unquote(`"` + texts[i][1] + `"`)
		if err != nil {
			return texts[i][1]
		}
		return unquoted
	}
	switch name {
	case "execve", "execveat":
		s.facts.add("exec "+text(0), 1)
	case "clone", "clone3", "fork", "vfork":
		if strings.Contains(args, "CLONE_THREAD") {
			s.threads[ret] = true
			s.facts.add("thread", 1)
			break
		}
		s.parent[ret] = pid
		s.cwd[ret] = s.dir(ret)
		s.facts.add("fork", 1)
	case "open", "openat", "openat2", "creat":
		if strings.Contains(args, "O_WRONLY") || strings.Contains(args, "O_RDWR") || name == "creat" {
			s.facts.add("write "+opened, 1)
		}
	case "unlink", "rmdir":
		s.facts.add("unlink "+s.resolve(pid, "", text(0)), 1)
	case "unlinkat":
		s.facts.add("unlink "+s.resolve(pid, args, text(0)), 1)
	case "rename":
		s.facts.add("rename "+s.resolve(pid, "", text(0))+" "+s.resolve(pid, "", text(1)), 1)
	case "renameat", "renameat2":
		_, second, _ := strings.Cut(args, `", `)
		s.facts.add("rename "+s.resolve(pid, args, text(0))+" "+s.resolve(pid, second, text(1)), 1)
	case "connect":
		if m := straceIP.FindStringSubmatch(args); m != nil {
			s.facts.add("connect "+ipPort(m[2], m[1]), 1)
		} else if strings.Contains(args, "AF_UNIX") {
			s.facts.add("connect unix "+text(0), 1)
		}
	case "chdir":
		s.cwd[pid] = s.resolve(pid, "", text(0))
	}
}

func (s *straceLog) dir(pid string) string {
	for range 10 { // those above it may still be in the calls that made the next
		if d, ok := s.cwd[pid]; ok {
			return d
		}
		pid = s.parent[pid]
	}
	return s.start
}

// resolve makes a path absolute by the descriptor that args begin with, or by
// the current directory, which newer versions of strace print too.
func (s *straceLog) resolve(pid, args, path string) string {
	dir := s.dir(pid)
	if m := straceDir.FindStringSubmatch(args); m != nil {
		dir = m[1]
	}
	if filepath.IsAbs(path) {
		dir = ""
	}
	return filepath.Join(dir, path)
}

func ipPort(addr, port string) string {
	n, _ := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(n)).String()
}
