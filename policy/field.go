package policy

import (
	"strconv"
	"strings"
)

// value is one scalar of a file or a flag on its way into a clause.
type value struct {
	text string
	key  string // the name, in a mapping (env.set, network.resolve)
	src  Source
	base string // directory that relative paths are resolved against; "" when unknown
}

// edit changes a policy by one value. It fails when the policy so far does not
// have what the value refers to (the removal of an entry that is not there).
type edit func(*Policy) *problem

// field knows how the values of one key are read, shown and bounded.
type field interface {
	// read checks one value without looking at any policy.
	read(value) (edit, *problem)
	// show returns one clause for each value; the caller fills in the key.
	show(*Policy) []Clause
	// bound compares p with the ceiling most, whose clause stands at src.
	// Defaults above the ceiling are lowered to it, all else is an error.
	bound(p, most *Policy, src Source) Errors
}

// limit is a numeric bound.
type limit struct {
	at     func(*Policy) *Limit
	parse  func(string) (int64, *problem)
	format func(int64) string
	what   string // "a size", for "expected a size or none"

	pattern string // of its text, for the JSON Schema: no stricter than parse
}

func (l limit) read(v value) (edit, *problem) {
	n, unlimited := int64(0), v.text == none
	if !unlimited {
		var p *problem
		if n, p = l.parse(v.text); p != nil {
			return nil, p
		}
	}
	return func(p *Policy) *problem {
		*l.at(p) = Limit{N: n, Unlimited: unlimited, Source: v.src}
		return nil
	}, nil
}

func (l limit) text(x Limit) string {
	if x.Unlimited {
		return none
	}
	return l.format(x.N)
}

func (l limit) show(p *Policy) []Clause {
	x := *l.at(p)
	return []Clause{{Value: l.text(x), Source: x.Source}}
}

func (l limit) bound(p, most *Policy, src Source) Errors {
	x, c := l.at(p), *l.at(most)
	switch {
	case c.Unlimited || !x.Unlimited && x.N <= c.N:
		return nil
	case x.Source.yields():
		*x = Limit{N: c.N, Source: src}
		return nil
	}
	return above(x.Source, l.text(*x), src, l.text(c)+" at most")
}

// scalar is a word, a path or a number that is not a limit.
type scalar struct {
	at     func(*Policy) (*string, *Source)
	parse  func(value) (string, *problem)
	within func(s, most string) bool // nil: the ceiling does not bound it here
	empty  string                    // what "" means, for people
	words  []string                  // all that parse accepts; nil: not a closed list
}

// word is a scalar out of a fixed list, the strictest word first: the order
// that the ceiling compares by.
func word(at func(*Policy) (*string, *Source), words ...string) scalar {
	rank := func(s string) int {
		for i, w := range words {
			if s == w {
				return i
			}
		}
		return -1
	}
	return scalar{
		at: at,
		parse: func(v value) (string, *problem) {
			if rank(v.text) >= 0 {
				return v.text, nil
			}
			hint := didYouMean(v.text, words)
			if hint == "" {
				hint = "one of " + strings.Join(words, ", ")
			}
			return "", wrong(hint, "unknown word %s", quote(v.text))
		},
		within: func(s, most string) bool { return rank(s) <= rank(most) },
		words:  words,
	}
}

// text is the accessor of a Text field.
func text(at func(*Policy) *Text) func(*Policy) (*string, *Source) {
	return func(p *Policy) (*string, *Source) {
		t := at(p)
		return &t.Value, &t.Source
	}
}

func (s scalar) read(v value) (edit, *problem) {
	parsed, p := s.parse(v)
	if p != nil {
		return nil, p
	}
	return func(p *Policy) *problem {
		value, src := s.at(p)
		*value, *src = parsed, v.src
		return nil
	}, nil
}

func (s scalar) show(p *Policy) []Clause {
	value, src := s.at(p)
	if *value == "" {
		return []Clause{{Value: s.empty, Source: *src}}
	}
	return []Clause{{Value: *value, Source: *src}}
}

func (s scalar) bound(p, most *Policy, src Source) Errors {
	value, from := s.at(p)
	allowed, _ := s.at(most)
	switch {
	case s.within == nil || s.within(*value, *allowed):
		return nil
	case from.yields():
		*value, *from = *allowed, src
		return nil
	}
	return above(*from, quote(*value), src, quote(*allowed)+" at most")
}

// flagged is a yes or no; the record is stricter when it says more, so false
// is above a ceiling of true.
type flagged struct {
	at func(*Policy) (*bool, *Source)
}

func (f flagged) read(v value) (edit, *problem) {
	b, err := strconv.ParseBool(v.text)
	if err != nil {
		return nil, wrong("write true or false", "%s is neither true nor false", quote(v.text))
	}
	return func(p *Policy) *problem {
		value, src := f.at(p)
		*value, *src = b, v.src
		return nil
	}, nil
}

func (f flagged) show(p *Policy) []Clause {
	value, src := f.at(p)
	return []Clause{{Value: strconv.FormatBool(*value), Source: *src}}
}

func (f flagged) bound(p, most *Policy, src Source) Errors {
	value, from := f.at(p)
	if required, _ := f.at(most); *value || !*required {
		return nil
	}
	return above(*from, "false", src, "true")
}

// above is the error of a clause that exceeds the ceiling.
func above(from Source, got string, ceiling Source, allowed string) Errors {
	return Errors{{
		Source:  from,
		Message: got + " is above the ceiling",
		Hint:    ceiling.String() + " allows " + allowed,
	}}
}
