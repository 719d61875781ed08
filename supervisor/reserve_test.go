package supervisor

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// reserve makes one that the test does not leave behind.
func reserve(t *testing.T) *Reserve {
	t.Helper()
	testenv.Root(t)
	withReserve(t, nil, t.TempDir(), "true") // the first run of a host makes mounts of its own, and a reserve of before is stale then
	v, err := NewReserve()
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

// withReserve runs a shell command that has a reserve, and returns the result and what it
// printed to either stream.
func withReserve(t *testing.T, v *Reserve, state, script string, change ...func(*Config)) (*Result, string, string) {
	t.Helper()
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: MemTotal(), Cwd: publicDir(t)}))
	must(t, err)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer out.Close()
	errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
	must(t, err)
	defer errs.Close()
	cfg := Config{Policy: p, Argv: []string{"/bin/sh", "-c", script}, StateDir: state, Stdout: out, Stderr: errs, Reserve: v}
	for _, c := range change {
		c(&cfg)
	}
	res, err := Execute(context.Background(), cfg)
	must(t, err)
	o, err := os.ReadFile(out.Name())
	must(t, err)
	e, err := os.ReadFile(errs.Name())
	must(t, err)
	if res.Record.Verdict != string(trace.Complete) {
		if !skippedOnly(t, res.Record.Path) {
			t.Errorf("the record is %s: %v", res.Record.Verdict, res.Record.Findings)
		}
		t.Logf("the kernel has skipped programs: %v", res.Record.Findings)
	}
	return res, string(o), string(e)
}

// skippedOnly reports whether all that a record lacks is what the kernel did not run a
// program for: from Linux 7.0 on it does so on a busy CPU, and the verdict is rightly incomplete.
func skippedOnly(t *testing.T, dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, runs.TraceFile))
	must(t, err)
	causes := regexp.MustCompile(`"lost_cause":"(\w+)"`).FindAllSubmatch(b, -1)
	for _, m := range causes {
		t.Logf("lost: %s", m[1])
	}
	return len(causes) > 0 && !slices.ContainsFunc(causes, func(m [][]byte) bool { return string(m[1]) != "recursion" })
}

// nothingOf checks that nothing of a reserve is there any more.
func nothingOf(t *testing.T, r *Run) {
	t.Helper()
	for _, name := range []string{lockPath(runtimeDir(), r.lease), r.leaf.Path} {
		if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// A run has the processes of its reserve, with the streams and limits that it asks for.
func TestReserveIsUsed(t *testing.T) {
	v := reserve(t)
	r := v.r
	pid := r.proc.Pid
	res, out, errs := withReserve(t, v, t.TempDir(), "echo out; echo err >&2; read line || echo end; exit 7")
	if res.Status != 7 || out != "out\nend\n" || errs != "err\n" {
		t.Errorf("status %d, %q, %q", res.Status, out, errs)
	}
	if r.proc != nil || pid == 0 || strings.HasPrefix(res.ID, reservePrefix) || r.id != res.ID {
		t.Errorf("the run %s is not that of the reserve %s", res.ID, r.id)
	}
	nothingOf(t, r)
	if v.take() != nil {
		t.Error("a reserve serves two runs")
	}
	_, out, _ = withReserve(t, v, t.TempDir(), "echo again") // without one
	if out != "again\n" {
		t.Errorf("%q", out)
	}
}

// One file is one stream: what is written last comes last. And the command inherits what
// it would have from this process.
func TestReserveStreamsAndInheritance(t *testing.T) {
	v := reserve(t)
	runtime.LockOSThread() // the nice value is a thread's, which the run reads from where it is called
	defer runtime.UnlockOSThread()
	old, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	must(t, err)
	if old >= 20 { // the raw call returns 20 - nice
		must(t, unix.Setpriority(unix.PRIO_PROCESS, 0, 3))
		defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-old) }()
	}
	res, out, _ := withReserve(t, v, t.TempDir(), "for i in 1 2 3; do echo $i; echo -$i >&2; done; nice; cat /proc/self/oom_score_adj; cat", func(c *Config) {
		c.Stderr = c.Stdout
		c.Policy.Stdin.Value = "null"
	})
	want := "1\n-1\n2\n-2\n3\n-3\n"
	if !strings.HasPrefix(out, want) || res.Stdout.Bytes != uint64(len(out)) {
		t.Errorf("%q, %d bytes are kept", out, res.Stdout.Bytes)
	}
	if rest := strings.Fields(strings.TrimPrefix(out, want)); len(rest) != 2 || rest[0] == "0" || rest[1] != itoa(max(score(t), 0)) {
		t.Errorf("nice value and OOM score %v", rest)
	}
}

func score(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	must(t, err)
	n := 0
	for _, c := range strings.TrimSpace(string(b)) {
		if c == '-' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// What is not what it was, or does not fit, is given back, and the run starts without.
func TestReserveIsStale(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, v *Reserve, c *Config){
		"a mount": func(t *testing.T, _ *Reserve, _ *Config) {
			dir := t.TempDir()
			must(t, unix.Mount("none", dir, "tmpfs", 0, ""))
			t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		},
		"the programs": func(t *testing.T, v *Reserve, _ *Config) { must(t, v.r.sensor.Close()) },
		"part of the leaf": func(t *testing.T, v *Reserve, _ *Config) {
			for _, dir := range v.r.leaf.V1 { // nobody is in there yet; none on pure v2
				must(t, unix.Rmdir(dir))
			}
		},
		"a process": func(t *testing.T, v *Reserve, _ *Config) {
			must(t, v.r.proc.Kill())
			for v.r.proc.Alive() { // its end is known
				time.Sleep(time.Millisecond)
			}
		},
		"a throttle": func(_ *testing.T, _ *Reserve, c *Config) { c.Policy.OnLoss.Value = "throttle" },
		"a ring":     func(_ *testing.T, _ *Reserve, c *Config) { c.ringBytes = 1 << 18 },
	} {
		t.Run(name, func(t *testing.T) {
			v := reserve(t)
			r := v.r
			res, out, _ := withReserve(t, v, t.TempDir(), "echo done", func(c *Config) { change(t, v, c) })
			if res.Status != 0 || out != "done\n" {
				t.Errorf("status %d, %q", res.Status, out)
			}
			if r.id == res.ID && (name != "part of the leaf" || len(r.leaf.V1) > 0) {
				t.Error("the run went on with the reserve")
			}
			nothingOf(t, r)
		})
	}
}

// A key that was replaced while the reserve waited signs nothing.
func TestReserveAndKey(t *testing.T) {
	v, state := reserve(t), t.TempDir()
	must(t, Warm())
	withReserve(t, nil, state, "true") // makes the first key
	records, err := runs.OpenState(state, os.Getuid())
	must(t, err)
	defer records.Close()
	log, err := OpenVault(Caller{}, records)
	must(t, err)
	defer log.Close()
	key, err := log.Rotate(vault.KeyName())
	must(t, err)
	newest := key.Public()
	key.Erase()
	res, _, _ := withReserve(t, v, state, "true")
	d, err := records.Open(res.ID)
	must(t, err)
	defer d.Close()
	only, err := seal.ParseKeys(newest)
	must(t, err)
	rep, err := seal.Verify(d.FS(), only, nil)
	if err != nil || rep.State != seal.Sealed || len(rep.Faults) > 0 {
		t.Errorf("with the newest key alone: %+v, %v", rep, err)
	}
}

// A reserve ends when its time is over, and when what is in it ends, but not by somebody
// who comes.
func TestReserveEnds(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	v := reserve(t)
	run := v.r
	v.Wait(r, time.Millisecond)
	nothingOf(t, run)
	v = reserve(t)
	run = v.r
	must(t, run.proc.Kill())
	v.Wait(r, time.Hour)
	nothingOf(t, run)
	v = reserve(t)
	must(t, w.Close()) // it can be read
	v.Wait(r, time.Hour)
	if v.r == nil || !v.r.proc.Alive() {
		t.Error("the reserve is not there for who comes")
	}
	run = v.r
	must(t, v.Close(), v.Close(), (*Reserve)(nil).Close())
	nothingOf(t, run)
	v.Wait(r, 0)
}

// What is in reserve does not keep a host from being released; a run does.
func TestReserveIsNotBusy(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Dir(lockPath(dir, "x")), 0o700))
	f, err := os.Create(lockPath(dir, "x"))
	must(t, err, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	defer f.Close()
	_, err = io.WriteString(f, reserveMark)
	must(t, err, idle(dir))
	must(t, f.Truncate(0))
	if err := idle(dir); err == nil {
		t.Error("a run that has just begun is not live")
	}
	must(t, bury(dir, "x", "1:2"))
	if _, err := os.Lstat(notePath(dir, reserveMark, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a note of a reserve")
	}
}
