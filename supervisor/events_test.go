package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// listened runs a command with a listener, and returns the result and what the
// record holds afterwards.
func listened(ctx context.Context, t *testing.T, state string, listen func(*trace.Event), argv ...string) (*Result, []seen) {
	t.Helper()
	testenv.Root(t)
	flags, err := policy.FromFlags([]policy.Flag{{Name: "mode", Value: "ro"}, {Name: "on-loss", Value: "throttle"}})
	must(t, err)
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: MemTotal(), Cwd: publicDir(t)}), flags)
	must(t, err)
	res, err := Execute(ctx, Config{Policy: p, Argv: argv, Environ: os.Environ(), StateDir: state, Events: listen})
	must(t, err)
	b, err := os.ReadFile(filepath.Join(res.Record.Path, runs.TraceFile))
	must(t, err)
	var list []seen
	must(t, trace.NewReader(bytes.NewReader(b)).Each(func(e *trace.Event) error {
		list = append(list, note(e))
		return nil
	}))
	return res, list
}

// seen is of an event what does not live in the reader's memory.
type seen struct {
	Seq, Mono uint64
	Wall      int64
	Kind      trace.Kind
	Phase     trace.Phase
	Path      string
	Errno     int32
}

func note(e *trace.Event) seen {
	return seen{e.Seq, e.Mono, e.Wall, e.Kind, e.Phase, string(e.Path), e.Errno}
}

// What is told is what the record holds, first to last. The listener is busy with the
// first event until the record is sealed: that stalls nothing.
func TestEventsAreTheRecord(t *testing.T) {
	state := t.TempDir()
	var told []seen
	res, record := listened(context.Background(), t, state, func(e *trace.Event) {
		for end := time.Now().Add(patience); len(told) == 0; time.Sleep(10 * time.Millisecond) {
			if seals, _ := filepath.Glob(filepath.Join(state, "runs", "*", seal.SealFile)); len(seals) == 1 {
				break
			}
			if time.Now().After(end) {
				t.Error("the run waits for its listener")
				break
			}
		}
		told = append(told, note(e))
	}, "sh", "-c", "for i in $(seq 50); do cat /etc/passwd >/dev/null; done")
	whole := res.Record.Verdict == string(trace.Complete) || skippedOnly(t, res.Record.Path)
	if res.Status != 0 || res.Error != "" || !whole {
		t.Fatalf("the run: %d %q %s %v", res.Status, res.Error, res.Record.Verdict, res.Record.Findings)
	}
	if diff := cmp.Diff(record, told); diff != "" {
		t.Errorf("what was told is not the record (-record +told):\n%s", diff)
	}
	if n := len(told); n < 50 || told[0].Kind != trace.KindStart || told[n-1].Kind != trace.KindSummary {
		t.Errorf("%d events, from %s to %s", n, told[0].Kind, told[n-1].Kind)
	}
}

// A command is seen while it runs: this one ends because its listener says so.
func TestEventsWhileItRuns(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(patience, cancel).Stop() // the kernel may have skipped the one event that is waited for
	seen := false
	res, record := listened(ctx, t, t.TempDir(), func(e *trace.Event) {
		if e.Kind == trace.KindExec && bytes.HasSuffix(e.Path, []byte("/sleep")) {
			seen = true
			cancel()
		}
	}, "sleep", "1000")
	if !seen && !skippedOnly(t, res.Record.Path) {
		t.Error("the execve was not told")
	}
	if res.Reason != ReasonError || record[len(record)-1].Kind != trace.KindSummary {
		t.Errorf("ended by %s, the record by %s", res.Reason, record[len(record)-1].Kind)
	}
}

// Runs of one process go on beside each other, each with its own record, and leave
// no goroutine of theirs.
func TestRunsBesideEachOther(t *testing.T) {
	const many = 4
	before := runtime.NumGoroutine()
	t.Run("runs", func(t *testing.T) {
		for i := range many {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				mine, programs := fmt.Sprintf("mine-%d", i), map[string]bool{}
				res, _ := listened(context.Background(), t, t.TempDir(), func(e *trace.Event) {
					if e.Kind == trace.KindExec && e.Phase == trace.PhaseCommand {
						programs[string(e.Argv[len(e.Argv)-1])] = true
					}
				}, "/bin/echo", mine)
				if len(programs) == 0 && skippedOnly(t, res.Record.Path) {
					programs[mine] = true // the record says that it lacks something, and nothing else was told
				}
				if res.Status != 0 || !programs[mine] || len(programs) != 1 || res.Stdout.Bytes != uint64(len(mine)+1) {
					t.Errorf("status %d, %d bytes, programs %v", res.Status, res.Stdout.Bytes, programs)
				}
			})
		}
	})
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			var b strings.Builder
			must(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, b.String())
		}
	}
}

// A program whose main function does not call Main would be started again as itself.
func TestAllowlistNeedsMain(t *testing.T) {
	testenv.Root(t)
	flags, err := policy.FromFlags([]policy.Flag{{Name: "mode", Value: "ro"}, {Name: "allow", Value: "192.0.2.1:443"}})
	must(t, err)
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: MemTotal(), Cwd: publicDir(t)}), flags)
	must(t, err)
	_, err = Execute(context.Background(), Config{Policy: p, Argv: []string{"true"}, StateDir: t.TempDir()})
	var ref *Refusal
	if !errors.As(err, &ref) || StatusOf(err) != StatusFailed || !strings.Contains(ref.Remedy, "supervisor.Main") {
		t.Errorf("got %v", err)
	}
}
