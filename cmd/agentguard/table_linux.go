package main

import (
	"os"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/supervisor"
)

// commands are all there are.
func commands() []command {
	supervisor.Version = version
	return []command{
		{"exec", newExec},
		{"dispatch", newDispatch},
		{"actions", newActions},
		{"diff", newDiff},
		{"commit", newCommit},
		{"discard", newDiscard},
		{supervisor.CommitCommand, newCommitApply},
		{"policy", newPolicy},
		{"runs", newRuns},
		{"ps", newPs},
		{"attach", newAttach},
		{"trace", newTrace},
		{"explain", newExplain},
		{"init", newInit},
		{"profile", newProfile},
		{"keys", newKeys},
		{"helper", newHelper},
		{"doctor", newDoctor},
		{"advise", newAdvise},
		{"version", newVersion},
	}
}

// statusOf is the exit status for an error.
func statusOf(err error) int { return supervisor.StatusOf(err) }

// leave is the end of a process that has moved into namespaces.
func leave() { supervisor.Leave() }

// startedByUs does what agentguard starts itself for, and then does not return.
func startedByUs(args []string) {
	supervisor.Main()
	if len(args) == 2 && args[1] == helper.RequestMode {
		supervisor.Version = version
		os.Exit(serveMain())
	}
}
