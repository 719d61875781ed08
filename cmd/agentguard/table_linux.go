package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/supervisor"
)

// commands are all there are.
func commands() []*cobra.Command {
	supervisor.Version = version
	return []*cobra.Command{
		newExec(), newDiff(), newCommit(), newDiscard(), newCommitApply(),
		newPolicy(), newRuns(), newPs(), newTrace(), newExplain(), newInit(), newProfile(), newKeys(), newDoctor(), newVersion(),
	}
}

// statusOf is the exit status for an error.
func statusOf(err error) int { return supervisor.StatusOf(err) }

// helper does what agentguard starts itself for.
func helper(args []string) (status int, ok bool) {
	if len(args) == 2 && args[1] == netguard.Mode {
		return netguard.Main(), true
	}
	return 0, false
}

func newVersion() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "Print version and build", Args: cobra.NoArgs}
	asJSON := c.Flags().Bool("json", false, "as JSON")
	c.RunE = func(*cobra.Command, []string) error {
		v := supervisor.Build()
		if *asJSON {
			return json.NewEncoder(os.Stdout).Encode(v)
		}
		fmt.Printf("agentguard %s %s/%s %s\n", v.Version, v.OS, v.Arch, v.Go)
		for _, s := range v.Seams {
			fmt.Printf("test build: %s can be switched off\n", s)
		}
		return nil
	}
	return c
}
