package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

// codeOf is a codeRecord that holds no execve: the host's root is the run's.
func codeOf(t *testing.T) (*codeRecord, *bytes.Buffer) {
	t.Helper()
	testenv.Root(t)
	s, err := runs.OpenState(filepath.Join(publicDir(t), "state"), os.Getuid())
	must(t, err)
	dir, err := s.Create("run")
	must(t, err)
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	w := codewatch.New(codewatch.Config{Limits: codewatch.DefaultLimits, Store: &codeStore{run: dir}})
	t.Cleanup(func() { must(t, w.Release(), w.Close(), root.Close(), dir.Close(), s.Close()) })
	var out bytes.Buffer
	return &codeRecord{
		watch: w, w: trace.NewWriter(&out, trace.Options{}), root: root,
		plan: &Plan{}, asked: map[codeKey]bool{}, told: map[codeKey]*codewatch.File{}, scripts: map[uint32]string{},
	}, &out
}

// codeEvent is an event about a file of the host, as the sensor tells it.
func codeEvent(t *testing.T, kind trace.Kind, pid uint32, name string, argv ...string) trace.Event {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	e := trace.Event{
		Kind: kind, Phase: trace.PhaseCommand, Mono: bootTime(), Proc: trace.Proc{Pid: pid, Start: 5}, Path: []byte(name), PathSource: trace.PathKernel,
		DevMajor: unix.Major(st.Dev), DevMinor: unix.Minor(st.Dev), Ino: st.Ino, Ctime: st.Ctim.Nano(), Access: "r",
	}
	for _, a := range argv {
		e.Argv = append(e.Argv, []byte(a))
	}
	return e
}

// told sees events one after the other and returns the code records.
func toldOf(t *testing.T, c *codeRecord, out *bytes.Buffer, events ...*trace.Event) []trace.Event {
	t.Helper()
	for _, e := range events {
		c.see(e)
		if left := c.watch.Wait(); left != 0 {
			t.Fatalf("%d are left", left)
		}
	}
	must(t, c.w.Flush())
	list := readBack(t, out)
	for i := range list {
		if list[i].Kind != trace.KindCode || list[i].Proc.Start != 5 {
			t.Errorf("%+v", list[i])
		}
	}
	return list
}

func TestCodeOncePerVersion(t *testing.T) {
	c, out := codeOf(t)
	name := mkfile(t, filepath.Join(publicDir(t), "lib"), "one", 0o755, 0, 0)
	first, again := codeEvent(t, trace.KindMmapExec, 1, name), codeEvent(t, trace.KindMmapExec, 2, name)
	list := toldOf(t, c, out, &first, &again)
	one := only(t, list)
	if one.SHA256 != digest([]byte("one")) || string(one.Name) != one.SHA256 || one.HashState != "ok" || one.Proc.Pid != 1 || string(one.Path) != name || one.Ctime != first.Ctime || one.Bytes != 3 {
		t.Errorf("%+v", one)
	}
	if first.SHA256 != "" || again.SHA256 != one.SHA256 || again.HashState != "ok" {
		t.Errorf("the first mapping has digest %q, the second %q", first.SHA256, again.SHA256)
	}
	nextTick(t)
	must(t, os.WriteFile(name, []byte("two"), 0))
	old := first // of a version that is not there any more
	old.Ctime--
	now := codeEvent(t, trace.KindMmapExec, 3, name)
	list = toldOf(t, c, out, &old, &now)
	if len(list) != 2 || list[0].HashState != "raced" || list[0].Ctime != old.Ctime || list[1].SHA256 != digest([]byte("two")) || list[1].HashState != "ok" {
		t.Errorf("%+v", list)
	}
}

// What could not be looked at is asked for again when it runs again.
func TestCodeMissed(t *testing.T) {
	c, out := codeOf(t)
	name := mkfile(t, filepath.Join(publicDir(t), "prog"), "x", 0o755, 0, 0)
	gone := codeEvent(t, trace.KindExec, 1, name, "prog")
	there := gone
	gone.Path = []byte(name + ".gone")
	list := toldOf(t, c, out, &gone, &there)
	if len(list) != 2 || list[0].HashState != "raced" || list[0].SHA256 != "" || list[1].HashState != "ok" {
		t.Errorf("%+v", list)
	}
	for _, e := range []trace.Event{{Kind: trace.KindMmapExec, Phase: trace.PhaseCommand, Ino: 4}, {Kind: trace.KindMmapExec, Phase: trace.PhaseEnvelope, Path: []byte("/bin/sh"), Ino: 4}} {
		if list := toldOf(t, c, out, &e); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	}
}

func TestCodeOfInterpreters(t *testing.T) {
	c, out := codeOf(t)
	dir := publicDir(t)
	script, other := mkfile(t, filepath.Join(dir, "s.sh"), "exit 1\n", 0o644, 0, 0), mkfile(t, filepath.Join(dir, "data"), "data", 0o644, 0, 0)
	sh, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	run, text := codeEvent(t, trace.KindExec, 1, sh, "sh", "-e", "./s.sh"), codeEvent(t, trace.KindExec, 2, sh, "sh", "-c", "exit 2")
	data, open, twice := codeEvent(t, trace.KindOpen, 1, other), codeEvent(t, trace.KindOpen, 1, script), codeEvent(t, trace.KindOpen, 1, script)
	foreign, refused := codeEvent(t, trace.KindOpen, 2, script), codeEvent(t, trace.KindOpen, 1, script)
	refused.Verdict = trace.VerdictDeny
	list := toldOf(t, c, out, &run, &text, &data, &foreign, &refused, &open, &twice)
	var sums []string
	for _, e := range list {
		sums = append(sums, e.SHA256)
	}
	want := []string{digest(must1(os.ReadFile(sh))), digest([]byte("exit 2")), digest([]byte("exit 1\n"))}
	if !slices.Equal(sums, want) {
		t.Errorf("%d records: %q, want %q", len(list), sums, want)
	}
	if list[1].Path != nil || string(list[1].Name) != want[1] || list[1].Ino != 0 || open.Ctime == 0 || data.Ctime != 0 {
		t.Errorf("text: %+v", list[1])
	}
	exit := trace.Event{Kind: trace.KindExit, Phase: trace.PhaseCommand, Proc: trace.Proc{Pid: 1}}
	c.scripts[1] = "x"
	if c.see(&exit); len(c.scripts) != 0 {
		t.Error("a dead process is remembered")
	}
}

func must1(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestNamed(t *testing.T) {
	for _, c := range []struct {
		path, given, arg string
		want             bool
	}{
		{"/w/s.sh", "", "/w/s.sh", true},
		{"/w/s.sh", "./s.sh", "./s.sh", true},
		{"/w/s.sh", "/w/s.sh", "s.sh", true}, // python makes it absolute
		{"/w/sub/s.sh", "", "sub/../sub/s.sh", true},
		{"/w/real.sh", "link.sh", "link.sh", true},
		{"/w/xs.sh", "", "s.sh", false},
		{"/w/s.sh.d", "", "s.sh", false},
		{"", "", "s.sh", false},
		{"/w/s.sh", "", "..", false},
	} {
		e := trace.Event{Path: []byte(c.path), PathGiven: []byte(c.given)}
		if got := named(&e, c.arg); got != c.want {
			t.Errorf("%q (%q) for %q: %v", c.path, c.given, c.arg, got)
		}
	}
}

// A run without a record hashes nothing, and says nothing.
func TestNoCode(t *testing.T) {
	var c *codeRecord
	e := trace.Event{Kind: trace.KindExec, Phase: trace.PhaseCommand}
	c.see(&e)
	c.release(zerolog.Nop())
	c.stop(zerolog.Nop())
	if c.end() != nil || c.counts() != nil {
		t.Error("something is said")
	}
}

// What the summary says when the watch is not what the plan took it for.
func TestCodeFindings(t *testing.T) {
	c, _ := codeOf(t)
	if got := c.end(); got != nil {
		t.Errorf("%q", got)
	}
	c.missing = "code: not held"
	if got := c.end(); len(got) != 1 || !strings.HasPrefix(got[0], "code: not held") {
		t.Errorf("%q", got)
	}
}

// Of two threads that execute a script each, the record does not say one's digest for the other's.
func TestOnlyScript(t *testing.T) {
	one, two := &codewatch.File{SHA256: "1", Script: true}, &codewatch.File{SHA256: "2", Script: true}
	sh := &codewatch.File{SHA256: "3"}
	for want, lists := range map[string][][]*codewatch.File{
		"":  {nil, {sh}, {one, two, sh}, {two, sh, one, sh}},
		"1": {{one, sh}, {sh, one, sh, sh}},
	} {
		for _, files := range lists {
			if got := onlyScript(files); got != want {
				t.Errorf("%v: %q, want %q", files, got, want)
			}
		}
	}
}
