//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// commands are those that need no Linux: they read records that were copied
// from a host, with its public key alone.
func commands() []command {
	return []command{{"trace", newTrace}, {"explain", newExplain}, {"version", newVersion}}
}

func newVersion() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "Print version and build", Args: cobra.NoArgs}
	c.Run = func(*cobra.Command, []string) {
		fmt.Printf("agentguard %s %s/%s %s (reads records only)\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	}
	return c
}

// statusOf is the exit status for an error: the record could not be read.
func statusOf(error) int { return 125 }

func startedByUs([]string) {}

func leave() {}

// addCompletions has nothing to add: there are no runs here.
func addCompletions(*cobra.Command) {}
