//go:build linux

package main

import (
	"errors"
	"os"

	"github.com/agentguard/agentguard/supervisor"
)

// printPlan prints what a run would do: for people, or the plan as it would be
// stored to where --json says. verbose adds the calls, one a line.
func printPlan(p *supervisor.Plan, out *os.File, verbose bool) error {
	if out != nil {
		b, err := p.JSON()
		if err == nil {
			_, err = out.Write(b)
		}
		return err
	}
	err := p.WriteText(os.Stdout)
	if verbose {
		err = errors.Join(err, p.WriteCalls(os.Stdout))
	}
	return err
}
