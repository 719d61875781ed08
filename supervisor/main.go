package supervisor

import (
	"os"
	"sync/atomic"

	"github.com/agentguard/agentguard/internal/netguard"
)

// mainCalled is of the program, which Execute starts again for some runs: without
// it that would be one more of what the program is otherwise.
var mainCalled atomic.Bool

// Main is to be called first in the main function of every program that calls
// Execute. For a run with an allowlist, the process that dials is the program's own
// file, started again with ids of its own: in that process Main does
// its work and exits. Everywhere else it returns at once.
//
// A program that does not call it cannot run commands with an allowlist: Execute
// refuses them.
func Main() {
	mainCalled.Store(true)
	comeBack()
	if len(os.Args) == 2 && os.Args[1] == netguard.Mode {
		os.Exit(netguard.Main())
	}
}

// checkMain refuses what cannot be done by a program that has not called Main.
func checkMain() error {
	if mainCalled.Load() {
		return nil
	}
	return &Refusal{
		What: "this program cannot be started again as the process that dials for the run", Clause: "network.allowlist",
		Remedy: "call supervisor.Main first in its main function",
	}
}
