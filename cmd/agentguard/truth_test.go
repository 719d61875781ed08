package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

// The record against a second witness: the same program runs once under
// `strace -f` and once in a sandbox, and both must tell of the same programs,
// processes, ends, connections, files opened to be written, names removed and
// names changed, each as often.
func TestGroundTruth(t *testing.T) {
	testenv.Root(t)
	for _, tool := range []string{"strace", "python3", "gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Missing(t, tool, err.Error())
		}
	}
	often := 60
	if testing.Short() { // each fork takes the emulated machine of .ci/vm a quarter of a second
		often = 12
	}
	commands := map[string]string{
		"torture": fmt.Sprintf("/usr/bin/python3 ./torture.py . %d", often),
		"suite":   "cd project && /usr/bin/python3 -m unittest discover -q",
		"build":   "make -s -C build && build/prog",
	}
	if _, err := os.Stat("/usr/bin/npm"); err == nil && !testing.Short() { // not a Debian package that CI installs for this alone
		commands["npm"] = "cd npm && npm ci --offline --no-audit --no-fund --no-progress --logs-max=0 --cache ./cache --loglevel silent"
	}
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			dir := truthDir(t)
			want := straced(t, dir, command)
			must(t, os.RemoveAll(dir))
			fill(t, dir)
			got := recorded(t, dir, command)
			compare(t, got, want)
		})
	}
}

// facts are what happened, and how often.
type facts map[string]int

func compare(t *testing.T, got, want facts) {
	t.Helper()
	total := 0
	for _, fact := range slices.Sorted(maps.Keys(want)) {
		total += want[fact]
		if got[fact] != want[fact] {
			t.Errorf("%q: strace saw it %d times, the record has %d", fact, want[fact], got[fact])
		}
	}
	for _, fact := range slices.Sorted(maps.Keys(got)) {
		if want[fact] == 0 {
			t.Errorf("%q: the record has it %d times, strace did not see it", fact, got[fact])
		}
	}
	if total < 20 {
		t.Errorf("strace saw %d things only: %v", total, want)
	}
	t.Logf("%d things, %d different", total, len(want))
}

// truthDir is where both runs work: the names are the same.
func truthDir(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "agentguard-truth-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	must(t, os.Chmod(root, 0o755))
	dir := filepath.Join(root, "w")
	fill(t, dir)
	return dir
}

func fill(t *testing.T, dir string) {
	t.Helper()
	must(t, os.CopyFS(filepath.Join(dir, "project"), os.DirFS("../../testdata/project")))
	script, err := os.ReadFile("../../testdata/truth/torture.py")
	must(t, err)
	files := map[string]string{
		"torture.py": string(script), "script.sh": "#!/bin/sh\nexit 4\n",
		"build/Makefile": "prog: a.o b.o\n\tgcc -o $@ a.o b.o\n%.o: %.c\n\tgcc -c $<\n",
		"build/a.c":      "int f(void); int main(void) { return f(); }\n", "build/b.c": "int f(void) { return 0; }\n",
	}
	npmFiles(files)
	for name, text := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
}

// npmFiles is a program with one dependency, which comes from a file and runs
// a script when it is installed.
func npmFiles(files map[string]string) {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	tw := tar.NewWriter(zip)
	for _, f := range [][2]string{
		{"package.json", `{"name":"dep","version":"1.0.0","scripts":{"install":"true && node -e 0"}}`}, {"index.js", "module.exports = 1\n"}, {"lib/a.js", ""},
	} {
		_ = tw.WriteHeader(&tar.Header{Name: "package/" + f[0], Mode: 0o644, Size: int64(len(f[1]))}) // to memory: cannot fail
		_, _ = tw.Write([]byte(f[1]))
	}
	_, _ = tw.Close(), zip.Close()
	sum := sha512.Sum512(b.Bytes())
	files["npm/dep.tgz"] = b.String()
	files["npm/package.json"] = `{"name":"app","version":"1.0.0","dependencies":{"dep":"file:dep.tgz"}}`
	files["npm/package-lock.json"] = `{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{
		"":{"name":"app","version":"1.0.0","dependencies":{"dep":"file:dep.tgz"}},
		"node_modules/dep":{"version":"1.0.0","resolved":"file:dep.tgz","hasInstallScript":true,"integrity":"sha512-` + base64.StdEncoding.EncodeToString(sum[:]) + `"}}}`
}

// alike gives both runs one environment.
func alike(command string) []string {
	return []string{
		"/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8", "TMPDIR=/tmp", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0",
		"/bin/sh", "-c", command,
	}
}

func recorded(t *testing.T, dir, command string) facts {
	t.Helper()
	state := t.TempDir()
	cmd := exec.Command(filepath.Join(programs(), "agentguard"), append([]string{"exec", "-q", "--state", state, "--mode", "rw", "-w", dir, "--"}, alike(command)...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("agentguard: %v\n%s", err, out)
	}
	records, err := filepath.Glob(state + "/runs/*/trace.jsonl")
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	f, err := os.Open(records[0])
	must(t, err)
	defer f.Close()
	got := facts{}
	var e trace.Event
	rd := trace.NewReader(f)
	for {
		err := rd.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got.record(&e)
	}
	if verdict, why := rd.Report().Judge(); verdict != trace.Complete {
		t.Errorf("%s %v", verdict, why)
	}
	return got
}

func (f facts) record(e *trace.Event) {
	switch {
	case e.Phase != trace.PhaseCommand:
		if e.Kind == trace.KindExec && e.Proc.NSPid == 2 {
			f.add("exec "+string(e.Path), 1)
		}
		return
	case e.Kind == trace.KindExit && e.Signal != 0:
		f.add("exit "+trace.SignalName(e.Signal), 1)
		return
	case e.Kind == trace.KindExit:
		f.add("exit "+strconv.Itoa(int(e.ExitCode)), 1)
		return
	case e.Kind == trace.KindConnect && (e.Errno == 0 || e.Denied()): // one that failed was told when it was tried
		f.add("connect "+peer(e), int(e.Times()))
		return
	case e.Errno != 0:
		return
	}
	switch e.Kind {
	case trace.KindExec:
		given := e.Path
		for _, name := range [][]byte{e.Script, e.PathGiven} {
			if len(name) > 0 {
				given = name
			}
		}
		f.add("exec "+string(given), 1)
	case trace.KindFork:
		if e.Child.Pid == e.Proc.Pid {
			f.add("thread", 1)
		} else {
			f.add("fork", 1)
		}
	case trace.KindOpen, trace.KindCreate:
		if strings.Contains(e.Access, "w") {
			f.add("write "+string(e.Path), int(e.Times()))
		}
	case trace.KindUnlink:
		f.add("unlink "+filepath.Clean(string(e.Path)), 1)
	case trace.KindRename:
		f.add("rename "+filepath.Clean(string(e.Path))+" "+filepath.Clean(string(e.To)), 1)
	}
}

func peer(e *trace.Event) string {
	if e.Family == "unix" {
		return "unix " + string(e.Path)
	}
	return netip.AddrPortFrom(e.Addr, e.Port).String()
}

// random differs from run to run: names of temporary files and semaphores, ports of the kernel's choice, the name server
// (a run has none of the host's). So does whether a worker of a pool ends by itself or by the signal that says it may.
var random = regexp.MustCompile(`/cc[A-Za-z0-9]{6}|/tmp[a-z0-9_]{8}|/tmp/[a-z0-9_]{8}$|/tmp/[0-9a-f-]{36}|connect [0-9.]+:53$|sem\.[A-Za-z0-9_-]+|:[3-6][0-9]{4}$|exit (?:0|SIGTERM)$`)

func (f facts) add(fact string, n int) {
	if strings.HasSuffix(fact, "/dev/null") || strings.HasSuffix(fact, "/dev/tty") {
		return // strace itself has the terminal
	}
	f[random.ReplaceAllString(fact, "*")] += n
}

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
	s := straceLog{facts: facts{}, cwd: map[string]string{}, threads: map[string]bool{}, begun: map[string]string{}, start: dir}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		s.line(lines.Text())
	}
	must(t, lines.Err())
	return s.facts
}

// straceLog reads what strace -f -y wrote.
type straceLog struct {
	facts   facts
	cwd     map[string]string // by process, where it is not start
	threads map[string]bool   // tasks that are no process of their own
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
		s.cwd[ret] = s.dir(pid)
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
	if d, ok := s.cwd[pid]; ok {
		return d
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
