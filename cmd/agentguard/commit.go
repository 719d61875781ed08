//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// StatusConflict is the exit status of a commit that the host's own changes
// stand in the way of. Nothing was changed.
const statusConflict = 1

func newCommit() *cobra.Command {
	c := &cobra.Command{
		Use:   "commit [ID|last] [PATH...]",
		Short: "Apply what a run staged to the host's files",
		Long: `commit applies the staged changes of a run, or those at and below the paths, to the
host's files, with the rights of the tree's owner. It compares the files with what the
run saw first: when one was changed meanwhile, nothing is committed. Paths that other
programs act on without being asked (git hooks, shell start-up files: see agentguard
diff) are held back. A commit that is interrupted goes on, or is undone, at the next one.

Exit status: 0 done, also when paths were held back; 1 nothing was committed, because the
host's files are not what the run saw; 125 not, and stderr says why.`,
		Example: "  agentguard commit\n  agentguard commit last src/main.go\n  agentguard commit 20261129-1636 --include-protected --json",
	}
	state := stateFlag(c)
	force := c.Flags().Bool("force", false, "overwrite what was changed on the host meanwhile")
	with := c.Flags().Bool("include-protected", false, "commit protected paths too")
	quiet := c.Flags().BoolP("quiet", "q", false, "say nothing but errors and what is held back")
	asJSON := c.Flags().Bool("json", false, "one line for each path: as diff --json, and its outcome, committed, held or conflict")
	c.RunE = func(_ *cobra.Command, args []string) error {
		s, d, paths, err := stagedArgs(*state, args)
		if err != nil {
			return err
		}
		defer d.Close()
		defer s.Close()
		return commit(s, d.ID(), commitChoice{paths: paths, protect: append(protectOf(), s.Protect...), with: *with, force: *force, quiet: *quiet, json: *asJSON})
	}
	return c
}

type commitChoice struct {
	paths, protect     []string
	with, force, quiet bool
	json               bool
}

func commit(s *supervisor.Staged, id string, o commitChoice) error {
	picks, held, err := s.Pick(o.paths, o.protect, o.with)
	if err != nil {
		return err
	}
	list := s.Changes(o.protect, s.Settled) // before: afterwards they are settled
	if err := s.Commit(picks, o.force); err != nil {
		return commitFailed(err, id, o.json)
	}
	if o.json {
		return errors.Join(changes.WriteOutcome(os.Stdout, picked(list, picks), "committed"), changes.WriteOutcome(os.Stdout, held, "held"))
	}
	tellHeld(held)
	if !o.quiet {
		tellCommitted(s, picks)
	}
	return nil
}

// picked are the changes of the entries that were picked.
func picked(list []changes.Change, picks []bool) []changes.Change {
	return slices.DeleteFunc(list, func(c changes.Change) bool { return !picks[c.Entry.N-1] })
}

// commitFailed says why nothing was committed.
func commitFailed(err error, id string, asJSON bool) error {
	var conflict *changes.ConflictError
	if errors.As(err, &conflict) {
		for i := 0; asJSON && i < len(conflict.Conflicts); i++ {
			if err := jsonLine(newConflict(&conflict.Conflicts[i])); err != nil {
				return err
			}
		}
		tellConflicts(conflict, id)
		return status(statusConflict)
	}
	return err
}

// conflictLine is what commit --json says of a path that the host changed.
type conflictLine struct {
	Outcome string `json:"outcome"` // conflict
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"` // the exact bytes, where they are not UTF-8
	Why     string `json:"why"`
}

func newConflict(c *changes.Conflict) conflictLine {
	l := conflictLine{Outcome: "conflict", Path: c.Path, Why: c.Why}
	if !utf8.ValidString(c.Path) {
		l.PathB64 = []byte(c.Path)
	}
	return l
}

// most bounds the lines of one kind that are told.
const most = 20

func tellConflicts(e *changes.ConflictError, id string) {
	for i, c := range e.Conflicts {
		if i == most {
			tell("and %d more", len(e.Conflicts)-most)
			break
		}
		tell("%s: %s", trace.Quote(c.Path), trace.Line(c.Why))
	}
	tell("nothing was committed: the host's files are not what the run saw; agentguard diff --patch %s shows its side, commit --force overwrites", id)
}

// tellHeld names what was asked for and not done, which -q does not silence.
func tellHeld(held []changes.Change) {
	for i := range held {
		if i == most {
			tell("and %d more are held back", len(held)-most)
			break
		}
		tell("held back: %s: %s; commit it with --include-protected", trace.Quote(ending(held[i].Path)), held[i].Danger.Why)
	}
}

// ending cuts a path that would fill the screen at its head.
func ending(p string) string {
	const most = 400 // bytes
	if len(p) <= most {
		return p
	}
	return "..." + p[len(p)-most:]
}

func tellCommitted(s *supervisor.Staged, picks []bool) {
	n := 0
	for i, on := range picks {
		if on && s.Entries[i].Op() != changes.None && s.Entries[i].Op() != changes.Touched {
			n++
		}
	}
	noun := "changes"
	if n == 1 {
		noun = "change"
	}
	tell("%d %s committed", n, noun)
}

func newDiscard() *cobra.Command {
	c := &cobra.Command{
		Use:     "discard [ID|last] [PATH...]",
		Short:   "Mark what a run staged as thrown away; the record keeps it",
		Example: "  agentguard discard\n  agentguard discard last build/",
	}
	state := stateFlag(c)
	asJSON := c.Flags().Bool("json", false, "one line for each path: as diff --json, and its outcome, discarded")
	c.RunE = func(_ *cobra.Command, args []string) error {
		s, d, paths, err := stagedArgs(*state, args)
		if err != nil {
			return err
		}
		defer d.Close()
		defer s.Close()
		if s.Open {
			return &supervisor.Refusal{What: "a commit of run " + d.ID() + " was interrupted", Remedy: "finish it first: agentguard commit " + d.ID()}
		}
		picks, err := s.Select(paths)
		if err != nil {
			return err
		}
		list := picked(s.Changes(s.Protect, s.Settled), picks)
		if err := s.Discard(picks); err != nil || !*asJSON {
			return err
		}
		return changes.WriteOutcome(os.Stdout, list, "discarded")
	}
	return c
}

// stagedArgs reads [ID] [PATH...]: the first argument is a run when there is
// one of that name.
func stagedArgs(dir string, args []string) (*supervisor.Staged, *runs.RunDir, []string, error) {
	var id []string
	if len(args) > 0 {
		if d, err := openRun(dir, args[0]); err == nil {
			id, args = args[:1], args[1:]
			if err := d.Close(); err != nil {
				return nil, nil, nil, err
			}
		} else if _, serr := os.Lstat(args[0]); errors.Is(serr, fs.ErrNotExist) && len(args) == 1 {
			return nil, nil, nil, err // neither: more likely a mistyped run
		}
	}
	paths := make([]string, 0, len(args))
	for _, a := range args {
		p, err := absolute(a)
		if err != nil {
			return nil, nil, nil, err
		}
		paths = append(paths, p)
	}
	s, d, err := openStaged(dir, id, true)
	return s, d, paths, err
}

// absolute is a path of the command line, seen from the current directory. None is not
// that directory: a script's variable was empty, and all would be committed.
func absolute(name string) (string, error) {
	if name == "" {
		return "", &supervisor.Refusal{What: "a path is empty", Remedy: "leave it out, or name the current directory: ."}
	}
	return filepath.Abs(name)
}

// newCommitApply is how agentguard starts itself as the committing process.
func newCommitApply() *cobra.Command {
	return &cobra.Command{
		Use: supervisor.CommitCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return supervisor.CommitChild(os.Stdin, os.Stdout) },
	}
}
