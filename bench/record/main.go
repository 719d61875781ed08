// Command record measures what it costs to be observed, and to ask afterwards:
//
//   - commands (a build, git, node, Python, find, a storm of processes) natively,
//     under agentguard with its whole record and with changes only, under strace
//     with its seccomp filter and under bpftrace
//   - single calls of a process that is observed, and of a bystander
//   - an event, in the reader and in bytes of the record
//   - questions to the records of 10 000 runs
//
// All in one run and in interleaved rounds, so that a noisy machine disturbs all
// contestants alike.
//
//	record [-agentguard FILE] [-strace FILE] [-bpftrace FILE] [-rounds N] [-time D] [-only NAME,...]
//
// Wall time is of the whole command, from fork to its status, the observer's own
// start and end included; the load "nothing" shows how much that is, and the
// column "less start" is without it. CPU time is what wait4(2) says of the
// command and of all that it waited for: the observer and the observed. Read
// ratios, not milliseconds.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	c := config{}
	flag.StringVar(&c.agentguard, "agentguard", "bin/agentguard", "the agentguard binary")
	flag.StringVar(&c.strace, "strace", "strace", "the strace binary; left out when it is not there")
	flag.StringVar(&c.bpftrace, "bpftrace", "bpftrace", "the bpftrace binary; left out when it is not there or does not work")
	flag.IntVar(&c.rounds, "rounds", 20, "measured rounds at most")
	flag.DurationVar(&c.time, "time", 75*time.Second, "about how long all may take; three rounds are made in any case")
	flag.IntVar(&c.runs, "runs", 10_000, "how many runs the questions are asked of")
	flag.BoolVar(&c.throttle, "throttle", false, "a row more: --on-loss throttle")
	only := flag.String("only", "", "what to measure, by name (a load, calls, questions), with commas between; all when empty")
	act := flag.Bool("act", false, "be the process whose calls are measured")
	flag.Parse()
	run := c.run
	if *act {
		run = func() error { return repeat(os.Stdout) }
	}
	if *only != "" {
		c.only = strings.Split(*only, ",")
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

type config struct {
	agentguard, strace, bpftrace string
	rounds, runs                 int
	time                         time.Duration
	throttle                     bool
	only                         []string
}

func (c *config) wants(name string) bool { return len(c.only) == 0 || slices.Contains(c.only, name) }

func (c *config) run() (err error) {
	if c.rounds < 1 || c.runs < 1 {
		return errors.New("-rounds and -runs: at least 1")
	}
	o := &observers{throttle: c.throttle}
	if o.agentguard, err = filepath.Abs(c.agentguard); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := os.Chmod(scratch, 0o755); err != nil {
		return err
	}
	o.find(c.strace, c.bpftrace)
	if err := c.loads(o, scratch); err != nil {
		return err
	}
	if c.wants("calls") {
		if err := measureCalls(o, filepath.Join(scratch, "calls"), c.rounds, c.time/10); err != nil {
			return fmt.Errorf("calls: %w", err)
		}
	}
	if c.wants("questions") {
		if err := measureQueries(o, filepath.Join(scratch, "questions"), c.runs); err != nil {
			return fmt.Errorf("questions: %w", err)
		}
	}
	return nil
}

// loads has three quarters of the time for all loads.
func (c *config) loads(o *observers, scratch string) error {
	var start []*row // of the load that does nothing
	for i := range loads {
		l := &loads[i]
		if !c.wants(l.name) && (i > 0 || len(c.only) > 0 && !slices.ContainsFunc(loads, func(l load) bool { return c.wants(l.name) })) {
			continue
		}
		if missing := l.missing(); missing != "" {
			fmt.Fprintf(os.Stderr, "record: no %s here: the load %s is left out\n", missing, l.name)
			continue
		}
		rows, err := o.rows(l, filepath.Join(scratch, l.name))
		if err != nil {
			return err
		}
		if err := measure(rows, c.rounds, c.time*3/4/time.Duration(len(loads))); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if start == nil {
			start = rows
		}
		fmt.Printf("%s: %s; %d rounds\n", l.name, l.what, len(rows[0].wall))
		if err := table(os.Stdout, rows, start); err != nil {
			return err
		}
	}
	return nil
}
