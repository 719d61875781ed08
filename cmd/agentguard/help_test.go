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

// TestTable holds the names of the table, by which a command is found before any
// is made, to those of the commands.
func TestTable(t *testing.T) {
	for _, c := range commands() {
		if got := c.make().Name(); got != c.name {
			t.Errorf("%s is called %s in the table", got, c.name)
		}
		if got := only([]string{c.name, "x"}); len(got) != 1 || got[0].name != c.name {
			t.Errorf("%s: found %v", c.name, got)
		}
	}
	for _, args := range [][]string{nil, {"--help"}, {"help", "exec"}, {"exe"}} {
		if got := only(args); len(got) != len(commands()) {
			t.Errorf("%q: %d commands", args, len(got))
		}
	}
}
