package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelp wants of each command what a person asks its help for: how it is
// called, by example, and what its exit status means.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if !c.Runnable() || c.Hidden || !c.HasParent() {
			return
		}
		name := c.CommandPath()
		completeHelp(c)
		if !strings.Contains(c.Long, "Exit status: ") {
			t.Errorf("%s: the help does not say what the exit status means", name)
		}
		if !strings.Contains(c.Example, "agentguard "+strings.TrimPrefix(name, "agentguard ")) {
			t.Errorf("%s: no example in the help", name)
		}
		for _, line := range strings.Split(c.Long+"\n"+c.Example, "\n") {
			if len(line) > 110 {
				t.Errorf("%s: a line of %d signs: %s", name, len(line), line)
			}
		}
	}
	walk(newRoot())
}
