//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/suggest"
	"github.com/agentguard/agentguard/trace"
)

const suggestHelp = `suggest reads the records of runs and prints one policy for all of them: of what they were
granted the part that they used, writable only where they wrote, and what they looked for
in vain or were refused, where this host has it and you can see it. Where a write to a
readable directory was refused, it suggests a staged copy (cow). Limits that were met are
doubled. Read it before you use it: a program may ask for more than it needs.

It never suggests /, a home directory, paths that usually hold credentials, sockets of
container engines, agents and buses, or system calls outside the table; what it left out
is in the comments. --unsafe lets these in, with the words under unsafe that they need.

What a command asked for by stat(2) alone is not on record: run it again under the
suggested policy, and ask again for both runs.

Of a record that tells of no files (without root and the helper) it keeps what the run had of
them.

Exit status: 0 printed; 1 printed, and a record is degraded, incomplete or unsealed; 125 not.`

func newPolicySuggest() *cobra.Command {
	c := &cobra.Command{
		Use: "suggest [ID|last]...", Short: "Print the smallest policy for what recorded runs used and were refused",
		Long:    suggestHelp,
		Example: "  agentguard policy suggest last > agentguard.yaml\n  agentguard exec -p agentguard.yaml -- make test",
	}
	state := stateFlag(c)
	unsafe := c.Flags().Bool("unsafe", false, "suggest what should make a reader pause, too")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			args = []string{"last"}
		}
		return suggestFor(suggest.New(hostPath(), *unsafe), *state, args)
	}
	return c
}

// suggestFor prints the policy for runs.
func suggestFor(n *suggest.Needs, state string, names []string) error {
	var ids []string
	whole := true
	for _, name := range names {
		id, j, err := addRun(n, state, name)
		if err != nil {
			return err
		}
		if j != trace.Complete {
			whole = false
			tell("the record of %s is %s: the policy may lack something", id, j)
		}
		ids = append(ids, id)
	}
	_, err := os.Stdout.Write(n.YAML(fmt.Sprintf("What %s needed, by agentguard policy suggest.", strings.Join(ids, ", "))))
	if err == nil && !whole {
		err = status(1)
	}
	return err
}

// addRun takes in one run.
func addRun(n *suggest.Needs, state, name string) (string, trace.Judgement, error) {
	d, err := openRun(state, name)
	if err != nil {
		return "", "", err
	}
	defer d.Close()
	f, err := d.Open(runs.PlanFile)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return "", "", err
	}
	plan, err := suggest.ParsePlan(b)
	if err != nil {
		return "", "", err
	}
	r, err := d.Open(runs.TraceFile)
	if err != nil {
		return "", "", err
	}
	defer r.Close()
	j, err := n.Add(plan, r)
	return d.ID(), j, err
}
