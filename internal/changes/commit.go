package changes

import (
	"errors"
	"fmt"
	"hash"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A commit goes through these steps; each begins with a line in the journal
// that is on disk before anything of it is done:
//
//	begin    every old side is compared with the host; new contents are written into
//	         a staging directory at the top of the tree and synced
//	ready    renamed directories move into the staging directory, deletions are made
//	cleared  what is in the staging directory moves into place, modes are set
//	done     the staging directory is gone
//
// Until "ready" the host's tree has not changed, and whatever interrupts the
// commit is undone by removing the staging directory. From "ready" on, an
// interrupted commit is taken up again: each act of a step is one rename, link,
// unlink or mkdir whose result shows that it was done.

// Options of a commit.
type Options struct {
	ID      string            // of the run; names the staging directory
	Force   bool              // what the host changed meanwhile is overwritten
	Journal *os.File          // appended to and read; of this change set
	Step    func(name string) // called before each act: a test ends the process there
}

// Conflict is an entry whose old side is not what the host has.
type Conflict struct {
	N    int    `json:"n"`
	Path string `json:"path"`
	Why  string `json:"why"`
}

// ConflictError says that nothing was changed, because of conflicts.
type ConflictError struct{ Conflicts []Conflict }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%d of the paths were changed on the host meanwhile", len(e.Conflicts))
}

// record is one line of the journal.
type record struct {
	State string `json:"state"`
	Root  int    `json:"root"` // entry of the tree
	Picks []span `json:"picks,omitempty"`
	Dir   int    `json:"dir,omitempty"`  // of "opened": entry of the directory
	Mode  uint32 `json:"mode,omitempty"` // that it gets back
}

// span is a range of entries, both ends included.
type span [2]int

const (
	stateBegin   = "begin"
	stateReady   = "ready"
	stateCleared = "cleared"
	stateDone    = "done"
	stateUndone  = "undone" // the staging directory was removed, nothing was changed
	stateDropped = "dropped"
	stateOpened  = "opened" // a directory was made writable for its owner until the end
)

// Commit applies the picked entries of the tree with the given root entry to
// the directory top, with the ids of the calling process. A commit that was
// interrupted is finished first; then picks that are done are left out.
func (s *Set) Commit(top *os.File, root *Entry, picks []bool, o Options) error {
	c := &committer{set: s, top: int(top.Fd()), root: root, o: o}
	defer c.closeStage()
	if err := c.resume(); err != nil {
		return err
	}
	c.picks = c.without(picks)
	if !slices.Contains(c.picks, true) {
		return nil
	}
	return c.all()
}

// Check compares the old sides of the picked entries with the host, as the first
// step of a commit does, and changes nothing. A tree whose commit was interrupted
// is not looked at.
func (s *Set) Check(top *os.File, root *Entry, picks []bool, o Options) error {
	_, open, err := s.Settled(o.Journal)
	if err != nil || open {
		return err
	}
	c := &committer{set: s, top: int(top.Fd()), root: root, o: o}
	c.picks = c.without(picks)
	return c.check()
}

type committer struct {
	set   *Set
	top   int
	root  *Entry
	picks []bool // by entry number less 1
	o     Options

	stage     int // descriptor of the staging directory, from "begin" on
	conflicts []Conflict
	device    uint64         // that the top directory is on
	near      int            // the directory whose entries were last found to be on it
	moving    map[place]bool // directories that are renamed, by what the host has
	only      place          // of the file that is settled
	opened    map[int]uint32 // modes of directories that were made writable, by entry
	fresh     bool           // begun by this process: nothing was killed half-way
	foreign   map[int]bool   // entries whose group the committer could not give

	buf  []byte // of copy
	hash hash.Hash
}

// Stage is the name of the staging directory of a run.
func Stage(id string) string { return ".agentguard-commit-" + id }

func (c *committer) all() error {
	c.opened, c.foreign, c.fresh = map[int]uint32{}, map[int]bool{}, true
	if err := c.note(stateBegin); err != nil {
		return err
	}
	err := c.check()
	if err == nil {
		err = c.prepare()
	}
	if err != nil {
		return errors.Join(err, c.undo())
	}
	if err := c.note(stateReady); err != nil {
		return errors.Join(err, c.undo())
	}
	return c.finish(stateReady)
}

// finish does what is left after a state.
func (c *committer) finish(from string) error {
	defer c.closeStage()
	if from == stateReady {
		if err := errors.Join(c.moveOut(), c.remove()); err != nil {
			return err
		}
		if err := c.note(stateCleared); err != nil {
			return err
		}
	}
	if err := c.place(); err != nil {
		return err
	}
	c.step("remove the staging directory")
	if err := unix.Unlinkat(c.top, Stage(c.o.ID), unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return fmt.Errorf("staging directory %s: %w", Stage(c.o.ID), err)
	}
	if err := c.sync(); err != nil {
		return err
	}
	return c.note(stateDone)
}

func (c *committer) step(name string) {
	if c.o.Step != nil {
		c.o.Step(name)
	}
}

func (c *committer) closeStage() {
	if c.stage > 0 {
		unix.Close(c.stage)
		c.stage = 0
	}
}

// sync puts everything that was written below the top on disk.
func (c *committer) sync() error {
	fd, err := unix.Openat(c.top, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return os.NewSyscallError("syncfs", unix.Syncfs(fd))
}

// note appends a state to the journal and waits until it is on disk.
func (c *committer) note(state string) error {
	r := record{State: state, Root: c.root.N}
	if state == stateBegin {
		r.Picks = spans(c.picks)
	}
	c.step("note " + state)
	return appendRecord(c.o.Journal, r)
}

func spans(picks []bool) []span {
	var out []span
	for i, on := range picks {
		n := i + 1
		switch {
		case !on:
		case len(out) > 0 && out[len(out)-1][1] == n-1:
			out[len(out)-1][1] = n
		default:
			out = append(out, span{n, n})
		}
	}
	return out
}

// resume finishes or undoes what an interrupted commit of this tree left.
func (c *committer) resume() error {
	list, err := readJournal(c.o.Journal)
	if err != nil {
		return err
	}
	var last record
	for _, r := range list {
		if r.Root != c.root.N {
			continue
		}
		switch r.State {
		case stateBegin:
			c.picks, c.opened = c.pick(r.Picks), map[int]uint32{}
		case stateOpened:
			c.opened[r.Dir] = r.Mode
			continue
		}
		last = r
	}
	switch last.State {
	case stateBegin:
		return c.undo()
	case stateReady, stateCleared:
		if c.stage, err = openBeneath(c.top, Stage(c.o.ID), unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil && err != unix.ENOENT {
			return fmt.Errorf("staging directory: %w", err)
		}
		if err == unix.ENOENT { // killed between its removal and "done"
			c.stage = 0
			return c.note(stateDone)
		}
		return c.finish(last.State)
	}
	return nil
}

func (c *committer) pick(list []span) []bool {
	picks := make([]bool, len(c.set.Entries))
	for _, s := range list {
		for n := max(s[0], 1); n <= min(s[1], len(picks)); n++ {
			picks[n-1] = true
		}
	}
	return picks
}

// Settled tells which entries were committed or dropped before.
func (s *Set) Settled(journal *os.File) (done []bool, open bool, err error) {
	list, err := readJournal(journal)
	done = make([]bool, len(s.Entries))
	begun := map[int]record{}
	for _, r := range list {
		switch r.State {
		case stateBegin:
			begun[r.Root] = r
		case stateUndone:
			delete(begun, r.Root)
		case stateDone, stateDropped:
			b := r
			if r.State == stateDone {
				b = begun[r.Root]
				delete(begun, r.Root)
			}
			for _, sp := range b.Picks {
				for n := max(sp[0], 1); n <= min(sp[1], len(done)); n++ {
					done[n-1] = true
				}
			}
		}
	}
	return done, len(begun) > 0, err
}

// Drop marks entries as thrown away.
func Drop(journal *os.File, picks []bool) error {
	return appendRecord(journal, record{State: stateDropped, Picks: spans(picks)})
}

// without leaves out what is decided, what cannot be committed, and what lies in
// another tree: the journal of this one must not say that it was done.
func (c *committer) without(picks []bool) []bool {
	done, _, err := c.set.Settled(c.o.Journal)
	out := slices.Clone(picks)
	for i := range out {
		e := &c.set.Entries[i]
		out[i] = out[i] && err == nil && !done[i] && c.set.RootOf(e) == c.root && e.Op() != None && !(e.New != nil && e.New.Type == File && e.New.SHA256 == "")
	}
	return out
}

func (c *committer) picked(e *Entry) bool { return c.picks[e.N-1] }

// undo removes the staging directory: nothing else was changed.
func (c *committer) undo() error {
	c.closeStage()
	if err := removeStage(c.top, Stage(c.o.ID)); err != nil {
		return fmt.Errorf("staging directory %s: %w", Stage(c.o.ID), err)
	}
	return c.note(stateUndone)
}

// removeStage removes a directory of files.
func removeStage(top int, name string) error {
	fd, err := openBeneath(top, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := sortedNames(fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := unix.Unlinkat(fd, n, 0); err != nil {
			return err
		}
	}
	return unix.Unlinkat(top, name, unix.AT_REMOVEDIR)
}
