//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// starterFile is where init writes when it is told nothing else.
const starterFile = "agentguard.yaml"

func newInit() *cobra.Command {
	c := &cobra.Command{
		Use: "init [FILE|-]", Short: "Write a commented policy file to begin with", Args: cobra.MaximumNArgs(1),
		Long: `init writes a policy that grants what a run without a file gets, with every other key
as a comment and its default, to ` + starterFile + ` or FILE; - is stdout. It never replaces
a file. No policy file is read by itself: name it with exec -p.

Exit status: 0 written; 125 not.`,
		Example: "  agentguard init && agentguard exec -p " + starterFile + " -- make test\n  agentguard init -",
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		name := starterFile
		if len(args) > 0 {
			name = args[0]
		}
		if name == "-" {
			_, err := os.Stdout.Write(policy.Starter())
			return err
		}
		who, err := caller()
		if err != nil {
			return err
		}
		err = who.As(func() error { return writeNew(name, policy.Starter()) })
		if errors.Is(err, fs.ErrExist) {
			return &supervisor.Refusal{What: trace.Quote(name) + " is there already", Remedy: "name another file, or write to stdout: agentguard init -"}
		}
		if err != nil {
			return fmt.Errorf("the policy was not written: %w", err)
		}
		tell("wrote %s; try agentguard exec -p %s -- COMMAND", trace.Quote(name), trace.Quote(name))
		return nil
	}
	return c
}

// writeNew makes a file that must not be there.
func writeNew(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
