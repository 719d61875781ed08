//go:build linux

package main

import (
	"errors"
	"io"

	"github.com/agentguard/agentguard/supervisor"
)

// writePlan writes what a run would do: for people, or the plan as it would be
// stored. calls adds the calls, one a line.
func writePlan(w io.Writer, p *supervisor.Plan, asJSON, calls bool) error {
	if asJSON {
		b, err := p.JSON()
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	err := p.WriteText(w)
	if calls {
		err = errors.Join(err, p.WriteCalls(w))
	}
	return err
}
