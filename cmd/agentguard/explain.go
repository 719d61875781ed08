package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
)

func newExplain() *cobra.Command {
	c := &cobra.Command{
		Use: "explain [ID|last|FILE]", Short: "Say in plain words what a run was refused, why, and what would allow it", Args: cobra.MaximumNArgs(1),
		Long: `explain lists each different denial of a run: what was tried, by which process and who
had started it, which layer refused it and by which clause, and the flag that would
allow it. Then it lists files that the command looked for in vain and that are there
on this host: it looks for each as you, on local file systems only, without following
a link to another one, and for two seconds at most. Programs that a run which failed did
not find come last, with where the host had them when it ended.

` + recordArgs + judged,
		Example: "  agentguard explain\n  agentguard explain 20261129-1636 --no-host",
	}
	state := auditedFlags(c)
	noHost := c.Flags().Bool("no-host", false, "do not look at this host's files")
	asJSON := c.Flags().Bool("json", false, "one JSON object for each different denial")
	c.RunE = func(_ *cobra.Command, args []string) error {
		return one(*state, args, func(r *record) (trace.Judgement, error) {
			ask := hostPath()
			if *noHost {
				ask = nil
			}
			if *asJSON {
				return trace.ExplainJSON(os.Stdout, r, ask)
			}
			j, err := trace.Explain(os.Stdout, r, ask)
			if r.missing != nil && err == nil {
				writePrograms(r.missing())
			}
			return j, err
		})
	}
	return c
}

// writePrograms lists the programs that a run did not find and the host had.
func writePrograms(list []string) {
	if len(list) > 0 {
		fmt.Printf("\nprograms %d\n", len(list))
	}
	for _, s := range list {
		fmt.Printf("  %s\n", s)
	}
}
