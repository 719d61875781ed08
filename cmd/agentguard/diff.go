//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

func newDiff() *cobra.Command {
	c := &cobra.Command{
		Use:   "diff [ID|last]",
		Short: "Show what a run changed in its copy-on-write trees",
		Long: `diff shows the staged changes of a run: dangerous ones first, such as git hooks and
configuration, start-up files of shells, what editors, agents and CI act on. What the
host's .gitignore files name, such as build output, is one line a directory; deletions,
what git tracks all the same and what commit holds back are always listed. Without an ID
it is the newest run that staged any.`,
		Example: "  agentguard diff\n  agentguard diff --patch last | git apply\n  agentguard diff --json | jq -r 'select(.danger) | .path'",
		Args:    cobra.MaximumNArgs(1),
	}
	state := auditedFlags(c)
	stat := c.Flags().Bool("stat", false, "lines added and removed per path")
	patch := c.Flags().Bool("patch", false, "a patch for git apply")
	names := c.Flags().Bool("name-status", false, "one change a line: a letter and the path")
	asJSON := c.Flags().Bool("json", false, "one change a line, as JSON")
	all := c.Flags().Bool("all", false, "list what git ignores too, in place of one line a directory")
	c.MarkFlagsMutuallyExclusive("stat", "patch", "name-status", "json")
	c.RunE = func(_ *cobra.Command, args []string) error {
		s, d, err := openStaged(*state, args, false)
		if err != nil {
			return err
		}
		defer d.Close()
		defer s.Close()
		list := s.Changes(append(protectOf(), s.Protect...), s.Settled)
		p := &changes.Patcher{Set: s.Set, Lower: s.OpenTree}
		switch {
		case *stat:
			return p.WriteStat(os.Stdout, list)
		case *patch:
			w := forTerminal(os.Stdout)
			err := p.Write(w, list)
			if e, ok := w.(*escaper); ok {
				err = errors.Join(err, e.flush())
			}
			for _, h := range p.Held {
				tell("not in the patch: %s", h)
			}
			return err
		case *names:
			return changes.WriteNameStatus(os.Stdout, list)
		case *asJSON:
			return changes.WriteJSON(os.Stdout, list)
		}
		return writeDiff(s, d, list, *all)
	}
	return c
}

func writeDiff(s *supervisor.Staged, d *runs.RunDir, list []changes.Change, all bool) error {
	var folds []changes.Fold
	if !all {
		list, folds = s.FoldIgnored(list, s.OpenTree)
	}
	if err := errors.Join(changes.WriteText(os.Stdout, list), changes.WriteFolds(os.Stdout, folds)); err != nil {
		return err
	}
	for _, f := range s.Findings {
		tell("the change set is not complete: %s", trace.Quote(f))
	}
	if s.Open {
		tell("a commit was interrupted; agentguard commit %s takes it up again", d.ID())
	}
	return nil
}

// openStaged opens the change set of the run that args name, or of the newest
// that has one.
func openStaged(dir string, args []string, lock bool) (*supervisor.Staged, *runs.RunDir, error) {
	who, err := caller()
	if err != nil {
		return nil, nil, err
	}
	st, err := openState(dir)
	if err != nil {
		return nil, nil, err
	}
	defer st.Close()
	d, err := stagedRun(st, append(args, "last")[0])
	if err != nil {
		return nil, nil, err
	}
	s, err := supervisor.OpenStaged(d, who, lock)
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	if d.Shown() {
		s.Ask = askHelper(d.ID())
	}
	return s, d, nil
}

// stagedRun opens a run by name, where "last" is the newest that staged changes.
func stagedRun(s *runs.State, name string) (*runs.RunDir, error) {
	if name == "last" {
		return newestChanged(s)
	}
	return findRun(s, name)
}

// newestChanged opens the newest run that staged changes.
func newestChanged(s *runs.State) (*runs.RunDir, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		d, err := s.Open(id)
		if err != nil {
			continue // removed meanwhile
		}
		f, err := d.OpenDir(runs.ChangesDir)
		if err == nil {
			return d, f.Close()
		}
		if err := d.Close(); err != nil {
			return nil, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, &supervisor.Refusal{What: "no run in " + s.Path() + " staged changes", Remedy: "runs stage what they change unless --mode is rw or ro"}
}

// protectOf is the administrator's list of protected paths; that of a run's own
// policy was in its plan.
func protectOf() []string {
	f, err := policy.ReadFile(systemPolicy)
	if err != nil {
		return nil // none, or one that exec reports
	}
	p, err := policy.Merge(f)
	if err != nil {
		return nil
	}
	return protected(p)
}

func protected(p *policy.Policy) []string {
	var out []string
	for _, t := range p.Protect {
		out = append(out, t.Value)
	}
	return out
}

// forTerminal escapes what steers a terminal when w is one. A pipe or file gets
// the bytes as they are.
func forTerminal(w *os.File) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return &escaper{w: w}
}

type escaper struct {
	w    io.Writer
	rest []byte
}

// flush writes a last line without its end.
func (e *escaper) flush() error {
	_, err := io.WriteString(e.w, trace.Line(string(e.rest)))
	e.rest = nil
	return err
}

func (e *escaper) Write(b []byte) (int, error) {
	e.rest = append(e.rest, b...)
	for {
		i := bytes.IndexByte(e.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		if _, err := io.WriteString(e.w, trace.Line(string(e.rest[:i]))+"\n"); err != nil {
			return 0, err
		}
		e.rest = e.rest[i+1:]
	}
}
