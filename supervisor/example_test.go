package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// A command is run under a policy, and the result says how it ended.
func ExampleExecute() {
	flags, err := policy.FromFlags([]policy.Flag{{Name: "mode", Value: "ro"}, {Name: "wall", Value: "1m"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: supervisor.MemTotal(), Cwd: "/usr/share"}), flags)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := supervisor.Execute(context.Background(), supervisor.Config{
		Policy: p, Argv: []string{"sh", "-c", "cat /etc/shadow"}, Environ: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	var refused *supervisor.Refusal
	if errors.As(err, &refused) { // nothing has run
		fmt.Println(refused.What, refused.Clause, refused.Remedy)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Status, res.Reason, res.Record.Path)
	for _, d := range res.Denials.First {
		fmt.Println(d.Text)
	}
}

// A plan can be looked at without running anything.
func ExamplePrepare() {
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: supervisor.MemTotal(), Cwd: "/usr/share"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	run, err := supervisor.Prepare(supervisor.Config{Policy: p, Argv: []string{"true"}, Environ: os.Environ()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer run.Close()
	for _, g := range run.Plan().Gaps {
		fmt.Println(g.Clause, g.Missing)
	}
}
