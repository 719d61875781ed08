package policy

import (
	"slices"
	"strings"
)

// list is a clause of many entries: later sources add to it, and an entry
// that begins with "!" removes one that is there already.
type list[T any] struct {
	at     func(*Policy) *[]T
	parse  func(value) (T, *problem)
	id     func(T) string // equal for two entries that mean the same
	index  *places[T]     // of a list that may be long; nil: entries are compared one by one
	text   func(T) string // for people; nil when it is the id
	src    func(T) Source
	covers func(most, entry T) bool // nil: the ceiling does not bound it
	from   func(*Policy) []T        // what a ceiling allows; nil when it is its own list
	keyed  bool                     // a mapping: "!" has no meaning
}

func (l list[T]) read(v value) (edit, *problem) {
	rest, removal := strings.CutPrefix(v.text, "!")
	if l.keyed || !removal {
		entry, p := l.parse(v)
		if p != nil {
			return nil, p
		}
		return func(p *Policy) *problem { l.add(p, entry); return nil }, nil
	}
	v.text = rest
	entry, p := l.parse(v)
	if p != nil {
		return nil, p
	}
	return func(p *Policy) *problem { return l.remove(p, entry) }, nil
}

// add appends entry; one that the list has already takes the new source, so
// that what is asked for is never mistaken for a default.
func (l list[T]) add(p *Policy, entry T) {
	all := l.at(p)
	if i := l.find(p, entry); i >= 0 {
		(*all)[i] = entry
		return
	}
	*all = append(*all, entry)
}

// places are where the entries of the list that was last added to are, by id.
type places[T any] struct {
	list *[]T
	by   map[string]int
}

// find returns where the entry is, or -1, after which it must be appended.
func (l list[T]) find(p *Policy, entry T) int {
	all, id := *l.at(p), l.id(entry)
	if l.index == nil {
		return slices.IndexFunc(all, func(old T) bool { return l.id(old) == id })
	}
	at := l.index
	if at.list != l.at(p) || len(at.by) != len(all) { // another policy's, or an entry was removed
		at.list, at.by = l.at(p), make(map[string]int, len(all)+1)
		for i, old := range all {
			at.by[l.id(old)] = i
		}
	}
	if i, ok := at.by[id]; ok {
		return i
	}
	at.by[id] = len(all)
	return -1
}

// remove drops the entry that an earlier source, or an earlier line, added.
func (l list[T]) remove(p *Policy, entry T) *problem {
	all := l.at(p)
	var present []string
	for i, old := range *all {
		if l.id(old) == l.id(entry) {
			*all = append((*all)[:i:i], (*all)[i+1:]...)
			return nil
		}
		present = append(present, l.id(old))
	}
	hint := "the list is empty at this point"
	if len(present) > 0 {
		hint = "earlier entries: " + bounded(present)
	}
	return wrong(hint, "%s removes nothing: no earlier entry is the same", quote("!"+l.id(entry)))
}

// bounded joins the first few entries for an error message.
func bounded(entries []string) string {
	const most = 6
	shown := make([]string, 0, most+1)
	for i, e := range entries {
		if i == most {
			shown = append(shown, "...")
			break
		}
		shown = append(shown, quote(e))
	}
	return strings.Join(shown, ", ")
}

func (l list[T]) show(p *Policy) []Clause {
	entries := *l.at(p)
	if len(entries) == 0 {
		return []Clause{{Value: "[]"}}
	}
	out := make([]Clause, 0, len(entries))
	for _, e := range entries {
		s := l.id(e)
		if l.text != nil {
			s = l.text(e)
		}
		out = append(out, Clause{Value: s, Source: l.src(e)})
	}
	return out
}

func (l list[T]) bound(p, most *Policy, src Source) Errors {
	if l.covers == nil {
		return nil
	}
	allowed := *l.at(most)
	if l.from != nil {
		allowed = l.from(most)
	}
	var errs Errors
	kept := (*l.at(p))[:0:0]
	for _, e := range *l.at(p) {
		switch {
		case l.covered(allowed, e):
			kept = append(kept, e)
		case !l.src(e).yields():
			errs = append(errs, above(l.src(e), quote(l.shown(e)), src, l.names(allowed))...)
		}
	}
	*l.at(p) = kept
	return errs
}

// covered reports whether one entry of the ceiling includes e.
func (l list[T]) covered(allowed []T, e T) bool {
	for _, a := range allowed {
		if l.covers(a, e) {
			return true
		}
	}
	return false
}

// names lists what a ceiling allows.
func (l list[T]) names(allowed []T) string {
	if len(allowed) == 0 {
		return "nothing here"
	}
	ids := make([]string, len(allowed))
	for i, a := range allowed {
		ids[i] = l.shown(a)
	}
	return bounded(ids)
}

// shown is an entry for people: of a mapping, its value too.
func (l list[T]) shown(e T) string {
	if l.keyed && l.text != nil {
		return l.text(e)
	}
	return l.id(e)
}

// texts is a list whose entries are words, names or paths.
func texts(at func(*Policy) *[]Text, parse func(value) (Text, *problem), covers func(most, entry string) bool) list[Text] {
	l := list[Text]{
		at:    at,
		parse: parse,
		id:    func(t Text) string { return t.Value },
		src:   func(t Text) Source { return t.Source },
	}
	if covers != nil {
		l.covers = func(most, entry Text) bool { return covers(most.Value, entry.Value) }
	}
	return l
}

// mounts is a list of PATH[:AT]; a ceiling's entry covers what lies below it.
func mounts(at func(*Policy) *[]Mount, from func(*Policy) []Mount) list[Mount] {
	return list[Mount]{
		at:     at,
		parse:  parseMount,
		id:     mountText,
		src:    func(m Mount) Source { return m.Source },
		covers: func(most, entry Mount) bool { return below(entry.Path, most.Path) },
		from:   from,
	}
}

// secrets is a list of action names, or the word "none", which empties it.
type secrets struct{ list[Text] }

func (s secrets) read(v value) (edit, *problem) {
	if v.text != none {
		return s.list.read(v)
	}
	return func(p *Policy) *problem {
		p.Secrets = nil
		return nil
	}, nil
}

func (s secrets) listWords() []string { return []string{none} }

func (s secrets) show(p *Policy) []Clause {
	if len(p.Secrets) == 0 {
		return []Clause{{Value: none}}
	}
	return s.list.show(p)
}
