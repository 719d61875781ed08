//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

func newPolicy() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Check policy files and show what they come to"}
	c.AddCommand(newPolicyCheck(), newPolicyShow(), newPolicySchema(), newPolicySuggest())
	return c
}

func newPolicyCheck() *cobra.Command {
	c := &cobra.Command{
		Use: "check FILE...", Short: "Read policy files and report every error with file:line:col", Args: cobra.MinimumNArgs(1),
		Long:    "check reads each file as exec -p would and prints every error. Clauses that this version\ncannot enforce are reported too: exec refuses them unless they are accepted.\n\nExit status: 0 no error; 125 errors.",
		Example: "  agentguard policy check policy.yaml\n  agentguard policy check --json policy.yaml | jq -r '.message'",
	}
	asJSON := c.Flags().Bool("json", false, "one JSON object for each problem, on stdout: docs/json.md")
	c.RunE = func(_ *cobra.Command, args []string) error {
		f := &execFlags{policies: args}
		p, err := f.policy()
		if *asJSON {
			return printProblems(p, err)
		}
		if err != nil {
			return err
		}
		for _, g := range p.Gaps() {
			tell("gap %s (%s): %s; %s", g.Clause, g.Source, g.Missing, g.Remedy)
		}
		return nil
	}
	return c
}

// problem is what policy check says of one place.
type problem struct {
	Kind    string `json:"kind"` // error or gap
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1
	Col     int    `json:"col,omitempty"`  // from 1
	Clause  string `json:"clause,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// printProblems prints the errors of policies, or where there are none the gaps.
func printProblems(p *policy.Policy, err error) error {
	if err == nil {
		for _, g := range p.Gaps() {
			if err := jsonLine(problem{"gap", g.Source.File, g.Source.Line, g.Source.Col, g.Clause, g.Missing, g.Remedy}); err != nil {
				return err
			}
		}
		return nil
	}
	list := problems(err)
	if len(list) == 0 {
		list = append(list, problem{Kind: "error", Message: err.Error()}) // it could not be read at all
	}
	for _, one := range list {
		if err := jsonLine(one); err != nil {
			return err
		}
	}
	return status(supervisor.StatusFailed)
}

// problems finds the errors of all files in what was joined.
func problems(err error) (list []problem) {
	switch e := err.(type) {
	case *policy.Error:
		return []problem{{"error", e.Source.File, e.Source.Line, e.Source.Col, e.Clause, e.Message, e.Hint}}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			list = append(list, problems(one)...)
		}
	case interface{ Unwrap() error }:
		return problems(e.Unwrap())
	}
	return list
}

func newPolicyShow() *cobra.Command {
	f := &execFlags{}
	c := &cobra.Command{
		Use: "show [flags]", Short: "Print each clause in effect, its value and what set it", Args: cobra.NoArgs,
		Long:    "show takes the policy flags of exec and prints the merged policy: defaults, " + systemPolicy + ",\nthe named files and the flags, bounded by the ceiling. Toolchains and caches that \"auto\"\nfinds here are listed with what led to them.",
		Example: "  agentguard policy show\n  agentguard policy show -p policy.yaml --memory 2G",
	}
	f.addPolicyFlags(c)
	asJSON := c.Flags().Bool("json", false, "one JSON object a line: key, value, source")
	c.RunE = func(*cobra.Command, []string) error {
		p, err := f.policy()
		if err != nil {
			return err
		}
		list, err := effective(p)
		if err != nil {
			return err
		}
		return printClauses(list, *asJSON)
	}
	return c
}

// effective are the clauses of a policy, with what "auto" comes to on this host
// after those that ask for it.
func effective(p *policy.Policy) ([]policy.Clause, error) {
	c, err := caller()
	if err != nil {
		return nil, err
	}
	found := supervisor.Found(p, c, os.Environ())
	var out []policy.Clause
	list := p.Clauses()
	for i, clause := range list {
		out = append(out, clause)
		if i+1 < len(list) && list[i+1].Key == clause.Key {
			continue
		}
		for _, f := range found {
			if f.Key == clause.Key {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

func newPolicySchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of policy files, for editors", Args: cobra.NoArgs,
		Long: "schema prints a JSON Schema (draft 2020-12) made from the table that policy files are read\nby. It accepts every file that check accepts; check refuses more.",
		Example: "  agentguard policy schema > agentguard.schema.json\n" +
			"  # yaml-language-server: $schema=./agentguard.schema.json  (first line of a policy file)",
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.Write(policy.JSONSchema())
			return err
		},
	}
}

func printClauses(list []policy.Clause, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		for _, c := range list {
			if err := enc.Encode(map[string]string{"key": c.Key, "value": c.Value, "source": c.Source.String()}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Key, c.Value, c.Source)
	}
	return w.Flush()
}
