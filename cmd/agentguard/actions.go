//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

func newActions() *cobra.Command {
	c := &cobra.Command{
		Use: "actions", Short: "List and approve the actions of dispatch, and show what was dispatched",
		Long: `An action is one request that the host makes for a command, with a credential that the command
never sees: docs/dispatch.md. Those in ` + supervisor.ActionsDir + ` are the administrator's; a file
elsewhere must be approved, and again when it has changed.`,
	}
	c.AddCommand(newActionsLs(), newActionsApprove(), newActionsLog())
	return c
}

// listed is an action or a broker as machines read it.
type listed struct {
	Name       string   `json:"name"`
	About      string   `json:"about,omitempty"`
	Method     string   `json:"method,omitempty"` // of an action
	Allow      []string `json:"allow,omitempty"`  // of a broker: methods and paths
	Origin     string   `json:"destination"`
	Credential string   `json:"credential,omitempty"`
	Source     string   `json:"source"`
	SHA256     string   `json:"sha256"` // of the file
	Approved   bool     `json:"approved"`
}

func listedOf(found []supervisor.ListedAction) []listed {
	out := make([]listed, 0, len(found))
	for _, f := range found {
		l := listed{SHA256: f.File.SHA256, Approved: f.Approved}
		var credential *action.Credential
		if b := f.Broker; b != nil {
			l.Name, l.About, l.Origin, l.Source, credential = b.Name, b.About, b.Origin(), b.Source.String(), b.Credential
			for i := range b.Routes {
				l.Allow = append(l.Allow, b.Routes[i].String())
			}
		} else {
			a := f.Action
			l.Name, l.About, l.Method, l.Origin, l.Source, credential = a.Name, a.About, a.Method, a.URL.Origin(), a.Source.String(), a.Credential
		}
		if credential != nil {
			l.Credential = credential.Shown()
		}
		out = append(out, l)
	}
	return out
}

func newActionsLs() *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the actions of the host, and of files", Args: cobra.NoArgs, Example: "  agentguard actions ls\n  agentguard actions ls -f actions.yaml"}
	state, files := stateFlag(c), actionFiles(c)
	asJSON := c.Flags().Bool("json", false, "one action or broker a line")
	c.RunE = func(*cobra.Command, []string) error {
		return withOwnState(*state, func(who supervisor.Caller, s *runs.State) error {
			list, err := supervisor.ListActions(who, s, *files)
			if err != nil {
				return err
			}
			return printListed(listedOf(list), *asJSON)
		})
	}
	return c
}

func printListed(list []listed, asJSON bool) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, l := range list {
		if asJSON {
			if err := jsonLine(l); err != nil {
				return err
			}
			continue
		}
		state := "not approved"
		if l.Approved {
			state = "approved"
		}
		method := l.Method
		if len(l.Allow) > 0 {
			method = "broker"
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\n", l.Name, method, l.Origin, l.Credential, state, trace.Line(l.Source))
		for _, route := range l.Allow {
			fmt.Fprintf(w, "\t  %s\n", trace.Line(route))
		}
	}
	return w.Flush()
}

func newActionsApprove() *cobra.Command {
	c := &cobra.Command{
		Use: "approve FILE", Short: "Check a file of actions and approve it as it is", Args: cobra.ExactArgs(1),
		Long: `approve checks a file of actions, prints what each would do, and notes the digest of the file. From
then on dispatch -f FILE uses it, until it changes. The credentials that it names are read with the
authority of whoever calls dispatch: to approve a file gives nobody more than they had.`,
		Example: "  agentguard actions approve actions.yaml",
	}
	state := stateFlag(c)
	asJSON := c.Flags().Bool("json", false, "one action a line")
	c.RunE = func(_ *cobra.Command, args []string) error {
		return withOwnState(*state, func(who supervisor.Caller, s *runs.State) error {
			list, err := supervisor.ApproveActions(context.Background(), who, s, args[0])
			if err != nil {
				return err
			}
			return printListed(listedOf(list), *asJSON)
		})
	}
	return c
}

func newActionsLog() *cobra.Command {
	c := &cobra.Command{
		Use: "log", Short: "Show what was dispatched: from the host's log, which is signed", Args: cobra.NoArgs, Example: "  agentguard actions log",
		Long: `log shows the entries of the host's log about requests. dispatch is noted before a request is made,
dispatched when it is known what came of it; no contents are in the log, only digests and sizes.`,
	}
	state := stateFlag(c)
	asJSON := c.Flags().Bool("json", false, "one entry a line")
	c.RunE = func(*cobra.Command, []string) error {
		return withOwnState(*state, func(who supervisor.Caller, s *runs.State) error {
			v, err := supervisor.OpenVault(who, s)
			if err != nil {
				return err
			}
			defer v.Close()
			keys, err := v.Public()
			if err != nil {
				return err
			}
			l, err := v.Log(keys)
			if err != nil {
				return err
			}
			for _, f := range l.Faults {
				tell("the host's log: %s", trace.Line(f.Text))
			}
			return printDispatches(l.Dispatches, *asJSON)
		})
	}
	return c
}

func printDispatches(list []seal.LogEntry, asJSON bool) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, e := range list {
		d := e.Dispatch
		if d == nil {
			continue
		}
		if asJSON {
			if err := jsonLine(e); err != nil {
				return err
			}
			continue
		}
		what := e.Kind
		if d.Outcome != "" {
			what = d.Outcome
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s %s\t%d\t%s\n", e.Time, what, trace.Line(d.Action), d.Method, trace.Line(d.Destination), d.Status, e.Run)
	}
	return w.Flush()
}
