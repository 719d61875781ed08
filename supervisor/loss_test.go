package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// stormOf scales a storm: CI asks for the whole of it once.
func stormOf(t *testing.T, whole int) int {
	if os.Getenv("AGENTGUARD_TEST_STORM") == "whole" {
		return whole
	}
	if testing.Short() {
		return whole / 100
	}
	return whole / 20
}

// stormFiles is how many files a storm opens in turn: more than a thread's
// memory in the kernel has room for, so that each open is an event.
const stormFiles = 300

// openStorm, refusedStorm and processStorm are commands: they do something as
// often as their argument says, in two threads.
func openStorm() {
	inTwo(func(i int) error {
		fd, err := unix.Open("f"+itoa(i%stormFiles), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func refusedStorm() {
	inTwo(func(int) error {
		if _, err := unix.Open("closed", unix.O_RDONLY, 0); err != unix.EACCES {
			return errors.New("it is open")
		}
		return nil
	})
}

func processStorm() {
	inTwo(func(int) error {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
		if err != nil {
			return err
		}
		var status unix.WaitStatus
		_, err = unix.Wait4(pid, &status, 0, nil)
		return err
	})
}

func inTwo(do func(i int) error) {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range n / 2 {
				if err := do(i); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
}

// stormy is a whole run of an act of this binary.
type stormy struct {
	act      string
	n        int
	onLoss   string
	ring     int   // bytes; 0: the default
	room     int   // bytes of it for processes; 0: all
	maxTrace int64 // bytes; 0: the default
	padding  int   // bytes of the environment, which each execve makes events of
}

func (c stormy) run(t *testing.T) (*runs.Result, *storm) {
	t.Helper()
	testenv.Root(t)
	ws := publicDir(t)
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err, os.WriteFile(ws+"/storm", self, 0o755), os.WriteFile(ws+"/closed", nil, 0o600), os.Chown(ws, testUID, testGID))
	for i := range stormFiles {
		must(t, os.WriteFile(ws+"/f"+itoa(i), nil, 0o644))
	}
	flags, err := policy.FromFlags([]policy.Flag{
		{Name: "on-loss", Value: c.onLoss},
		{Name: "mode", Value: "ro"},
		{Name: "pids", Value: "none"},
		{Name: "env", Value: actVariable + "=" + c.act},
		{Name: "env", Value: "GOMAXPROCS=2"},
		{Name: "env", Value: "PADDING=" + strings.Repeat("x", c.padding)},
	})
	must(t, err)
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: 8 << 30, Cwd: ws}), flags)
	must(t, err)
	if c.maxTrace != 0 {
		p.MaxTraceBytes.N = c.maxTrace
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	res, err := Execute(context.Background(), Config{
		Policy: p, Argv: []string{ws + "/storm", strconv.Itoa(c.n)}, Environ: os.Environ(),
		Stdin: null, Stdout: null, Stderr: null, StateDir: t.TempDir(), Log: zerolog.Nop(), ringBytes: c.ring, roomBytes: c.room,
	})
	must(t, err)
	return res, readStorm(t, filepath.Join(res.Record.Path, runs.TraceFile))
}

// storm is what a record says, by the file alone.
type storm struct {
	judgement trace.Judgement
	why       []string
	acts      map[trace.Kind]uint64 // of the command
	early     map[trace.Kind]uint64 // of init, and before the command
	opened    uint64                // opens of the storm's files
	refused   uint64                // and of the one that is closed to it
	born      uint64                // processes that the command made, threads apart
	skipped   uint64                // events that the kernel may have kept from the sensor
	losses    []trace.Loss
	counts    map[string]uint64
}

func readStorm(t *testing.T, name string) *storm {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	s := &storm{acts: map[trace.Kind]uint64{}, early: map[trace.Kind]uint64{}, counts: map[string]uint64{}}
	r := trace.NewReader(f)
	var e trace.Event
	for {
		err := r.Next(&e)
		if err == io.EOF {
			break
		}
		must(t, err)
		if e.Phase == trace.PhaseCommand {
			s.acts[e.Kind] += e.Times()
			if e.Kind == trace.KindFork && e.Child.Pid != e.Proc.Pid {
				s.born++
			}
		} else {
			s.early[e.Kind] += e.Times()
		}
		if e.Kind == trace.KindOpen && e.Denied() && bytes.HasSuffix(e.Path, []byte("closed")) {
			s.refused += e.Times()
		}
		if e.Kind == trace.KindOpen && !e.Denied() && bytes.Contains(e.Path, []byte("/agentguard-test-")) && bytes.Contains(e.Path, []byte("/f")) {
			s.opened += e.Times()
		}
		switch {
		case e.Kind == trace.KindLoss && e.Loss.Cause == "recursion":
			s.skipped += e.Loss.Count
		case e.Kind == trace.KindLoss:
			s.losses = append(s.losses, e.Loss)
		}
		for _, c := range e.Counts {
			s.counts[c.Name] = c.N
		}
	}
	s.judgement, s.why = r.Report().Judge()
	return s
}

// adds says that so many acts are recorded or lost: all, but for what the kernel
// may have skipped, which the record says.
func (s *storm) adds(recorded uint64, n int) bool {
	return recorded <= uint64(n) && recorded+s.skipped >= uint64(n)
}

// A throttled run loses nothing, however fast it is and however small its ring.
func TestThrottleLosesNothing(t *testing.T) {
	opens, processes := stormOf(t, 500_000), stormOf(t, 20_000)
	for act, n := range map[string]int{"open-storm": opens, "refused-storm": opens / 5} {
		res, got := stormy{act: act, n: n, onLoss: "throttle", ring: 1 << 20}.run(t)
		if res.Status != 0 || res.Record.Lost != got.skipped || !got.adds(got.refused+got.opened, n) {
			t.Errorf("%s: status %d, %d opens and %d refused recorded of %d, %q", act, res.Status, got.opened, got.refused, n, got.why)
		}
		t.Logf("%s: %d in %v, %d skipped, frozen %d times for %d ms, %d waits; reader %d ms", act, n, res.Usage.Wall, got.skipped,
			got.counts["throttle.freezes"], got.counts["throttle.frozen_ns"]/1e6, got.counts["throttle.waits"], got.counts["reader.cpu_ns"]/1e6)
	}
	res, got := stormy{act: "process-storm", n: processes, onLoss: "throttle", ring: 256 << 10}.run(t)
	if res.Status != 0 || res.Record.Lost != got.skipped || !got.adds(got.acts[trace.KindExec], processes+1) || !got.adds(got.acts[trace.KindExit], processes+1) {
		t.Errorf("status %d, %d processes: %v, %q", res.Status, processes, got.acts, got.why)
	}
	t.Logf("%d processes in %v", processes, res.Usage.Wall)
}

// What a full ring loses is counted exactly and placed, by the file alone.
func TestLossesAddUp(t *testing.T) {
	n, ring := stormOf(t, 500_000), 64<<10
	if n == 500_000 {
		ring = 256 << 10
	}
	for act, n := range map[string]int{"open-storm": n, "refused-storm": n / 5} {
		res, got := stormy{act: act, n: n, onLoss: "record", ring: ring}.run(t)
		kept, lost := got.opened+got.refused, got.counts["lost.file"]+got.counts["lost.deny"]+got.lostRepeats()
		t.Logf("%s: %d kept, %d lost in %d losses", act, kept, lost, len(got.losses))
		if res.Status != 0 || !got.adds(kept+lost, n) {
			t.Errorf("%s: status %d: %d kept, %d lost, want %d in all", act, res.Status, kept, lost, n)
		}
		checkStorm(t, res, got)
		if got.counts["lost.class.control"] != 0 || !got.adds(got.acts[trace.KindExec], 1) || !got.adds(got.acts[trace.KindExit], 1) {
			t.Errorf("the flood pushed out what it hides: %v", got.acts)
		}
	}
}

// The same of processes, of whose events none may be left out for the others.
func TestLostProcessesAddUp(t *testing.T) {
	n := stormOf(t, 20_000) / 4
	res, got := stormy{act: "process-storm", n: n, onLoss: "record", ring: 64 << 10, padding: 64_000}.run(t)
	checkProcesses(t, n, res, got)
}

// With hardly any room of their own they are lost in great numbers, each kind of them.
func TestProcessesWithoutRoomAddUp(t *testing.T) {
	n := stormOf(t, 20_000) / 4
	res, got := stormy{act: "process-storm", n: n, onLoss: "record", room: 1}.run(t)
	checkProcesses(t, n, res, got)
	for _, kind := range []string{"exec", "exit", "fork"} {
		if got.counts["lost."+kind] == 0 {
			t.Errorf("no %s is lost", kind)
		}
	}
	if got.judgement != trace.Incomplete || len(got.losses) == 0 {
		t.Errorf("%s, %d losses", got.judgement, len(got.losses))
	}
}

func checkProcesses(t *testing.T, n int, res *runs.Result, got *storm) {
	t.Helper()
	for kind, kept := range map[string]uint64{
		"exec": got.acts[trace.KindExec] + got.early[trace.KindExec], "exit": got.acts[trace.KindExit] + got.early[trace.KindExit],
		"fork": got.born + got.early[trace.KindFork],
	} {
		lost, want := got.counts["lost."+kind], n+2 // with the command and init
		t.Logf("%s: %d kept, %d lost in %d losses", kind, kept, lost, len(got.losses))
		// Of lost forks it is not known how many were of threads.
		if res.Status != 0 || !got.adds(kept+lost, want) && (kind != "fork" || lost == 0 || kept > uint64(want) || kept+lost < uint64(want)) {
			t.Errorf("status %d: %s: %d kept, %d lost, want %d in all", res.Status, kind, kept, lost, want)
		}
	}
	checkStorm(t, res, got)
}

// lostRepeats is how many opens were lost that the kernel had counted together:
// one with each lost count, the others in a loss record of their own.
func (s *storm) lostRepeats() uint64 {
	n := s.counts["lost.repeat"]
	for _, l := range s.losses {
		if l.First == 0 && l.Class == string(trace.KindOpen) {
			n += l.Count
		}
	}
	return n
}

// checkStorm says that a record which lacks something shows what.
func checkStorm(t *testing.T, res *runs.Result, got *storm) {
	t.Helper()
	lost := got.skipped
	for _, l := range got.losses {
		if lost += l.Count; l.Class == "any" && (l.First == 0 || l.CPU < 0 || l.AfterSeq == 0) {
			t.Errorf("not placed: %+v", l)
		}
	}
	if lost != res.Record.Lost || lost > 0 != (got.judgement == trace.Incomplete) {
		t.Errorf("%d lost in the record, %d in the result, %s", lost, res.Record.Lost, got.judgement)
	}
	for _, why := range got.why {
		if !strings.HasPrefix(why, "records lost: ") {
			t.Errorf("the numbers do not add up: %s", why)
		}
	}
}

// The first loss ends a run that asks for it.
func TestKillAtTheFirstLoss(t *testing.T) {
	res, got := stormy{act: "refused-storm", n: 500_000, onLoss: "kill", maxTrace: 256 << 10}.run(t)
	if res.Status != StatusKilled || res.Reason != runs.ReasonLoss || got.judgement != trace.Incomplete || got.refused == 0 {
		t.Errorf("status %d (%s), %s, %d opens", res.Status, res.Reason, got.judgement, got.refused)
	}
	res, got = stormy{act: "refused-storm", n: 100, onLoss: "kill"}.run(t)
	if res.Status != 0 || res.Record.Lost != got.skipped {
		t.Errorf("without a loss: status %d (%s), %s %q", res.Status, res.Reason, got.judgement, got.why)
	}
}

// A reader that has failed loses all that comes, and a run that is to be killed
// at the first loss need not wait for the ring to be full.
func TestBlindReaderIsLossy(t *testing.T) {
	r := testRun(t)
	if r.lossy() {
		t.Error("at the start")
	}
	r.rec.blind.Store(true)
	if !r.lossy() {
		t.Error("a reader that has ended loses nothing")
	}
}
