package main

import "github.com/agentguard/agentguard/supervisor"

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
		{"trace", newTrace},
		{"explain", newExplain},
		{"init", newInit},
		{"profile", newProfile},
		{"keys", newKeys},
		{"doctor", newDoctor},
		{"advise", newAdvise},
		{"version", newVersion},
	}
}

// statusOf is the exit status for an error.
func statusOf(err error) int { return supervisor.StatusOf(err) }

// helper does what agentguard starts itself for, and then does not return.
func helper() { supervisor.Main() }
