// Command agentguard-http is the part of agentguard that speaks HTTP. agentguard
// starts it; people do not. Why it is a program of its own: docs/decisions/0026.
package main

import (
	"fmt"
	"os"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/broker"
	"github.com/agentguard/agentguard/internal/dispatch"
	"github.com/agentguard/agentguard/internal/gateway"
)

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case action.DispatchMode:
			os.Exit(dispatch.Main())
		case broker.Mode:
			os.Exit(gateway.Main())
		}
	}
	fmt.Fprintln(os.Stderr, "agentguard-http: agentguard starts this program for dispatch and brokers; call agentguard")
	os.Exit(125)
}
