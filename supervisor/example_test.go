package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
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

// A command is watched while it runs, and ended when it starts what it should not.
func ExampleConfig_events() {
	// In the main function of the program, first: supervisor.Main()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: supervisor.MemTotal(), Cwd: "/usr/share"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	p.StageLimited()
	res, err := supervisor.Execute(ctx, supervisor.Config{
		Policy: p, Argv: []string{"make", "test"}, Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr,
		Events: func(e *trace.Event) {
			switch {
			case e.Denied():
				fmt.Fprintln(os.Stderr, trace.Sentence(e)) // quoted: what came from the command is safe to print
			case e.Kind == trace.KindExec && path.Base(string(e.Path)) == "nc":
				cancel()
			}
		},
	})
	if err != nil {
		fmt.Println(err, supervisor.StatusOf(err))
		return
	}
	if res.Reason == supervisor.ReasonError {
		fmt.Println("ended by us:", res.Record.Path)
	}
}
