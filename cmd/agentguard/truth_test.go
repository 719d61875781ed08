package main

import (
	"archive/tar"
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
			// From Linux 7.0 on a busy CPU skips programs, and the verdict is rightly incomplete.
			// Then another run is compared, and at last such a one: it may lack what it says to lack.
			got, skipped := facts(nil), true
			for try := 0; skipped && try < 5; try++ {
				must(t, os.RemoveAll(dir))
				fill(t, dir)
				got, skipped = recorded(t, dir, command)
			}
			if skipped {
				got.lacking(want)
			}
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

// lacking adds what an incomplete record has too little of: only what it has too much is wrong.
func (f facts) lacking(want facts) {
	for fact, n := range want {
		f[fact] = max(f[fact], n)
	}
}

// recorded runs the command in a sandbox. It reports as well whether the record is
// incomplete for the one reason that the kernel has skipped programs.
func recorded(t *testing.T, dir, command string) (facts, bool) {
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
	got, skips, others := facts{}, uint64(0), 0
	var e trace.Event
	rd := trace.NewReader(f)
	for {
		err := rd.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got.record(&e)
		switch {
		case e.Kind != trace.KindLoss:
		case e.Loss.Cause == "recursion":
			skips += e.Loss.Count
		default:
			others++
		}
	}
	verdict, why := rd.Report().Judge()
	skipped := verdict == trace.Incomplete && skips > 0 && others == 0
	if verdict != trace.Complete && !skipped {
		t.Errorf("%s %v", verdict, why)
	}
	if skipped {
		t.Logf("%d times the kernel has skipped programs: %v", skips, why)
	}
	return got, skipped
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
