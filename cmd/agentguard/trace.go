package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/query"
)

func newTrace() *cobra.Command {
	c := &cobra.Command{
		Use: "trace", Short: "Read the record of a run: views, questions, comparison",
		Long: "Every view begins with how far the record can be believed: complete, degraded,\nincomplete, unsealed or altered. Every byte that came from the command is quoted.\n\n" + recordArgs,
	}
	c.AddCommand(newTraceShow(), newTraceQuery(), newTraceTail(), newTraceDiff(), newTraceExport())
	c.AddCommand(newTraceVerify(), newTraceProve())
	for _, q := range questions {
		c.AddCommand(newQuestion(q.name, q.short, q.part, q.expr))
	}
	return c
}

// judged is what the commands that show a record say of their exit status.
const judged = "\n\nExit status: 0 the record is complete; 1 it is degraded, incomplete, unsealed or\naltered; 125 it cannot be read."

func newTraceShow() *cobra.Command {
	c := &cobra.Command{
		Use: "show [ID|last|FILE]", Short: "Show the process tree, denials, network, files, code, limits, usage and losses of a run", Args: cobra.MaximumNArgs(1),
		Long: "show prints the judgement of the record first (complete, degraded, incomplete,\nunsealed, altered), then what ran and what it did. Parts that may be long are cut and say\nso; with --only they are whole.\n\n" + recordArgs + judged,
		Example: "  agentguard trace show last\n  agentguard trace show --only timeline\n" +
			"  agentguard trace show last --json | jq 'select(.verdict==\"deny\")'",
	}
	state := auditedFlags(c)
	asJSON := c.Flags().Bool("json", false, "the events as they are stored, one a line")
	only := c.Flags().StringSlice("only", nil, "show these `PARTS` only, whole: "+strings.Join(trace.Parts(), ", "))
	c.RunE = func(_ *cobra.Command, args []string) error {
		return one(*state, args, func(r *record) (trace.Judgement, error) {
			if *asJSON {
				return trace.Complete, trace.Copy(os.Stdout, trace.NewReader(r))
			}
			return trace.Show(os.Stdout, r, *only...)
		})
	}
	return c
}

// questions are asked so often that they have names. Each is a part of the view,
// and a query for machines.
var questions = []struct{ name, short, part, expr string }{
	{
		"files", "List the files that a run used, and how", "files",
		"phase = command and kind in (open, create, unlink, rename,\n    link, mkdir, truncate, chmod, chown, setxattr)",
	},
	{"net", "List whom a run talked to, what it asked for and what was refused", "network", "phase = command and kind in (connect, bind, listen, send, dns)"},
	{"procs", "Show the process tree of a run", "processes", "kind in (exec, exec_fail, fork, exit)"},
	{"denied", "List what a run was refused", "denied", "denied"},
	{"code", "List the code that a run executed, by file and digest", "code", "phase = command and kind in (exec, mmap_exec, code)"},
}

func newQuestion(name, short, part, expr string) *cobra.Command {
	c := &cobra.Command{
		Use: name + " [ID|last|FILE]", Short: short, Args: cobra.MaximumNArgs(1),
		Long:    short + ".\n\nWith --json, the records themselves, as of:\n  agentguard trace query --json '" + expr + "'\n\n" + recordArgs + judged,
		Example: "  agentguard trace " + name + "\n  agentguard trace " + name + " --json | jq .seq",
	}
	state := auditedFlags(c)
	asJSON := c.Flags().Bool("json", false, "the records, one a line")
	c.RunE = func(_ *cobra.Command, args []string) error {
		return one(*state, args, func(r *record) (trace.Judgement, error) {
			if !*asJSON {
				return trace.Show(os.Stdout, r, part)
			}
			q, err := query.Parse(expr)
			if err != nil {
				return "", err
			}
			s := newSearch(q, true)
			if err := s.Record(r.id, r, r.size); err != nil {
				return "", err
			}
			return s.Close()
		})
	}
	return c
}

func newSearch(q *query.Query, asJSON bool) *query.Search {
	return &query.Search{Query: q, JSON: asJSON, Out: os.Stdout, Warn: func(s string) { tell("%s", s) }}
}

const queryHelp = `query prints the records for which EXPR is true, of the runs that are named, or of the
last one. EXPR compares fields of docs/record.md (--fields lists them):

  FIELD = VALUE          also == != < <= > >=; numbers take units (10MiB, 1.5s)
  FIELD ~ REGEXP         also !~; Go's syntax
  FIELD glob PATTERN     * and ? within a name, ** across names
  FIELD in (A, B, C)     one of these; addr in 10.0.0.0/8
  FIELD                  the record has the field
  denied                 the command was refused this

joined by and, or, not and parentheses. A record without a field satisfies no
comparison of it. Values with blanks or signs stand in quotes.

`

func newTraceQuery() *cobra.Command {
	c := &cobra.Command{
		Use: "query EXPR [ID|last|FILE]...", Short: "Find the records of one, many or all runs for which an expression is true",
		Long: queryHelp + recordArgs + judged,
		Example: `  agentguard trace query 'denied and path glob "/etc/**"'
  agentguard trace query 'kind = connect and not addr in 127.0.0.0/8' --all --count-by addr,port
  agentguard trace query 'kind = exec and argv ~ "^--upload"' --all --limit 20
  agentguard trace query 'errno = ENOENT' last --count-by path`,
	}
	f := c.Flags()
	state := auditedFlags(c)
	all := f.BoolP("all", "a", false, "ask every run, the newest first")
	by := f.StringSlice("count-by", nil, "count the acts by these `FIELDS` instead")
	limit := f.Uint64P("limit", "n", 0, "print at most `N` records or counts; 0 prints all")
	asJSON := f.Bool("json", false, "records as they are stored, one a line, with the run's id as run_id")
	list := f.Bool("fields", false, "list the fields and their types; with --json one object a line: field, type")
	c.Args = func(_ *cobra.Command, args []string) error {
		if *list != (len(args) == 0) {
			return errors.New("query takes an expression, or --fields; see agentguard trace query --help")
		}
		return nil
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		if *list {
			return listFields(*asJSON)
		}
		if *all && len(args) > 1 {
			return errors.New("--all asks every run: name none")
		}
		s, err := parseSearch(args[0], *by, *asJSON)
		if err != nil {
			return err
		}
		s.Limit = *limit
		return search(s, *state, args[1:], *all)
	}
	return c
}

// parseSearch makes a search of an expression and of the fields to count by.
func parseSearch(expr string, by []string, asJSON bool) (*query.Search, error) {
	q, err := query.Parse(expr)
	if err != nil {
		return nil, err
	}
	for _, name := range by {
		if err := query.CheckField(name); err != nil {
			return nil, err
		}
	}
	s := newSearch(q, asJSON)
	s.CountBy = by
	return s, nil
}

// search asks one record after another.
func search(s *query.Search, state string, names []string, all bool) error {
	visit := func(r *record, left int) (bool, error) {
		err := s.Record(r.id, r, r.size)
		if s.Full() && left > 0 {
			tell("the limit is reached: %d more runs were not asked", left)
		}
		return !s.Full(), err
	}
	ask := func() error { return eachRun(state, visit) }
	if !all {
		ask = func() error { return eachNamed(state, names, visit) }
	}
	if err := ask(); err != nil {
		return err
	}
	j, err := s.Close()
	if err == nil && j != trace.Complete {
		err = status(1)
	}
	return err
}

// eachNamed is eachRun for the records that a command line names, or the last.
func eachNamed(state string, names []string, visit func(*record, int) (bool, error)) error {
	if len(names) == 0 {
		names = []string{"last"}
	}
	for i, name := range names {
		r, err := openRecord(state, name)
		if err != nil {
			return err
		}
		more, err := visit(r, len(names)-i-1)
		if err = errors.Join(err, r.Close()); err != nil || !more {
			return err
		}
	}
	return nil
}

func listFields(asJSON bool) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	names, types := query.Fields()
	for i, name := range names {
		if asJSON {
			if err := jsonLine(map[string]string{"field": name, "type": types[i].String()}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(w, "%s\t%s\n", name, types[i])
	}
	return w.Flush()
}

// pollEvery is how often a live record is looked at again.
const pollEvery = 100 * time.Millisecond

func newTraceTail() *cobra.Command {
	c := &cobra.Command{
		Use: "tail [ID|last|FILE]", Short: "Print the last records of a run, and with -f those that come", Args: cobra.MaximumNArgs(1),
		Long:    "tail prints the last records of a run, one a line. With -f it goes on until the run has\nended, or until it is interrupted.\n\n" + recordArgs + judged,
		Example: "  agentguard trace tail -f\n  agentguard trace tail -n 50 last\n  agentguard trace tail -f --json | jq -c 'select(.kind == \"connect\")'",
	}
	state := auditedFlags(c)
	n := c.Flags().IntP("lines", "n", 10, "print the last `N` records")
	follow := c.Flags().BoolP("follow", "f", false, "wait for more as long as the run is live")
	asJSON := c.Flags().Bool("json", false, "the records as they are stored, one a line")
	c.RunE = func(_ *cobra.Command, args []string) error {
		return one(*state, args, func(r *record) (trace.Judgement, error) {
			tail := trace.Tail
			if *asJSON {
				tail = trace.TailJSON
			}
			if !*follow {
				return tail(os.Stdout, r, *n, nil)
			}
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, os.Interrupt)
			return tail(os.Stdout, r, *n, func() bool {
				select {
				case <-stop:
					return false
				case <-time.After(pollEvery):
					return r.live()
				}
			})
		})
	}
	return c
}

func newTraceDiff() *cobra.Command {
	c := &cobra.Command{
		Use: "diff A B", Short: "Compare two runs: programs, files, peers, denials, result", Args: cobra.ExactArgs(2),
		Long: "diff prints what only one of two runs did: lines of the first begin with -, lines of the\nsecond with +. How often and in which order things happened is not compared.\n\n" + recordArgs +
			"\n\nExit status: 0 they did the same and both records are complete; 1 they differ, or a record\nis not complete; 125 one cannot be read.",
		Example: "  agentguard trace diff 20261129-1636 last",
	}
	state := auditedFlags(c)
	asJSON := c.Flags().Bool("json", false, "one JSON object for each line that differs: side, section, text")
	c.RunE = func(_ *cobra.Command, args []string) error {
		a, err := openRecord(*state, args[0])
		if err != nil {
			return err
		}
		defer a.Close()
		b, err := openRecord(*state, args[1])
		if err != nil {
			return err
		}
		defer b.Close()
		same, err := trace.Diff(os.Stdout, a, b, *asJSON)
		if err == nil && !same {
			err = status(1)
		}
		return err
	}
	return c
}
