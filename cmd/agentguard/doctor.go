//go:build linux

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/supervisor"
)

// helperServes asks the helper whether it is there, root's, and lets this user in.
func helperServes() error {
	c, err := dialHelper()
	if err != nil {
		return err
	}
	return c.Close()
}

func newDoctor() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Say what this host enforces and records, layer by layer, and what to change", Args: cobra.NoArgs,
		Long: `doctor tries what a run does, layer by layer, and says what this host enforces and
records, what is thin or missing, and what to change. It never goes by versions,
changes nothing and leaves nothing behind. What only root can try is unknown to
others. The three ways to a run stand side by side first: as root or by the helper, in
a user namespace, by Landlock alone. docs/doctor.md explains every row and the JSON.

Exit status: 0 when nothing is missing (thin layers included: runs go ahead and say
so); 1 when something is missing, so that a run with the default policy would be
refused or go unrecorded.`,
		Example: "  sudo agentguard doctor\n  agentguard doctor --json | jq '.layers[] | select(.state != \"ok\")'",
	}
	asJSON := c.Flags().Bool("json", false, "as JSON")
	c.RunE = func(*cobra.Command, []string) error {
		d := supervisor.Diagnose(helperServes)
		var err error
		if *asJSON {
			err = d.WriteJSON(os.Stdout)
		} else {
			err = d.WriteText(os.Stdout)
		}
		if err == nil && !d.Healthy() {
			err = status(1)
		}
		return err
	}
	return c
}
