//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// openFD takes over a descriptor of the caller's that is open for writing.
func openFD(num string) (*os.File, error) {
	n, err := strconv.Atoi(num)
	flags := 0
	if err == nil {
		flags, err = unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	}
	if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, &supervisor.Refusal{What: "fd:" + num + " is not a descriptor open for writing", Remedy: "as in agentguard exec --json fd:3 -- cmd 3>result.json"}
	}
	unix.CloseOnExec(n)
	return os.NewFile(uintptr(n), "fd:"+num), nil
}

func writeJSON(f *os.File, res *runs.Result) error {
	if f == nil {
		return nil
	}
	b, err := res.JSON()
	if err == nil {
		_, err = f.Write(b)
	}
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// summarise says after a run what a person must know: which limit ended it,
// what was cut, what was refused, and where the record is.
func summarise(res *runs.Result, p *policy.Policy) {
	tellReason(res, p)
	for _, l := range res.Limits {
		switch l.Name {
		case "output":
			if res.Reason != runs.ReasonOutput {
				tell("the run's own storage of %s was full (filesystem.max_output_bytes, %s); raise it with --output", trace.Size(uint64(l.Value)), p.MaxOutputBytes.Source)
			}
		case "files":
			tell("the run's own storage had as many files as it may, %d (filesystem.max_files, %s); raise it with --files", l.Value, p.MaxFiles.Source)
		case "tasks":
			tell("%s refused at %d tasks, threads counted (process.max_subprocesses, %s); raise it with --pids", forks(l.Hits), l.Value, p.MaxTasks.Source)
		case "stdout":
			if !p.MaxStdout.Source.IsDefault() {
				tell("output was cut at %s of %s (output.max_stdout_bytes, %s); raise it with --stdout",
					trace.Size(uint64(l.Value)), trace.Size(res.Stdout.Bytes+res.Stderr.Bytes), p.MaxStdout.Source)
			}
		}
	}
	for _, m := range res.Missing[:min(len(res.Missing), maxMissing)] {
		tell("%s", m)
	}
	tellNetwork(res.Network)
	for _, b := range res.Brokers {
		tell("the broker %s: %d calls, %d refused, %s sent, %s received", b.Name, b.Calls, b.Refused, trace.Size(uint64(max(b.Sent, 0))), trace.Size(uint64(max(b.Received, 0))))
	}
	tellLookups(res, p)
	for _, s := range p.UnsafeSockets() {
		tell("the command could use %s (network.unix)", s)
	}
	tellDegraded(res)
	if v := res.Record.Verdict; v != string(trace.Complete) && v != string(trace.Degraded) {
		tell("the record is %s: %d events lost%s; see agentguard runs show %s", res.Record.Verdict, res.Record.Lost, unlost(res)+slower(res, p), res.ID)
	}
	for _, p := range res.Planted {
		tell("%s, and other programs act on it (filesystem.protect); look at it", p)
	}
	for _, p := range res.Linked {
		tell("%s has other names outside (hard links), and what was written to it is there too; --mode cow keeps them apart", p)
	}
	for _, p := range res.Unmapped {
		if res.Denials.Count > 0 { // else nothing in it was missed
			tell("%s: its file system cannot be shown with mapped user ids, so what is root's in it could be read only; give it to a user (chown), or keep it on ext4, xfs, btrfs or tmpfs", trace.Quote(p))
		}
	}
	if res.Error != "" {
		tell("%s", res.Error)
	}
	if res.Denials.Count > 0 || isTerminal(os.Stderr) {
		tellEnd(res)
	}
}

// tellDegraded says in one line what this mode did not give, to a person.
func tellDegraded(res *runs.Result) {
	if len(res.Degraded) == 0 || !isTerminal(os.Stderr) {
		return
	}
	var what []string
	for _, d := range res.Degraded {
		what = append(what, d.Guarantee)
	}
	tell("degraded: without %s; agentguard runs show %s says why, and %s", strings.Join(what, ", "), res.ID, res.Degraded[0].Remedy)
}

// unlost is why a record is not complete that has lost nothing.
func unlost(res *runs.Result) string {
	if res.Record.Lost > 0 || len(res.Record.Findings) == 0 {
		return ""
	}
	return "; " + trace.Line(res.Record.Findings[0])
}

// slower is the flag for a record that lacks nothing, if that was not given.
func slower(res *runs.Result, p *policy.Policy) string {
	if res.Record.Lost == 0 || p.OnLoss.Value != "record" || res.Mode != supervisor.ModeRoot { // elsewhere who is recorded waits anyway: the record was full
		return ""
	}
	return " (--on-loss throttle waits instead)"
}

func forks(n int64) string {
	if n == 1 {
		return "1 fork was"
	}
	return fmt.Sprintf("%d forks were", n)
}

func tellReason(res *runs.Result, p *policy.Policy) {
	switch res.Reason {
	case runs.ReasonWall:
		tell("ended by the wall-clock limit of %v (process.max_wall_seconds, %s); raise it with --wall", time.Duration(p.MaxWall.N), p.MaxWall.Source)
	case runs.ReasonCPU:
		tell("ended by the cpu limit of %v (process.max_cpu_seconds, %s); raise it with --cpu", time.Duration(p.MaxCPU.N), p.MaxCPU.Source)
	case runs.ReasonMemory:
		tell("ended by the memory limit of %s (process.max_memory_mb, %s); raise it with --memory", trace.Size(uint64(p.MaxMemory.N)), p.MaxMemory.Source)
	case runs.ReasonOutput:
		tell("ended after %s were written to files (filesystem.max_output_bytes, %s); raise it with --output", trace.Size(uint64(p.MaxOutputBytes.N)), p.MaxOutputBytes.Source)
	case runs.ReasonLoss:
		remedy := "--on-loss throttle waits instead, record counts"
		if res.Mode != supervisor.ModeRoot { // where who is told of waits anyway
			remedy = "the record was full (trace.max_bytes, RLIMIT_FSIZE), or there were more processes than RLIMIT_NOFILE lets agentguard follow"
		}
		tell("ended because records were lost (trace.on_loss kill, %s); %s", p.OnLoss.Source, remedy)
	case runs.ReasonSignal:
		tell("ended by %s", res.Signal)
	}
}

// tellEnd is the summary line. Of a command that failed it says first, in a line
// each, what was refused and the flag that would allow it: the two that a flag
// changes, or else the first two; fewer where programs were missing.
func tellEnd(res *runs.Result) {
	took, first := res.Usage.Wall.Round(time.Millisecond), advisable(res.Denials.First)
	switch n := res.Denials.Count; {
	case n == 0:
		tell("%s (agentguard trace show %s)", took, res.ID)
	case len(first) > 1 && res.Status != 0:
		for _, d := range first[:2-min(len(res.Missing), maxMissing)] {
			tell("%s", d.Text)
		}
		tell("%s, %d refused (agentguard explain %s)", took, n, res.ID)
	case len(first) > 1:
		tell("%s, %d refused: %s, ... (agentguard trace show %s)", took, n, first[0].Text, res.ID)
	case len(first) == 1:
		tell("%s, %d refused: %s (agentguard trace show %s)", took, n, first[0].Text, res.ID)
	default:
		tell("%s, %d refused (agentguard trace show %s)", took, n, res.ID)
	}
}

// advisable puts the denials that a flag would change before the others.
func advisable(list []runs.Denial) []runs.Denial {
	out := slices.Clone(list)
	flag := func(d runs.Denial) int {
		if d.Remedy == "" || strings.HasPrefix(d.Remedy, "install ") {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b runs.Denial) int { return cmp.Compare(flag(b), flag(a)) })
	return out
}

// maxMissing bounds the programs that are told not to have been found; explain has all.
const maxMissing = 2

// maxFailed bounds the destinations that are told to have failed.
const maxFailed = 5

// tellNetwork says which allowed destinations could not be reached, and why:
// inside, the connection was only reset.
func tellNetwork(list []runs.Destination) {
	told := 0
	for _, d := range list {
		if d.Failed == 0 || told == maxFailed {
			continue
		}
		told++
		times := ""
		if d.Failed > 1 {
			times = fmt.Sprintf(", %d times", d.Failed)
		}
		tell("connection to %s:%d failed: %s%s", trace.Quote(d.Host), d.Port, trace.Line(d.Error), times)
	}
}

// tellLookups says why names were not found: the command itself reports a server
// on loopback that does not answer.
func tellLookups(res *runs.Result, p *policy.Policy) {
	if res.Lookups == 0 || res.Status == 0 {
		return
	}
	cached := ""
	if len(p.Caches) == 0 {
		cached = "; --cache auto shows what was fetched before"
	}
	tell("the command looked up names, and this run has no network (network.egress, %s); --allow HOST:PORT opens a destination%s", p.Egress.Source, cached)
}
