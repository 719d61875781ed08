package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// collection is all runs of a state directory, with the log of their host.
type collection struct {
	keys  seal.Keys
	log   *seal.Log // nil: a copy without it
	gone  []string  // that the log has and nobody deleted by agentguard
	ids   []string
	open  func(id string) (*sealedRun, error)
	close func() error
}

// verifyAll verifies every run and the log itself, and reports the runs that
// are gone. The status is the greatest of all.
func (c *collection) verifyAll(anchors *seal.Anchors, asJSON bool) error {
	worst := c.verifyLog(anchors)
	for _, id := range c.gone {
		if !asJSON { // told by the log
			break
		}
		if err := printReport(&seal.Report{Run: id, Verdict: trace.Altered, Faults: []seal.Fault{{Text: "it is gone: the host's log has it, and nobody deleted it by agentguard"}}}); err != nil {
			return err
		}
	}
	for _, id := range c.ids {
		s, err := c.verifyOne(id, anchors, asJSON)
		if err != nil {
			return err
		}
		worst = max(worst, s)
	}
	if worst != 0 {
		return worst
	}
	return nil
}

// verifyLog tells what is wrong with the log, and which runs it misses.
func (c *collection) verifyLog(anchors *seal.Anchors) (worst status) {
	if c.log == nil {
		tell("no log of the host is beside the runs: one that is gone cannot be missed")
		return verdictStatus[trace.Incomplete]
	}
	if anchors != nil {
		tell("%d anchored heads match the host's log", c.log.CheckAnchors(anchors, c.keys))
	}
	fault := func(j trace.Judgement, format string, a ...any) {
		worst = max(worst, verdictStatus[j])
		tell(format, a...)
	}
	for _, f := range c.log.Faults {
		fault(trace.Altered, "the host's log: %s", f)
	}
	for _, g := range c.log.Gaps {
		fault(trace.Incomplete, "the host's log was found damaged: %s", g)
	}
	for _, id := range c.gone {
		fault(trace.Altered, "run %s is gone: the host's log has it, and nobody deleted it by agentguard", trace.Line(id))
	}
	return worst
}

// verifyOne prints one line about a run.
func (c *collection) verifyOne(id string, anchors *seal.Anchors, asJSON bool) (status, error) {
	r, err := c.open(id)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // deleted meanwhile
	}
	if err != nil {
		return 0, err
	}
	defer r.close()
	r.anchors = anchors
	live := r.live != nil && r.live()
	rep, err := r.report()
	if err != nil {
		tell("%v", err)
		return verdictStatus[trace.Altered], nil
	}
	s := verdictStatus[rep.Verdict]
	if live && rep.Verdict == trace.Unsealed {
		s = 0
	}
	if asJSON {
		return s, printReport(rep)
	}
	first := ""
	switch {
	case len(rep.Faults) > 0:
		first = "  " + rep.Faults[0].String()
	case len(rep.Why) > 0:
		first = "  " + trace.Line(rep.Why[0])
	}
	_, err = fmt.Printf("%-10s %s  %d of %d records%s\n", rep.Verdict, trace.Line(id), rep.Verified, rep.Records, first)
	return s, err
}

// copiedRuns are all runs of a copied state directory.
func copiedRuns(dir string, keys seal.Keys) (*collection, error) {
	if len(keys) == 0 {
		return nil, errNoKey
	}
	list, err := namesAsCaller(filepath.Join(dir, "runs"))
	if err != nil {
		return nil, fmt.Errorf("%s is no state directory: %w", trace.Quote(dir), err)
	}
	list = slices.DeleteFunc(list, func(n string) bool { return strings.HasPrefix(n, ".") }) // half made or half deleted
	c := &collection{keys: keys, ids: list, close: func() error { return nil }}
	slices.Sort(c.ids)
	slices.Reverse(c.ids)
	if c.log, err = copiedLog(filepath.Join(dir, "log"), keys); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c.log != nil {
		c.gone = c.log.Missing(0, c.ids)
	}
	c.open = func(id string) (*sealedRun, error) {
		r, err := openCopy(filepath.Join(dir, "runs", id), keys)
		if err == nil && c.log != nil {
			r.check = func(rep *seal.Report) { c.log.Check(rep, seal.RunID{ID: id}) }
		}
		return r, err
	}
	return c, nil
}

// copiedLog reads the log in a copied state directory.
func copiedLog(dir string, keys seal.Keys) (*seal.Log, error) {
	entries, err := openAsCaller(filepath.Join(dir, "entries"))
	if err != nil {
		return nil, err
	}
	defer entries.Close()
	f, err := openAsCaller(filepath.Join(dir, "head"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return nil, err
	}
	if head = seal.TrimHead(head); len(head) == 0 { // nothing vouches for a copy without it: its end may be missing
		return nil, fs.ErrNotExist
	}
	return seal.ReadLog(entries, head, keys)
}

// namesAsCaller lists a directory.
func namesAsCaller(dir string) ([]string, error) {
	f, err := openAsCaller(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// allRuns are those of this host, or of the copy that a path names.
func allRuns(state string, args []string, keys seal.Keys) (*collection, error) {
	if len(args) == 0 {
		return hostRuns(state, keys)
	}
	if !isPath(args[0]) {
		return nil, fmt.Errorf("--all takes a copied state directory, with a slash in its name, or nothing: not %s", trace.Quote(args[0]))
	}
	if len(keys) == 0 {
		keys, _ = ownKeys(state) // a host without any says what to do below
	}
	return copiedRuns(args[0], keys)
}
