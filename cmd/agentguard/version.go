//go:build linux

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/supervisor"
)

func newVersion() *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Print version, build and host", Args: cobra.NoArgs,
		Long: "version prints what this binary is and what the host says it is. What the host can\nenforce, doctor finds out.\n\nExit status: 0.", Example: "  agentguard version\n  agentguard version --json | jq .host.kernel",
	}
	asJSON := c.Flags().Bool("json", false, "as JSON")
	c.RunE = func(*cobra.Command, []string) error {
		v, host := supervisor.Build(), supervisor.Facts()
		if *asJSON {
			return json.NewEncoder(os.Stdout).Encode(struct {
				supervisor.BuildInfo
				Host supervisor.HostFacts `json:"host"`
			}{v, host})
		}
		out := bufio.NewWriter(os.Stdout)
		fmt.Fprintf(out, "agentguard %s %s/%s %s, record schema %d, kernel programs %s\n", v.Version, v.OS, v.Arch, v.Go, v.Schema, v.BPF)
		landlock := "no Landlock"
		if host.Landlock > 0 {
			landlock = fmt.Sprintf("Landlock ABI %d", host.Landlock)
		}
		fmt.Fprintf(out, "host       Linux %s %s, %s, cgroup %s\n", host.Kernel, host.Machine, landlock, cmp.Or(host.CgroupMode, "unknown"))
		for _, s := range v.Seams {
			fmt.Fprintf(out, "test build: %s can be switched off\n", s)
		}
		return out.Flush()
	}
	return c
}
