//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// liveRun is what ps says of a run.
type liveRun struct {
	ID      string    `json:"id"`
	Pid     int       `json:"pid"` // of its supervisor; 0 unknown
	Started time.Time `json:"started"`
	Argv    []string  `json:"argv"`
}

func newPs() *cobra.Command {
	c := &cobra.Command{
		Use: "ps", Short: "List live runs, newest first", Args: cobra.NoArgs,
		Long:    "ps lists the runs whose supervisor is at work: run, supervisor's process, time since the\nstart, command.\n\nExit status: 0 listed, also when there is none; 125 they cannot be read.",
		Example: "  agentguard ps\n  agentguard ps --json | jq -r .id | xargs -r agentguard runs kill",
	}
	state := stateFlag(c)
	asJSON := c.Flags().Bool("json", false, "one JSON object a line: id, pid, started, argv")
	c.RunE = func(*cobra.Command, []string) error {
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		if !*asJSON {
			fmt.Fprintln(w, "RUN\tPID\tTIME\tCOMMAND")
		}
		err := eachLive(*state, func(r liveRun) error {
			if *asJSON {
				return jsonLine(r)
			}
			_, err := fmt.Fprintf(w, "%s\t%d\t%v\t%s\n", r.ID, r.Pid, time.Since(r.Started).Round(time.Second), trace.QuoteArgs(r.Argv, 200))
			return err
		})
		return errors.Join(err, w.Flush())
	}
	return c
}

// eachLive calls visit for each run of the state directory that is live.
func eachLive(state string, visit func(liveRun) error) error {
	return eachDir(state, func(d *runs.RunDir, _ int) (bool, error) {
		var err error
		if d.Live() {
			err = visit(describe(d))
		}
		return true, errors.Join(err, d.Close())
	})
}

// describe says what is known of a live run: its plan may not be written yet.
func describe(d *runs.RunDir) liveRun {
	r := liveRun{ID: d.ID(), Started: runs.Began(d.ID())}
	if s, err := d.Supervisor(); err == nil {
		r.Pid = s.Pid
		s.Close()
	}
	f, err := d.Open(runs.PlanFile)
	if err != nil {
		return r
	}
	defer f.Close()
	var plan struct{ Argv []string }
	if json.NewDecoder(io.LimitReader(f, 16<<20)).Decode(&plan) == nil {
		r.Argv = plan.Argv
	}
	return r
}

func newRunsKill() *cobra.Command {
	c := &cobra.Command{
		Use: "kill ID...", Short: "End live runs", Args: cobra.MinimumNArgs(1),
		Long: `kill asks the command of each run to end (SIGTERM, which the run's supervisor passes on).
What has not ended when the grace is over is killed, the whole tree. The record is closed
and sealed as ever.

Exit status: 0 all have ended; 125 one has not, is not live, or is not yours.`,
		Example: "  agentguard runs kill last\n  agentguard runs kill --grace 0s 20261129-1636",
	}
	state := stateFlag(c)
	asJSON := doneFlag(c)
	grace := c.Flags().Duration("grace", 5*time.Second, "how long a command may take to end by itself")
	c.RunE = func(_ *cobra.Command, args []string) error {
		s, err := openState(*state)
		if err != nil {
			return err
		}
		defer s.Close()
		return eachGiven(s, args, func(id string) error {
			d, err := s.Open(id)
			if err != nil {
				return err
			}
			defer d.Close()
			return tellDone(*asJSON, id, "ended", endRun(d, *grace))
		})
	}
	return c
}

// killLimit is how long the supervisor may take to close the record of a run
// that was killed.
const killLimit = 30 * time.Second

// endRun sends SIGTERM, and again when the grace is over: the second one ends
// the run.
func endRun(d *runs.RunDir, grace time.Duration) error {
	sup, err := d.Supervisor()
	if errors.Is(err, os.ErrNotExist) {
		return &supervisor.Refusal{What: "run " + d.ID() + " is not live", Remedy: "agentguard ps lists those that are"}
	}
	if err != nil {
		return err
	}
	defer sup.Close()
	ask := func() error { return sup.Signal(unix.SIGTERM) }
	if d.Shown() {
		ask = func() error { return endByHelper(d.ID()) }
	}
	if err := ask(); err != nil {
		return err
	}
	if ended(d, grace) {
		return nil
	}
	for end := time.Now().Add(killLimit); time.Now().Before(end); {
		if err := ask(); err != nil && !errors.Is(err, unix.ESRCH) && !ended(d, 0) {
			return err
		}
		if ended(d, 200*time.Millisecond) {
			return nil
		}
	}
	return fmt.Errorf("run %s has not ended: its supervisor is process %d", d.ID(), sup.Pid)
}

// ended waits until nobody holds the run.
func ended(d *runs.RunDir, limit time.Duration) bool {
	for end := time.Now().Add(limit); d.Live(); time.Sleep(20 * time.Millisecond) {
		if !time.Now().Before(end) {
			return false
		}
	}
	return true
}
