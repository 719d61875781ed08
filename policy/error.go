package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is one problem in a policy, a ceiling or a flag.
type Error struct {
	Source  Source
	Clause  string // dotted key, "" when the problem belongs to no clause
	Message string
	Hint    string // what to write instead; "" when there is nothing better to say
}

// Error returns "FILE:LINE:COL: message (hint)" or "flag --ro: message (hint)".
// Text from the policy is quoted, so the result is one printable line.
func (e *Error) Error() string {
	s := e.Message
	if !e.Source.IsDefault() {
		s = e.Source.String() + ": " + s
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Errors is every problem that was found, in the order of the source.
type Errors []*Error

// Error returns one line for each problem.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find a single *Error.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// err returns es as an error, or nil (never a typed nil) when there is none.
func (es Errors) err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// sorted orders the problems of each file by position; files, and what comes
// from no file, stay in the order in which they were first met.
func (es Errors) sorted() Errors {
	order := map[string]int{}
	for _, e := range es {
		if _, ok := order[e.Source.File]; !ok {
			order[e.Source.File] = len(order)
		}
	}
	slices.SortStableFunc(es, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(order[a.Source.File], order[b.Source.File]),
			cmp.Compare(a.Source.Line, b.Source.Line),
			cmp.Compare(a.Source.Col, b.Source.Col),
		)
	})
	return es
}

// problem is an Error that has no place yet: what a value parser returns.
type problem struct{ message, hint string }

func (p *problem) Error() string { return p.message }

// at places the problem.
func (p *problem) at(src Source, clause string) *Error {
	return &Error{Source: src, Clause: clause, Message: p.message, Hint: p.hint}
}

// wrong builds a problem; the hint may be empty.
func wrong(hint, format string, args ...any) *problem {
	return &problem{message: fmt.Sprintf(format, args...), hint: hint}
}

// maxQuoted bounds, in bytes, how much of a policy an error message repeats.
const maxQuoted = 80

// quote makes text from outside safe to print: ASCII, escaped and bounded.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.QuoteToASCII(s)
	}
	cut := maxQuoted
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.QuoteToASCII(s[:cut]) + "..."
}

// printable returns s, quoted when it would not print as itself on one line.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, isControl) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// didYouMean returns a hint that names the word nearest to got, or "" when
// none is near enough to be a plausible slip of the finger.
func didYouMean(got string, words []string) string {
	if near := nearest(got, words); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	return ""
}

// nearest returns the word with the smallest edit distance, at most a third of
// its length (and at least 2 for words of four letters or more).
func nearest(got string, words []string) string {
	if len(got) > 64 {
		return ""
	}
	best, bestDistance := "", 1<<30
	for _, w := range words {
		limit := max(len(w)/3, min(2, len(w)/2))
		if d := editDistance(strings.ToLower(got), w); d <= limit && d < bestDistance {
			best, bestDistance = w, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
