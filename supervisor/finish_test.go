package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// The exit status is the promise that scripts rely on.
func TestRunStatus(t *testing.T) {
	exit := func(status int) initproc.Exit { return initproc.Exit{Status: syscall.WaitStatus(status)} }
	for _, c := range []struct {
		name   string
		end    exited
		status int
		reason string
		signal string
		core   bool
	}{
		{"success", exited{exit: exit(0)}, 0, "exit", "", false},
		{"its own status", exited{exit: exit(42 << 8)}, 42, "exit", "", false},
		{"status like one of ours", exited{exit: exit(125 << 8)}, 125, "exit", "", false},
		{"a signal", exited{exit: exit(15)}, 143, "signal", "SIGTERM", false},
		{"a core", exited{exit: exit(11 | 0x80)}, 139, "signal", "SIGSEGV", true},
		{"PID 1 was killed", exited{err: initproc.ErrDied}, 137, "signal", "SIGKILL", false},
		{"wall", exited{exit: exit(15), reason: runs.ReasonWall}, 124, "wall", "", false},
		{"wall, though it ended well", exited{exit: exit(0), reason: runs.ReasonWall}, 124, "wall", "", false},
		{"cpu", exited{err: initproc.ErrDied, reason: runs.ReasonCPU}, 137, "cpu", "", false},
		{"memory", exited{err: initproc.ErrDied, reason: runs.ReasonMemory}, 137, "memory", "", false},
		{"output", exited{err: initproc.ErrDied, reason: runs.ReasonOutput}, 137, "output", "", false},
		{"cancelled", exited{exit: exit(15), reason: runs.ReasonError}, 125, "error", "", false},
	} {
		var res runs.Result
		(&Run{}).status(&res, c.end)
		if res.Status != c.status || res.Reason != c.reason || res.Signal != c.signal || res.Core != c.core {
			t.Errorf("%s: %d %s %q core %v, want %+v", c.name, res.Status, res.Reason, res.Signal, res.Core, c)
		}
		if (res.Error != "") != (c.reason == runs.ReasonError) {
			t.Errorf("%s: error %q", c.name, res.Error)
		}
	}
}

func TestExitedKilled(t *testing.T) {
	for _, c := range []struct {
		end  exited
		want bool
	}{
		{exited{err: initproc.ErrDied}, true},
		{exited{exit: initproc.Exit{Status: 9}}, true},
		{exited{exit: initproc.Exit{Status: 15}}, false},
		{exited{exit: initproc.Exit{Status: 9 << 8}}, false},
		{exited{}, false},
	} {
		if got := c.end.killed(); got != c.want {
			t.Errorf("%+v killed: %v", c.end, got)
		}
	}
}

func TestOutputs(t *testing.T) {
	two := []Stream{{Name: "stdout", Total: 10, Kept: 10, SHA256: "a"}, {Name: "stderr", Total: 9, Kept: 3, SHA256: "b"}}
	out, errs := outputs(two)
	if out != (runs.Output{Bytes: 10, Kept: 10, SHA256: "a"}) || errs != (runs.Output{Bytes: 9, Kept: 3, SHA256: "b", Truncated: true}) {
		t.Errorf("%+v, %+v", out, errs)
	}
	if _, errs = outputs(two[:1]); errs != (runs.Output{}) { // both share one pipe
		t.Errorf("%+v", errs)
	}
}

// testRun is a run whose record is a file of the test's.
func testRun(t *testing.T) *Run {
	t.Helper()
	s, err := runs.OpenState(filepath.Join(t.TempDir(), "state"), os.Getuid())
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	r := &Run{id: runs.NewID(time.Now()), state: s, files: map[string]*os.File{}, plan: recordPlan(), cfg: Config{Log: zerolog.Nop()}, kept: true}
	must(t, r.openRecord())
	must(t, r.storePlan()) // as the envelope waits for it
	t.Cleanup(func() { must(t, r.Close()) })
	r.sealer = newSealer(r, "boot")
	r.sealer.every = time.Hour // tests make their checkpoints themselves, however long they take
	r.rec = &recorder{plan: r.plan, w: trace.NewWriter(r.files[runs.TraceFile], trace.Options{Wall: time.Now(), Mono: bootTime(), Settled: r.sealer.builder.Add})}
	return r
}

func (r *Run) events(t *testing.T) []trace.Event {
	t.Helper()
	f, err := os.Open(filepath.Join(r.dir.Path(), runs.TraceFile))
	must(t, err)
	defer f.Close()
	return readBack(t, f)
}

// Every limit that was met is in the result and in the record, with its clause.
func TestLimitHits(t *testing.T) {
	r := testRun(t)
	r.plan.setLimits(policyOf(t, "memory=64M", "stdout=10"))
	r.stdio = &stdio{outs: []*relay{{cut: true}}}
	res := &runs.Result{Reason: runs.ReasonWall, Stderr: runs.Output{Truncated: true}}
	r.limitHits(res, 3, 0)
	res.Reason = runs.ReasonCPU
	r.limitHits(res, 0, 7)
	must(t, r.rec.w.Flush())
	want := []runs.LimitHit{
		{Name: "memory", Value: 64 << 20, Hits: 3},
		{Name: "wall", Value: 3600e9, Hits: 1},
		{Name: "stdout", Value: 10, Hits: 1},
		{Name: "tasks", Value: 512, Hits: 7},
		{Name: "cpu", Value: 3600e9, Hits: 1},
		{Name: "stdout", Value: 10, Hits: 1},
	}
	if !slices.Equal(res.Limits, want) {
		t.Errorf("%+v\nwant %+v", res.Limits, want)
	}
	events := r.events(t)
	if len(events) != len(want) {
		t.Fatalf("%d events", len(events))
	}
	for i, e := range events {
		if e.Kind != trace.KindLimit || e.Limit != want[i].Name || e.LimitHits != uint64(want[i].Hits) || e.LimitValue != uint64(want[i].Value) || e.Layer != trace.LayerLimit || e.Rule == "" {
			t.Errorf("%+v", e)
		}
	}
	if src := events[0].RuleSource; !strings.Contains(src, "flag --memory") {
		t.Errorf("the memory limit comes from %q", src)
	}
}

func TestNoLimitNoHit(t *testing.T) {
	r := testRun(t)
	r.plan.setLimits(policyOf(t))
	res := &runs.Result{Reason: runs.ReasonExit}
	r.limitHits(res, 0, 0)
	must(t, r.rec.w.Flush())
	if res.Limits != nil || len(r.events(t)) != 0 {
		t.Errorf("%+v, %+v", res.Limits, r.events(t))
	}
}

// What was lost is counted and placed; a record that lacks anything is never complete.
func TestCloseRecord(t *testing.T) {
	for _, c := range []struct {
		name     string
		stats    bpf.Stats
		streams  []Stream
		err      error
		losses   []trace.Loss
		findings []string
	}{
		{name: "without a sensor", findings: []string{"no events: the gap `record` was accepted"}},
		{
			name: "dropped", stats: bpf.Stats{
				Classes: [3]bpf.Delivery{{Sent: 5, Dropped: 7, DroppedBytes: 99}, {Dropped: 1, DroppedBytes: 3}}, Missed: 4, Read: 5,
				Gaps: []bpf.Gap{{CPU: 1, First: 4, Last: 11, Count: 8, AfterPos: 3, BeforePos: 5, Before: 1}}, Numbered: []uint64{0, 12},
			},
			losses: []trace.Loss{
				{Class: "any", Cause: "ring", Count: 8, CPU: 1, First: 5, Last: 12, AfterSeq: 3, BeforeSeq: 6},
				{Class: "any", Cause: "recursion", Count: 4, CPU: -1},
			},
		},
		{
			name: "the kernel disagrees", stats: bpf.Stats{Classes: [3]bpf.Delivery{{Sent: 5, Dropped: 7}}},
			findings: []string{"the kernel counted 7 lost events, and 0 of its numbers are missing"},
		},
		{name: "the sensor failed", err: errors.New("the ring broke"), findings: []string{"sensor: the ring broke"}},
		{name: "a copy failed", streams: []Stream{{Name: "stdout", Total: 9, Kept: 2, SHA256: strings.Repeat("a", 64), Error: "record: no space"}}, findings: []string{"stdout: record: no space"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testRun(t)
			res := &runs.Result{Status: 3, Reason: runs.ReasonExit}
			r.closeRecord(res, c.stats, c.streams, c.err)
			events := r.events(t)
			var losses []trace.Loss
			for _, e := range events {
				switch e.Kind {
				case trace.KindLoss:
					losses = append(losses, e.Loss)
				case trace.KindOutput:
					if e.Bytes != 9 || e.Kept != 2 || e.Stream != "stdout" {
						t.Errorf("%+v", e)
					}
				}
			}
			if !slices.Equal(losses, c.losses) {
				t.Errorf("losses %+v, want %+v", losses, c.losses)
			}
			last := events[len(events)-1]
			if last.Kind != trace.KindSummary || last.ExitCode != 3 || last.Reason != "exit" {
				t.Errorf("%+v", last)
			}
			for _, f := range c.findings {
				if !slices.Contains(last.Findings, f) {
					t.Errorf("findings %q lack %q", last.Findings, f)
				}
			}
			if res.Record.Verdict == "complete" || res.Record.Path != r.dir.Path() || res.Record.Records == 0 {
				t.Errorf("%+v", res.Record)
			}
			if len(c.losses) > 0 && res.Record.Lost == 0 {
				t.Errorf("nothing lost: %+v", res.Record)
			}
		})
	}
}

// The result shows what was refused: exact number, first few acts.
func TestCloseRecordDenials(t *testing.T) {
	r := testRun(t)
	for range 3 {
		e := onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/\x1b[2J", 0)
		must(t, r.rec.event(&e))
	}
	res := &runs.Result{}
	r.closeRecord(res, bpf.Stats{}, nil, nil)
	if res.Denials.Count != 3 || len(res.Denials.First) != 1 || res.Denials.First[0].Count != 3 || strings.ContainsRune(res.Denials.First[0].Text, 0x1b) {
		t.Errorf("%+v", res.Denials)
	}
}

func TestCounts(t *testing.T) {
	got := map[string]uint64{}
	for _, c := range counts(bpf.Stats{
		Calls: []bpf.CallCount{
			{NR: unix.SYS_READ, Calls: 3, Bytes: 10},
			{NR: unix.SYS_PREADV2, Calls: 1, Bytes: 5},
			{NR: unix.SYS_WRITE, Calls: 2, Errors: 1, Bytes: 7},
			{NR: unix.SYS_SENDTO, Calls: 1, Bytes: 11},
			{NR: unix.SYS_RECVMSG, Calls: 1, Bytes: 13},
			{NR: unix.SYS_GETPID, Calls: 4, Bytes: 99},
		},
		FileBytes: 6, Tx: bpf.Traffic{Packets: 8, Bytes: 1}, Rx: bpf.Traffic{Packets: 9}, TxRefused: 2,
	}, true) {
		if _, twice := got[c.Name]; twice {
			t.Errorf("%s is there twice", c.Name)
		}
		got[c.Name] = c.N
	}
	for name, want := range map[string]uint64{
		"syscall.read": 3, "syscall.preadv2": 1, "syscall.write": 2, "error.write": 1, "syscall.getpid": 4, "syscalls": 12,
		"bytes.read": 15, "bytes.written": 7, "bytes.files": 6, "bytes.sent": 11, "bytes.received": 13,
		"packets.sent": 8, "packets.received": 9, "packets.refused": 2,
	} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
	if _, ok := got["error.read"]; ok {
		t.Error("a call without errors has a count of them")
	}
	few := counts(bpf.Stats{Calls: []bpf.CallCount{{NR: unix.SYS_READ, Calls: 3, Errors: 1, Bytes: 10}}}, false)
	if !slices.Contains(few, trace.Count{Name: "syscalls", N: 3}) || !slices.Contains(few, trace.Count{Name: "bytes.read", N: 10}) {
		t.Errorf("totals are missing: %+v", few)
	}
	if slices.ContainsFunc(few, func(c trace.Count) bool {
		return strings.HasPrefix(c.Name, "syscall.") || strings.HasPrefix(c.Name, "error.")
	}) {
		t.Errorf("single calls are counted: %+v", few)
	}
}

func TestJoinText(t *testing.T) {
	if joinText("", "b") != "b" || joinText("a", "b") != "a; b" {
		t.Error(joinText("", "b"), joinText("a", "b"))
	}
}

// The canary's probes are in the record as the envelope's, and are no denials of the command.
func TestRecordCanary(t *testing.T) {
	r := testRun(t)
	p, _ := fakeProgram(t, nil)
	r.plan.Canary = p.Canary
	r.recordCanary()
	must(t, r.rec.w.Flush())
	events := r.events(t)
	if len(events) != len(p.Canary) || r.rec.denied.total != 0 {
		t.Fatalf("%d events of %d probes, %d denials", len(events), len(p.Canary), r.rec.denied.total)
	}
	for i, e := range events {
		if e.Kind != trace.KindCanary || e.Phase != trace.PhaseEnvelope || e.Verdict != trace.VerdictDeny || e.Denied() || e.Probe != p.Canary[i].Call || e.Errno != int32(p.Canary[i].errno) {
			t.Errorf("%+v", e)
		}
	}
	if events[0].Layer != trace.LayerLandlock || events[len(events)-1].Layer != trace.LayerDAC {
		t.Errorf("layers %s, %s", events[0].Layer, events[len(events)-1].Layer)
	}
}

// dying notes the order in which a run is ended.
type dying struct{ steps []string }

func (d *dying) Condemn() error             { d.steps = append(d.steps, "condemn"); return nil }
func (d *dying) Kill(context.Context) error { d.steps = append(d.steps, "wait"); return nil }

// What holds an execve until its file is hashed goes after the kill was sent and
// before it is waited for.
func TestHeldUntilKilled(t *testing.T) {
	var d dying
	must(t, killHeld(t.Context(), &d, func() { d.steps = append(d.steps, "let go") }))
	if want := []string{"condemn", "let go", "wait"}; !slices.Equal(d.steps, want) {
		t.Errorf("%q, want %q", d.steps, want)
	}
}

// Who is told that a run is sealed may do with its record what it likes: it is complete,
// nobody holds it, and nothing of the run lives.
func TestSealedIsTheEnd(t *testing.T) {
	testenv.Root(t)
	state := t.TempDir()
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: MemTotal(), Cwd: publicDir(t)}))
	must(t, err)
	told := ""
	res, err := Execute(context.Background(), Config{
		Policy: p, Argv: []string{"sh", "-c", "setsid sleep 1000 & exit 3"}, Environ: os.Environ(), StateDir: state,
		Sealed: func(res *Result) {
			told = res.ID
			s, err := runs.OpenState(state, os.Getuid())
			must(t, err)
			defer s.Close()
			dir, err := s.Open(res.ID)
			must(t, err)
			defer dir.Close()
			_, err = os.Stat(filepath.Join(res.Record.Path, seal.SealFile))
			if dir.Live() || err != nil || res.Status != 3 {
				t.Errorf("live %v, status %d, %v", dir.Live(), res.Status, err)
			}
			for _, at := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
				lists, _ := filepath.Glob(filepath.Join(at, res.ID+".run", "cgroup.procs"))
				for _, list := range lists {
					if b, _ := os.ReadFile(list); len(b) > 0 {
						t.Errorf("%s: %q", list, b)
					}
				}
			}
		},
	})
	must(t, err)
	if told != res.ID || res.Error != "" {
		t.Errorf("told of %q, and it was %q: %s", told, res.ID, res.Error)
	}
}
