package main

import (
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
