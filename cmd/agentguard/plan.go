package main

import (
	"os"

	"github.com/agentguard/agentguard/supervisor"
)

// printPlan prints what a run would do: for people, or with --json the plan as
// it would be stored.
func printPlan(p *supervisor.Plan, jsonTo string) error {
	if jsonTo == "" {
		return p.WriteText(os.Stdout)
	}
	b, err := p.JSON()
	if err != nil {
		return err
	}
	out, err := openJSON(jsonTo)
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	return err
}
