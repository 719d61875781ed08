//go:build linux

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/export"
	"github.com/agentguard/agentguard/trace/query"
)

// completed are the values of flags that a shell can complete.
var completed = map[string]func() []string{
	"mode":     func() []string { return []string{"ro", "rw", "cow"} },
	"on-loss":  func() []string { return []string{"record", "throttle", "kill"} },
	"trace":    func() []string { return []string{"all", "changes"} },
	"commit":   func() []string { return []string{"never", "ask", "success"} },
	"tty":      func() []string { return []string{"auto", "always", "never"} },
	"upper":    func() []string { return []string{"ram", "auto", "disk"} },
	"proxy":    func() []string { return []string{"env", "none"} },
	"lines":    func() []string { return []string{"all", "each"} },
	"format":   export.Formats,
	"only":     trace.Parts,
	"count-by": func() []string { names, _ := query.Fields(); return names },
	"profile":  profileNames,
}

// addCompletions teaches the shells what stands where: it is called only when
// one of them asks.
func addCompletions(c *cobra.Command) {
	for _, sub := range c.Commands() {
		addCompletions(sub)
	}
	for name, values := range completed {
		if c.Flags().Lookup(name) != nil {
			_ = c.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return values(), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
	switch {
	case c.Name() == "show" && c.Parent().Name() == "profile":
		c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return profileNames(), cobra.ShellCompDirectiveNoFileComp
		}
	case strings.Contains(c.Use, "ID") || c.Use == "diff A B":
		c.ValidArgsFunction = completeRuns
	}
}

func profileNames() []string {
	p, err := profiles()
	if err != nil {
		return nil
	}
	return p.Names()
}

// completeRuns offers the newest runs, and files where a command takes them.
func completeRuns(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch {
	case strings.Contains(c.Use, "PATH...") && len(args) > 0:
		return nil, cobra.ShellCompDirectiveDefault
	case strings.Contains(c.Use, " EXPR ") && len(args) == 0, strings.Contains(c.Use, " SEQ ") && len(args) == 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	const most = 50
	names := []string{"last"}
	state := ""
	if f := c.Flags().Lookup("state"); f != nil {
		state = f.Value.String()
	}
	if s, err := openState(state); err == nil {
		defer s.Close()
		ids, _ := s.IDs()
		names = append(names, ids[:min(len(ids), most)]...)
	}
	if strings.Contains(c.Use, "FILE") {
		return names, cobra.ShellCompDirectiveDefault
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
