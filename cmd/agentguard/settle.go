//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// settle decides about what the run staged, as --commit says: commit it when the
// command succeeded, ask on a terminal, or say that it is there.
func (f *execFlags) settle(res *runs.Result, pol *policy.Policy) error {
	if res.Changes == nil {
		for _, name := range f.collect {
			tell("%s is not collected: the run staged nothing", trace.Quote(name))
		}
		return nil
	}
	when := pol.Commit.Value
	terminal := isTerminal(os.Stdin) && isTerminal(os.Stderr)
	if when == "never" && asksByDefault(pol) && terminal && isTerminal(os.Stdout) && !f.quiet {
		when = "ask"
	}
	but := ""
	switch {
	case when == "success" && res.Status == 0:
		return keeps(f.commitRun(res), res)
	case len(f.collect) > 0:
		but = "but for what was collected "
		if err := f.collectResults(res); err != nil {
			return keeps(err, res)
		}
	}
	switch {
	case when == "ask" && terminal:
		return keeps(f.ask(res, but), res)
	}
	f.tellStaged(res, but)
	return nil
}

// asksByDefault reports whether a person is to be asked where one is: nobody has set the
// clause, and no ceiling has never.
func asksByDefault(pol *policy.Policy) bool {
	return pol.Commit.Source.IsDefault() && pol.Allows("filesystem.commit", "ask", policy.Source{Flag: "--commit"}) == nil
}

// keeps adds to what went wrong with changes that they are not lost. A conflict has said so itself.
func keeps(err error, res *runs.Result) error {
	var s status
	if err == nil || errors.As(err, &s) {
		return err
	}
	return fmt.Errorf("%w\nwhat run %s staged is kept: agentguard diff %s, commit %s", err, res.ID, res.ID, res.ID)
}

func (f *execFlags) tellStaged(res *runs.Result, but string) {
	if !f.quiet {
		tell("staged: %s; %sthe host's files are as they were (agentguard diff %s, commit %s)", res.Changes.Counted(), but, res.ID, res.ID)
	}
}

func (f *execFlags) commitRun(res *runs.Result) error {
	s, d, err := openStaged(f.state, []string{res.ID}, true)
	if err != nil {
		return err
	}
	defer d.Close()
	defer s.Close()
	return commit(s, res.ID, commitChoice{protect: s.Protect, quiet: f.quiet})
}

// maxCollected bounds what one run hands out by --collect, in bytes.
const maxCollected = 1 << 30

// collectResults commits the results that were named. What is no regular file,
// such as a link that the command left in a result's place, is not handed out.
func (f *execFlags) collectResults(res *runs.Result) error {
	s, d, err := openStaged(f.state, []string{res.ID}, true)
	if err != nil {
		return err
	}
	defer d.Close()
	defer s.Close()
	var paths []string
	for _, name := range f.collect {
		p, err := absolute(name)
		if err != nil {
			return err
		}
		if !s.Has(p) {
			tell("%s was not made or changed", trace.Quote(name))
			continue
		}
		paths = append(paths, p)
	}
	if len(paths) == 0 {
		return nil
	}
	picks, held, err := s.Pick(paths, s.Protect, false)
	if err != nil {
		return err
	}
	for _, n := range s.OnlyFiles(picks, maxCollected) {
		tell("not collected: %s", n)
	}
	if err := s.Commit(picks, false); err != nil {
		return commitFailed(err, res.ID, false)
	}
	tellHeld(held)
	if !f.quiet {
		tellCommitted(s, picks)
	}
	return nil
}

// ask shows the changes and lets a person decide. No answer changes nothing.
func (f *execFlags) ask(res *runs.Result, but string) error {
	s, d, err := openStaged(f.state, []string{res.ID}, false)
	if err != nil {
		return err
	}
	err = writeStaged(s)
	if err = errors.Join(err, s.Close(), d.Close()); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(os.Stdin.Fd()), unix.TCFLSH, unix.TCIFLUSH); err != nil { // what was typed before answers nothing
		return os.NewSyscallError("ioctl TCFLSH", err)
	}
	fmt.Fprintf(os.Stderr, "agentguard: %s: commit them? [y/N] ", res.Changes.Counted())
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); err == nil && (answer == "y" || answer == "yes") {
		return f.commitRun(res)
	}
	f.tellStaged(res, but)
	return nil
}

// writeStaged shows at most a screen of changes on stderr.
func writeStaged(s *supervisor.Staged) error {
	const most = 40
	list, folds := s.FoldIgnored(s.Changes(s.Protect, s.Settled), s.OpenTree)
	var rest []changes.Change
	if len(list) > most {
		list, rest = list[:most], list[most:]
	}
	if err := changes.WriteText(os.Stderr, list); err != nil {
		return err
	}
	for _, line := range restLines(rest) {
		tell("%s", line)
	}
	if len(folds) > most {
		tell("and %d places that git ignores", len(folds)-most)
		folds = folds[:most]
	}
	return changes.WriteFolds(os.Stderr, folds)
}

// restLines count what is not shown, and why some of it should be: a command could fill the
// screen with changes that look worse, or only come first.
func restLines(rest []changes.Change) (out []string) {
	if len(rest) == 0 {
		return nil
	}
	out = append(out, fmt.Sprintf("and %d more", len(rest)))
	why := map[string]int{}
	for i := range rest {
		if d := rest[i].Danger; d.Why != "" {
			why[d.Why]++
		}
	}
	for i, w := range slices.Sorted(maps.Keys(why)) {
		if i == most {
			return append(out, "  and other reasons to look at them first: agentguard diff lists them")
		}
		out = append(out, fmt.Sprintf("  of them %d: %s", why[w], w))
	}
	return out
}

// continued opens what the run is to begin with: what --continue names, or with
// persistence: keep what the newest run in the same workspace left staged.
func (f *execFlags) continued(pol *policy.Policy) (*supervisor.Staged, error) {
	who, err := caller()
	if err != nil {
		return nil, err
	}
	return f.continuedBy(who, pol)
}

// continuedBy is continued for a caller whose records this process may read.
func (f *execFlags) continuedBy(who supervisor.Caller, pol *policy.Policy) (*supervisor.Staged, error) {
	keeps := pol.Persistence.Value == "keep" && pol.Workspace.Mode == "cow" && pol.Workspace.Path != ""
	if f.cont == "" && !keeps {
		return nil, nil
	}
	dir, err := who.StateDir(f.state)
	if err != nil {
		return nil, err
	}
	st, err := runs.OpenState(dir, os.Getuid())
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if f.cont == "" {
		return kept(st, who, pol.Workspace.Path)
	}
	d, err := stagedRun(st, f.cont)
	if err != nil {
		return nil, err
	}
	s, err := supervisor.OpenStaged(d, who, false)
	return s, errors.Join(err, d.Close())
}

// kept finds the newest run that changed a workspace, when something of that is
// still staged.
func kept(st *runs.State, who supervisor.Caller, workspace string) (*supervisor.Staged, error) {
	ids, err := st.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		d, err := st.Open(id)
		if err != nil {
			continue // removed meanwhile
		}
		s, err := supervisor.OpenStaged(d, who, false)
		if err != nil {
			if err := d.Close(); err != nil {
				return nil, err
			}
			continue // it staged nothing, or is live
		}
		of, pending := s.Pending(workspace)
		if of && pending {
			return s, d.Close()
		}
		if err := errors.Join(s.Close(), d.Close()); err != nil || of {
			return nil, err
		}
	}
	return nil, nil
}
