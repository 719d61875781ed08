package supervisor

import (
	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/trace"
)

// Pick selects entries: all, or those at and below paths (absolute host paths),
// with the directories that they need. What is protected is left out unless
// with says otherwise; held is what was left out.
func (s *Staged) Pick(paths, protect []string, with bool) (picks []bool, held []changes.Change, err error) {
	if picks, err = s.Select(paths); err != nil {
		return nil, nil, err
	}
	list := s.Changes(protect, s.Settled)
	for i := range list {
		if c := &list[i]; c.Danger.Protected && !with && picks[c.Entry.N-1] {
			picks[c.Entry.N-1] = false
			held = append(held, *c)
		}
	}
	s.holdBelow(picks, held)
	s.holdAbove(picks, held)
	return picks, held, s.needed(picks)
}

// Select selects what is not decided yet: all, or what lies at and below paths. It is what may
// be discarded: a new directory stays staged for what else is in it.
func (s *Staged) Select(paths []string) ([]bool, error) {
	picks, in, hit := make([]bool, len(s.Entries)), make([]bool, len(s.Entries)), make([]bool, len(paths))
	for i := range picks {
		e := &s.Entries[i]
		in[i] = len(paths) == 0 || !e.Root() && in[e.Parent-1] || s.below(e, paths, hit) // a path may be cut, and its directory's is not
		picks[i] = in[i] && !s.Settled[i]
	}
	for i, ok := range hit {
		if !ok {
			return nil, &Refusal{What: "nothing that is staged lies at " + trace.Quote(paths[i]), Remedy: "agentguard diff " + s.run.ID() + " lists the paths"}
		}
	}
	return picks, nil
}

// OnlyFiles takes out of picks what is neither a regular file nor a directory,
// deletions, directories that the host has elsewhere or as something else, with what is in them, and
// what is beyond limit bytes, and says what that was.
func (s *Staged) OnlyFiles(picks []bool, limit int64) (out []string) {
	without := map[int]bool{} // directories
	for i := range s.Entries {
		e := &s.Entries[i]
		if without[e.Parent] {
			picks[i], without[e.N] = false, true
		}
		if !picks[i] || e.Op() == changes.None {
			continue
		}
		why := ""
		switch {
		case e.New == nil:
			why = "it was deleted"
		case len(e.From) > 0:
			why, without[e.N] = "it was renamed from "+trace.Quote(e.From), true
		case e.New.Type == changes.Dir && e.Old != nil && e.Old.Type != changes.Dir:
			why, without[e.N] = "it took the place of a "+string(e.Old.Type), true
		case e.New.Type == changes.File && e.New.Size > limit:
			why = "it is too large"
		case e.New.Type == changes.File:
			limit -= e.New.Size
		case e.New.Type != changes.Dir:
			why = "it is a " + string(e.New.Type)
		}
		if why != "" {
			picks[i] = false
			out = append(out, trace.Quote(s.Path(e))+": "+why)
		}
	}
	return out
}

// holdBelow holds back what lies in a new or renamed directory that is held back.
func (s *Staged) holdBelow(picks []bool, held []changes.Change) {
	out := map[int]bool{}
	for i := range held {
		out[held[i].Entry.N] = true
	}
	for i := range s.Entries {
		if e := &s.Entries[i]; out[e.Parent] {
			if op := s.Entries[e.Parent-1].Op(); op == changes.Added || op == changes.Renamed || op == changes.Retyped {
				picks[i], out[e.N] = false, true
			}
		}
	}
}

// holdAbove keeps the directories in which something is held back that the run deleted: they
// would not be empty.
func (s *Staged) holdAbove(picks []bool, held []changes.Change) {
	for i := range held {
		for e := held[i].Entry; goes(e) && !e.Root(); {
			if e = &s.Entries[e.Parent-1]; goes(e) {
				picks[e.N-1] = false
			}
		}
	}
}

// goes reports what has no place in the tree any more, as it was.
func goes(e *changes.Entry) bool {
	return e.Old != nil && (e.New == nil || e.New.Type != e.Old.Type)
}

// needed adds the new directories that picked entries lie in, and refuses a
// pick inside a renamed directory without the rename.
func (s *Staged) needed(picks []bool) error {
	for i := len(picks) - 1; i >= 0; i-- { // children come after their directory
		e := &s.Entries[i]
		if !picks[i] || e.Root() || s.Settled[e.Parent-1] {
			continue
		}
		switch dir := &s.Entries[e.Parent-1]; dir.Op() {
		case changes.Added, changes.Retyped:
			picks[dir.N-1] = picks[dir.N-1] || e.New != nil
		case changes.Renamed:
			if !picks[dir.N-1] {
				return &Refusal{
					What:   trace.Quote(s.Path(e)) + " lies in a directory that was renamed from " + trace.Quote(dir.From),
					Remedy: "name the directory " + trace.Quote(s.Path(dir)) + " itself",
				}
			}
		}
	}
	return nil
}
