// Command agentguard-http is the part of agentguard that speaks HTTP. agentguard
// starts it; people do not. Why it is a program of its own: docs/decisions/0026.
package main

import (
	"fmt"
	"os"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/dispatch"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == action.DispatchMode {
		os.Exit(dispatch.Main())
	}
	fmt.Fprintln(os.Stderr, "agentguard-http: agentguard starts this program for dispatch; call agentguard")
	os.Exit(125)
}
