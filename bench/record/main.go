// Command record measures what it costs a command to be observed: builds, git,
// Python, a tree walk and a storm of processes, natively, under agentguard with
// its whole record, with changes only and throttled, and under strace with its
// seccomp filter, in interleaved rounds so that a noisy machine disturbs all of
// them alike.
//
//	record [-agentguard FILE] [-strace FILE] [-rounds N] [-only NAME,...]
//
// Wall time is of the whole command, from fork to its status, agentguard's own
// start and end included. CPU time is what wait4(2) says of it and of all that it
// waited for: the observer and the observed. Read ratios, not milliseconds.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	agentguard := flag.String("agentguard", "bin/agentguard", "the agentguard binary")
	strace := flag.String("strace", "strace", "the strace binary; left out when it is not there")
	rounds := flag.Int("rounds", 7, "measured rounds; one more runs first to warm up")
	only := flag.String("only", "", "loads to run, by name, with commas between them; all when empty")
	flag.Parse()
	if err := run(*agentguard, *strace, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(agentguard, strace string, rounds int, only string) error {
	if rounds < 1 {
		return errors.New("-rounds: at least 1")
	}
	self, err := filepath.Abs(agentguard)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	for _, l := range loads {
		if only != "" && !slices.Contains(strings.Split(only, ","), l.name) {
			continue
		}
		if missing := l.missing(); missing != "" {
			fmt.Fprintf(os.Stderr, "record: no %s here: the load %s is left out\n", missing, l.name)
			continue
		}
		rows, err := observers(self, strace, filepath.Join(scratch, l.name))
		if err != nil {
			return err
		}
		if err := l.measure(rows, rounds); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		fmt.Printf("%s: %s; %d rounds\n", l.name, l.what, rounds)
		if err := table(os.Stdout, rows); err != nil {
			return err
		}
	}
	return nil
}

// observers are the contestants for one load; the first is the reference.
func observers(agentguard, strace, dir string) ([]*row, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(dir, "work-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return nil, err
	}
	exec1 := func(flags ...string) []string {
		argv := []string{agentguard, "exec", "-q", "--state", filepath.Join(dir, "state"), "-w", work, "--mode", "rw"}
		return append(append(argv, flags...), "--")
	}
	rows := []*row{
		{name: "native", work: work},
		{name: "agentguard", work: work, prefix: exec1()},
		{name: "agentguard --trace changes", work: work, prefix: exec1("--trace", "changes")},
		{name: "agentguard --on-loss throttle", work: work, prefix: exec1("--on-loss", "throttle")},
	}
	path, err := exec.LookPath(strace)
	if err != nil {
		fmt.Fprintln(os.Stderr, "record: no strace here: its row is left out")
		return rows, nil
	}
	return append(rows, &row{name: "strace -f --seccomp-bpf", work: work, prefix: []string{
		path, "-f", "--seccomp-bpf", "-qq", "-e", "trace=%process,%file,%network", "-o", filepath.Join(dir, "strace.out"),
	}}), nil
}
