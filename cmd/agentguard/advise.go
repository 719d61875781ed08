//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

func newAdvise() *cobra.Command {
	f := &execFlags{}
	c := &cobra.Command{
		Use: "advise [flags] -- COMMAND [ARG...]", Short: "Say how a command should be run here: airgapped, split, or in the disposable machine that this is", Args: cobra.ArbitraryArgs,
		Long: `advise looks at this machine (is it a virtual one, is it thrown away, has it a network and
credentials) and at what the policy would grant the command, and says with its evidence which
of three holds: airgap, run it in the envelope without network and credentials; split, compute in
the envelope and let the host make the request (agentguard dispatch); may-skip, this is a disposable
virtual machine without either, and an envelope inside may be skipped. It changes nothing, runs
nothing, and goes by no word of the command: agentguard never skips the envelope by itself.`,
		Example: `  agentguard advise -- make test
  agentguard advise --allow api.example.com:443 --json -- ./sync.sh`,
	}
	c.Flags().SetInterspersed(false)
	f.addPolicyFlags(c)
	disposable := c.Flags().Bool("disposable", false, "you know that this machine is thrown away after the command")
	asJSON := c.Flags().Bool("json", false, "as JSON")
	c.RunE = func(_ *cobra.Command, args []string) error {
		p, err := f.policy()
		if err != nil {
			return err
		}
		who, err := caller()
		if err != nil {
			return err
		}
		a := supervisor.Advise(supervisor.Question{Policy: p, Environ: os.Environ(), Home: who.Home(os.Getenv), Disposable: *disposable})
		if *asJSON {
			return jsonLine(a)
		}
		return printAdvice(a, args)
	}
	return c
}

func printAdvice(a *supervisor.Advice, args []string) error {
	var b strings.Builder
	command := "COMMAND"
	if len(args) > 0 {
		quoted := make([]string, len(args))
		for i, arg := range args {
			quoted[i] = trace.Quote(arg)
		}
		command = strings.Join(quoted, " ")
	}
	fmt.Fprintf(&b, "%s\n", a.Advice)
	for _, w := range a.Why {
		fmt.Fprintf(&b, "  because %s\n", w)
	}
	for _, d := range a.Do {
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(d, "COMMAND", command))
	}
	b.WriteByte('\n')
	for _, e := range a.Evidence {
		holds := "no"
		if e.Holds {
			holds = "yes"
		}
		fmt.Fprintf(&b, "%-14s %-4s %s\n", e.About, holds, e.Text)
	}
	_, err := os.Stdout.WriteString(b.String())
	return err
}
