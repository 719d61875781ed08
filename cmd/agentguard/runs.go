//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// openState opens the state directory for reading: with the helper, which alone may
// write there, what it shows of its own.
func openState(dir string) (*runs.State, error) {
	of, audit := strings.CutPrefix(dir, ofUser)
	if (dir == "" || audit) && chooseMode(false) == byHelper {
		s, v, err := shownRecords(of)
		if err == nil {
			err = v.Close()
		}
		return s, err
	}
	c, err := caller()
	if err != nil {
		return nil, err
	}
	if audit {
		return openOf(c, of)
	}
	if dir, err = c.StateDir(dir); err != nil {
		return nil, err
	}
	return runs.OpenState(dir, os.Getuid())
}

// openRun finds a run by a prefix of its id, or "last".
func openRun(dir, name string) (*runs.RunDir, error) {
	s, err := openState(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return findRun(s, name)
}

// findRun is openRun in an open state directory.
func findRun(s *runs.State, name string) (*runs.RunDir, error) {
	id, err := s.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noRun(name, s.Path())
	}
	if err != nil {
		return nil, err
	}
	return s.Open(id)
}

func newRuns() *cobra.Command {
	c := &cobra.Command{Use: "runs", Short: "List recorded runs, show how they ended, delete and recover them"}
	c.AddCommand(newRunsLs(), newRunsShow(), newRunsRm(), newRunsPrune(), newRunsKill(), newRunsRecover(), newRunsSweep())
	return c
}

func newRunsLs() *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List runs, newest first", Args: cobra.NoArgs, Example: "  agentguard runs ls\n  agentguard runs ls --json | jq -r .id"}
	state := auditedFlags(c)
	all := c.Flags().Bool("all", false, "those of all users, for root and the audit group")
	limit := c.Flags().IntP("limit", "n", 50, "show at most `N` runs; 0 shows all")
	asJSON := c.Flags().Bool("json", false, "one result a line")
	c.RunE = func(*cobra.Command, []string) error {
		if *all {
			return eachUser(*state, *asJSON, func(of string) error { return listRuns(of, *limit, *asJSON) })
		}
		return listRuns(*state, *limit, *asJSON)
	}
	return c
}

func listRuns(state string, limit int, asJSON bool) error {
	s, err := openState(state)
	if err != nil {
		return err
	}
	defer s.Close()
	list, err := s.List(limit)
	if err != nil {
		return err
	}
	if list, err = withGone(state, list, limit); err != nil {
		return err
	}
	if !asJSON {
		return runs.WriteTable(os.Stdout, list)
	}
	for _, sum := range list {
		if err := writeSummary(sum); err != nil {
			return err
		}
	}
	return nil
}

// writeSummary prints a result, or for a run that has none its id and state.
func writeSummary(sum runs.Summary) error {
	if sum.Result != nil {
		return writeJSON(os.Stdout, sum.Result)
	}
	return json.NewEncoder(os.Stdout).Encode(struct {
		ID   string `json:"id"`
		Live bool   `json:"live"`
		Gone bool   `json:"gone,omitempty"`
	}{sum.ID, sum.Live, sum.Gone})
}

func newRunsShow() *cobra.Command {
	c := &cobra.Command{
		Use: "show [ID|last]", Short: "Show how a run ended: status, usage, limits, denials, record", Args: cobra.MaximumNArgs(1),
		Example: "  agentguard runs show\n  agentguard runs show 20261129-1636",
	}
	state := auditedFlags(c)
	asJSON := c.Flags().Bool("json", false, "the result as JSON")
	plan := c.Flags().Bool("plan", false, "the plan that was in effect, as JSON")
	c.RunE = func(_ *cobra.Command, args []string) error {
		d, err := openRun(*state, append(args, "last")[0])
		if err != nil {
			return err
		}
		defer d.Close()
		if *plan {
			return copyFile(d, runs.PlanFile)
		}
		res, err := d.Result()
		if errors.Is(err, fs.ErrNotExist) {
			return &supervisor.Refusal{What: "run " + d.ID() + " has no result: it is still live, or its supervisor died", Remedy: "agentguard trace show " + d.ID()}
		}
		if err != nil {
			return err
		}
		live := d.Live()
		if j, why := vouchFor(*state, d); j == trace.Altered || j == trace.Unsealed && !live {
			res.Record.Verdict, res.Record.Findings = string(j), append(why, res.Record.Findings...)
		}
		if *asJSON {
			return writeJSON(os.Stdout, res)
		}
		return res.WriteText(os.Stdout)
	}
	return c
}

func copyFile(d *runs.RunDir, name string) error {
	f, err := d.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteTo(os.Stdout)
	return err
}

// noRun says that no run is called so.
func noRun(name, state string) error {
	if name == "last" {
		return &supervisor.Refusal{What: "there is no run in " + state + " yet", Remedy: "agentguard exec -- COMMAND makes one"}
	}
	remedy := "agentguard runs ls shows those there are"
	if _, err := os.Lstat(name); err == nil {
		remedy = "a file is named with a slash: ./" + trace.Quote(name)
	}
	return &supervisor.Refusal{What: "no run " + trace.Quote(name) + " in " + state, Remedy: remedy}
}
