//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// dispatchStatuses are for the help of the commands that dispatch.
const dispatchStatuses = `Exit status: 0 sent, and answered as the action says; 120 the input was refused, nothing was
sent; 121 a limit or the credential, nothing was sent; 122 no answer (the result says whether the
upstream may have the request); 123 an answer that the action does not let through; 125 agentguard
could not. Of several lines the first that is not 0 counts.`

func newDispatch() *cobra.Command {
	c := &cobra.Command{
		Use: "dispatch [flags] ACTION", Short: "Make one request that an action describes, with a credential that no command sees", Args: cobra.ExactArgs(1),
		Long: `dispatch reads JSON from standard input, checks it against the schema of the action, makes the
request that the action describes, and prints as JSON what the action lets through of the answer.
Actions are in /etc/agentguard/actions/*.yaml, or in files that were approved (agentguard actions
approve).

` + dispatchStatuses,
		Example: `  agentguard dispatch forge.open-issue <issue.json
  agentguard dispatch --dry-run -f actions.yaml forge.open-issue <issue.json
  ./findings | agentguard dispatch --lines all forge.open-issue`,
	}
	state := stateFlag(c)
	files := actionFiles(c)
	lines := linesFlag(c)
	dry := c.Flags().Bool("dry-run", false, "print what would be sent, the credential as ***, and send nothing")
	_ = c.Flags().Bool("json", true, "one result a line; there is no other form")
	c.RunE = func(_ *cobra.Command, args []string) error {
		return withOwnState(*state, func(who supervisor.Caller, s *runs.State) error {
			if err := withinCeiling(args[0]); err != nil {
				return err
			}
			found, err := supervisor.FindAction(who, s, args[0], *files)
			if err != nil {
				return err
			}
			d := &supervisor.Dispatch{Caller: who, State: s, Found: found, Input: os.Stdin, Lines: *lines, DryRun: *dry, Told: printOutcome}
			return runDispatch(d)
		})
	}
	return c
}

// withOwnState opens the caller's own state directory, helper or not: who may read
// the credential makes the request, and its log is the caller's.
func withOwnState(state string, do func(supervisor.Caller, *runs.State) error) error {
	who, err := caller()
	if err == nil {
		state, err = who.StateDir(state)
	}
	if err != nil {
		return err
	}
	s, err := runs.OpenState(state, os.Getuid())
	if err != nil {
		return err
	}
	defer s.Close()
	return do(who, s)
}

// withinCeiling holds an action against the ceiling's secrets, as exec does.
func withinCeiling(name string) error {
	file, err := policy.FromFlags([]policy.Flag{{Name: "dispatch", Value: name}})
	if err != nil {
		return err
	}
	p, err := policy.Merge(file)
	if err != nil {
		return err
	}
	return bound(p, inProcess)
}

func actionFiles(c *cobra.Command) *[]string {
	return c.Flags().StringArrayP("file", "f", nil, "look in this `FILE` of actions, which must be approved; may be repeated")
}

func linesFlag(c *cobra.Command) *string {
	return c.Flags().String("lines", "", "each line of the input is a JSON text, `HOW`: all, none is sent unless all are right; each, each for itself")
}

// runDispatch dispatches until it is done or told to end.
func runDispatch(d *supervisor.Dispatch) error {
	switch d.Lines {
	case action.LinesOne, action.LinesAll, action.LinesEach:
	default:
		return fmt.Errorf("--lines is all or each, not %s", trace.Quote(d.Lines))
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	st, err := d.Do(ctx)
	if err == nil && st != 0 {
		err = status(st)
	}
	return err
}

// printOutcome prints an outcome, and a line for people where it is none of success.
func printOutcome(o *action.Outcome) error {
	if o.Outcome != action.Done && o.Outcome != action.DryRun {
		tellOutcome(o)
	}
	return jsonLine(o)
}

func tellOutcome(o *action.Outcome) {
	where := o.Action
	if o.Line > 0 {
		where += fmt.Sprintf(", line %d", o.Line)
	}
	why := trace.Line(o.Why)
	for i, e := range o.Errors {
		if i == 3 {
			why += "; ..."
			break
		}
		if e.Pointer != "" {
			why += "; " + trace.Line(e.Pointer) + ": " + trace.Line(e.Message)
		} else { // of the whole
			why += "; " + trace.Line(e.Message)
		}
	}
	sent := map[string]string{action.SentNo: "nothing was sent", action.SentYes: "the request was sent", action.SentUnknown: "the upstream may have the request"}[o.Sent]
	tell("%s: %s: %s (%s)", where, o.Outcome, why, sent)
}
