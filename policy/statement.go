package policy

import (
	"path/filepath"
	"slices"
	"strings"
)

// Statements are a File as plain texts, for a process that has the right to put a
// policy in force and must not parse files: one that has no such right reads them,
// and the other reads each text again by the rules that flags are read by.
type Statements struct {
	Name       string // the file's, for errors
	Enumerates bool   // it leaves out what it does not name (see Merge)
	List       []Statement
}

// Statement is one value.
type Statement struct {
	Key    string // dotted, as in the file without "sandbox."
	Name   string // of the entry, where the key holds a mapping
	Text   string // as written, quotes and indentation undone
	Base   string // directory that a relative path in it begins at
	Empty  bool   // the key is there and holds no value
	Source Source
}

// Statements returns what the file says. Those of Defaults cannot be told this way.
func (f *File) Statements() Statements {
	s := Statements{Name: f.Name, Enumerates: f.enumerates}
	said := map[string]bool{}
	for _, c := range f.changes {
		said[c.key] = true
		s.List = append(s.List, Statement{Key: c.key, Name: c.from.key, Text: c.from.text, Base: c.from.base, Source: c.src})
	}
	if src, ok := f.keys[workspaceKey]; ok { // an empty one names it, too (see Merge)
		s.List = append(s.List, Statement{Key: workspaceKey, Empty: true, Source: src})
	}
	for _, k := range schema() {
		if src, ok := f.keys[k.name]; ok && !said[k.name] {
			s.List = append(s.List, Statement{Key: k.name, Empty: true, Source: src})
		}
	}
	return s
}

// FromStatements checks each statement as if it had just been read from a flag. The
// error is an Errors with every problem.
func FromStatements(s Statements) (*File, error) {
	keys := schema()
	f := &File{Name: s.Name, keys: map[string]Source{}, enumerates: s.Enumerates}
	var errs Errors
	for _, one := range s.List {
		if p := f.state(keys, one); p != nil {
			errs = append(errs, p.at(one.Source, one.Key))
		}
	}
	return f, errs.err()
}

func (f *File) state(keys []key, s Statement) *problem {
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == s.Key })
	switch {
	case s.Key == workspaceKey && s.Empty && !s.Source.yields():
		f.keys[s.Key] = s.Source
		return nil
	case i < 0:
		return wrong("", "unknown key %s", quote(s.Key))
	case s.Source.yields(): // nor a ceiling, which would lower it without a word
		return wrong("", "%s: nobody has said this", s.Key)
	case strings.ContainsRune(s.Text+s.Name+s.Base, 0):
		return wrong("", "%s: a text with a zero byte", s.Key)
	case s.Base != "" && !filepath.IsAbs(s.Base):
		return wrong("", "%s: a path that is relative to %s", s.Key, quote(s.Base))
	case (keys[i].form == named) != (s.Name != "") && !s.Empty:
		return wrong("", "%s: a mapping has names, and nothing else has", s.Key)
	}
	if s.Empty {
		f.keys[s.Key] = s.Source
		return nil
	}
	v := value{text: s.Text, key: s.Name, src: s.Source, base: s.Base}
	apply, p := keys[i].field.read(v)
	if p != nil {
		return p
	}
	f.add(s.Key, v, apply)
	return nil
}
