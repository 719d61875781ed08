package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/supervisor"
)

func newDoctor() *cobra.Command {
	c := &cobra.Command{Use: "doctor", Short: "Say what this host enforces and records, layer by layer, and what to change", Args: cobra.NoArgs,
		Long:    "doctor probes by trying, never by version, and changes nothing but agentguard's own directories.\n\nExit status: 0 everything is there; 1 something is thin or missing.",
		Example: "  agentguard doctor\n  agentguard doctor --json | jq .layers"}
	asJSON := c.Flags().Bool("json", false, "as JSON")
	c.RunE = func(*cobra.Command, []string) error {
		d := supervisor.Diagnose()
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
