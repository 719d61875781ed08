package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/export"
)

const exportHelp = `export writes the records of runs to stdout in a format that log systems know:

  jsonl   as they are stored (docs/record.md)
  ecs     Elastic Common Schema 9.4
  ocsf    Open Cybersecurity Schema Framework 1.2.0

docs/export.md says what becomes of each kind of record. How far each record can be
believed goes to stderr when it is not complete.

`

func newTraceExport() *cobra.Command {
	c := &cobra.Command{
		Use: "export [ID|last|FILE]...", Short: "Write records as ECS or OCSF events, or as they are, one JSON object a line",
		Long:    exportHelp + recordArgs + judged,
		Example: "  agentguard trace export --format ecs last > run.ndjson\n  agentguard trace export --format ocsf --all | vector --config siem.toml",
	}
	state := auditedFlags(c)
	format := c.Flags().StringP("format", "o", export.JSONL, "`FORMAT`: "+strings.Join(export.Formats(), ", "))
	original := c.Flags().Bool("original", false, "put the stored line into each event (event.original, raw_data)")
	all := c.Flags().BoolP("all", "a", false, "every run, the newest first")
	c.RunE = func(_ *cobra.Command, args []string) error {
		whole := true
		visit := func(r *record, _ int) (bool, error) {
			j, err := export.Write(os.Stdout, r, *format, *original)
			if err == nil && j != trace.Complete {
				whole = false
				tell("the record of %s is %s", r.id, j)
			}
			return true, err
		}
		err := errors.New("--all exports every run: name none")
		switch {
		case !*all:
			err = eachNamed(*state, args, visit)
		case len(args) == 0:
			err = eachRun(*state, visit)
		}
		if err == nil && !whole {
			err = status(1)
		}
		return err
	}
	return c
}
