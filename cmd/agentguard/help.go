package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// statusHelp is what the exit status of most commands means; those with more to
// say say it themselves.
const statusHelp = "\n\nExit status: 0 done; 125 not, and stderr says why."

// completeHelp adds what help and manual pages of every command have.
func completeHelp(c *cobra.Command) {
	if c.Long == "" {
		c.Long = c.Short + "."
	}
	if c.Runnable() && !strings.Contains(c.Long, "Exit status: ") {
		c.Long += statusHelp
	}
}

// setHelp completes the help of a command when it is asked for.
func setHelp(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		completeHelp(c)
		help(c, args)
	})
}
