package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

var updateScores = flag.Bool("update-scores", false, "write docs/evasion.md")

// evasion is one way to do something without a true record of it.
type evasion struct {
	number  int    // of the list in docs/evasion.md
	program string // below testdata/evasion
	attempt string
	outcome string // recorded, refused, or marked: recorded with a word on what cannot be known
	holds   string // what the record says
	check   func(r *evidence) error
}

// evidence is the record of one run, and what the program printed.
type evidence struct {
	dir    string
	out    string
	raw    string
	events []trace.Event
	last   trace.Judgement
}

// find returns the command's events of a kind for which f holds.
func (r *evidence) find(kind trace.Kind, f func(e *trace.Event) bool) []trace.Event {
	var out []trace.Event
	for _, e := range r.events {
		if e.Kind == kind && e.Phase == trace.PhaseCommand && (f == nil || f(&e)) {
			out = append(out, e)
		}
	}
	return out
}

// want is nil where something was found.
func want(what string, found []trace.Event) error {
	if len(found) == 0 {
		return errors.New("not in the record: " + what)
	}
	return nil
}

func at(path string) func(*trace.Event) bool {
	return func(e *trace.Event) bool { return string(e.Path) == path }
}

func refused(syscall string) func(*trace.Event) bool {
	return func(e *trace.Event) bool { return e.Verdict == trace.VerdictDeny && e.Syscall == syscall }
}

func argument(s string) func(*trace.Event) bool {
	return func(e *trace.Event) bool {
		return slices.ContainsFunc(e.Argv, func(a []byte) bool { return bytes.Contains(a, []byte(s)) })
	}
}

// TestEvasions runs every program of testdata/evasion in a sandbox and holds its
// record against what docs/evasion.md says of it.
func TestEvasions(t *testing.T) {
	testenv.Root(t)
	if runtime.GOARCH != "amd64" {
		testenv.Missing(t, "amd64", "the programs know system calls by their numbers there")
	}
	for _, tool := range []string{"python3", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Missing(t, tool, err.Error())
		}
	}
	for _, e := range evasions {
		t.Run(strings.TrimSuffix(e.program, filepath.Ext(e.program)), func(t *testing.T) {
			r := attempt(t, e.program)
			if err := e.check(r); err != nil {
				t.Errorf("%v\n%s", err, r.raw[max(0, len(r.raw)-20000):])
			}
			if r.last != trace.Complete && e.program != "flood.py" { // that one may lose records: it must say how many
				t.Errorf("the record is %s", r.last)
			}
		})
	}
}

// attempt runs a program of the corpus in a directory of its own.
func attempt(t *testing.T, program string) *evidence {
	t.Helper()
	root, err := os.MkdirTemp("", "agentguard-evasion-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	must(t, os.Chmod(root, 0o755))
	r := &evidence{dir: filepath.Join(root, "w")}
	must(t, os.Mkdir(r.dir, 0o755))
	source, err := filepath.Abs("../../testdata/evasion/" + program)
	must(t, err)
	command := []string{"/usr/bin/python3", filepath.Join(r.dir, program)}
	if strings.HasSuffix(program, ".c") {
		command = []string{filepath.Join(r.dir, "prog")}
		if out, err := exec.Command("gcc", "-O1", "-pthread", "-o", command[0], source).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	} else {
		text, err := os.ReadFile(source)
		must(t, err)
		must(t, os.WriteFile(command[1], text, 0o644))
	}
	secret, err := os.Open("/etc/shadow") // a descriptor that must not reach the command
	must(t, err)
	defer secret.Close()
	state, mode := t.TempDir(), "rw"
	if program == "held.py" {
		mode = "cow"
	}
	cmd := exec.Command(agentguard(), append([]string{"exec", "-q", "--state", state, "--mode", mode, "-w", r.dir, "--"}, command...)...)
	cmd.Dir, cmd.ExtraFiles = r.dir, []*os.File{secret}
	var out bytes.Buffer
	cmd.Stdout = &out
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() != 125) {
		t.Fatalf("agentguard: %v", err)
	}
	r.out = out.String()
	r.read(t, state)
	return r
}

func (r *evidence) read(t *testing.T, state string) {
	t.Helper()
	records, err := filepath.Glob(state + "/runs/*/trace.jsonl")
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	raw, err := os.ReadFile(records[0])
	must(t, err)
	r.raw = string(raw)
	rd := trace.NewReader(bytes.NewReader(raw))
	for {
		var e trace.Event
		err := rd.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		for _, b := range []*[]byte{&e.Path, &e.PathGiven, &e.To, &e.Script, &e.Interp, &e.Name} {
			*b = bytes.Clone(*b)
		}
		e.Argv, e.Env = cloneAll(e.Argv), cloneAll(e.Env)
		r.events = append(r.events, e)
	}
	r.last, _ = rd.Report().Judge()
}

func cloneAll(list [][]byte) [][]byte {
	out := make([][]byte, len(list))
	for i, b := range list {
		out[i] = bytes.Clone(b)
	}
	return out
}

// TestEvasionScores holds docs/evasion.md and the corpus together.
func TestEvasionScores(t *testing.T) {
	const name = "../../docs/evasion.md"
	want := scores()
	if *updateScores {
		must(t, os.WriteFile(name, []byte(want), 0o644))
	}
	have, err := os.ReadFile(name)
	must(t, err)
	if string(have) != want {
		t.Error("docs/evasion.md is not what the tests check: go test ./cmd/agentguard -run EvasionScores -update-scores")
	}
	programs, err := filepath.Glob("../../testdata/evasion/*")
	must(t, err)
	for _, p := range programs {
		if !slices.ContainsFunc(evasions, func(e evasion) bool { return e.program == filepath.Base(p) }) {
			t.Errorf("%s is run by no test", p)
		}
	}
}

func scores() string {
	var b strings.Builder
	numbers := map[int]bool{}
	for _, e := range evasions {
		numbers[e.number] = true
	}
	fmt.Fprintf(&b, `# Ways around a record, and what ours holds

Each line is a program in testdata/evasion that CI runs in a sandbox (TestEvasions), and what its record must say; this page is
written by the same test. **recorded**: the act is in the record, by the kernel's own objects. **refused**: it did not happen, and
the denial is in the record. **marked**: the act is in the record, with a word (a source, a length) on what could not be known.

%d of %d ways have a program, %d programs in all.

| | attempt | outcome | what the record holds | program |
|---|---|---|---|---|
`, len(numbers), ways, len(evasions))
	for _, e := range evasions {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", e.number, e.attempt, e.outcome, e.holds, e.program)
	}
	b.WriteString(`
Where the kernel skips a program all the same (28, by nesting), it is counted (recursion_misses) and makes the record incomplete.

Weak points, in words: where fentry programs do not load (the start record's tier), names of unlink, rename and the like are the
caller's own text (path_source: user), and a thread that rewrites its memory at the right moment is believed. The same is true of an
open by one of several threads that loses its descriptor to dup2 before it returns (fd-exit; what would tell, a program in every open of
the host, is not worth its price: decision 0021), of descriptors that come with a message, and of the names of ACLs.

Acts can be invented. A process may put a seccomp filter of its own before its calls (browsers and file(1) do), and such a filter can answer one with
any errno, success too, without making it: an unlink that was never made is then recorded with path_source user, as one that was and as a refusal that was none.
What the record says of the outcome of calls behind such a filter has ` + "`filtered`" + `: the kernel does not say which of them it made.
Nothing is hidden so: what a process does is what the kernel makes. Programs, connections, opened and mapped files are objects of the kernel,
and cannot be invented. The summary's counts say whether seccomp or prctl was called at all.
`)
	return b.String()
}

// ways is how many the list has: 29 that are known from other tools' records, and one of our own.
const ways = 30

func (r *evidence) in(name string) string { return filepath.Join(r.dir, name) }

// lines of the program's output, each as its numbers.
func (r *evidence) numbers() [][]uint64 {
	var out [][]uint64
	for line := range strings.Lines(r.out) {
		var row []uint64
		for _, f := range strings.Fields(line) {
			n, _ := strconv.ParseUint(f, 10, 64)
			row = append(row, n)
		}
		out = append(out, row)
	}
	return out
}

func deny(kind trace.Kind, names ...string) func(*evidence) error {
	return func(r *evidence) error {
		for _, name := range names {
			if err := want("refused "+name, r.find(kind, refused(name))); err != nil {
				return err
			}
		}
		return nil
	}
}
