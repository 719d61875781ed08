package query

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agentguard/agentguard/trace"
)

// Error says what is wrong with an expression, and where.
type Error struct {
	Expr   string // all of the expression
	Column int    // from 1, in characters
	Msg    string
	Hint   string // what would be right, "" if not known
}

func (e *Error) Error() string {
	s := fmt.Sprintf("query: column %d: %s", e.Column, e.Msg)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	if !strings.ContainsFunc(e.Expr, func(r rune) bool { return r < ' ' || !strconv.IsPrint(r) }) && len(e.Expr) < 200 {
		s += "\n  " + e.Expr + "\n  " + strings.Repeat(" ", e.Column-1) + "^"
	}
	return s
}

// class is the class of a token.
type class uint8

const (
	end    class = iota
	word         // a field, a keyword or a bare value
	text         // a quoted value
	symbol       // an operator, a parenthesis or a comma
)

type token struct {
	class class
	text  string // the value of a text without its quotes
	at    int    // byte offset in the expression
}

func (t token) is(s string) bool { return t.class == symbol && t.text == s }

// says reports whether the token is the keyword s, in any case.
func (t token) says(s string) bool { return t.class == word && strings.EqualFold(t.text, s) }

func (t token) String() string {
	if t.class == end {
		return "the end"
	}
	return trace.Quote(t.text)
}

// symbols, the longer before those they begin with.
var symbols = [...]string{"==", "!=", "!~", "<=", ">=", "&&", "||", "=", "<", ">", "~", "!", "(", ")", ","}

// lexer cuts an expression into tokens.
type lexer struct {
	src string
	pos int
}

func (l *lexer) fail(at int, format string, a ...any) *Error {
	return &Error{Expr: l.src, Column: utf8.RuneCountInString(l.src[:at]) + 1, Msg: fmt.Sprintf(format, a...)}
}

func (l *lexer) next() (token, error) {
	for l.pos < len(l.src) && strings.IndexByte(" \t\r\n", l.src[l.pos]) >= 0 {
		l.pos++
	}
	at := l.pos
	if at == len(l.src) {
		return token{end, "", at}, nil
	}
	if c := l.src[at]; c == '"' || c == '\'' {
		return l.quoted(c)
	}
	for _, s := range symbols {
		if strings.HasPrefix(l.src[at:], s) {
			l.pos += len(s)
			return token{symbol, s, at}, nil
		}
	}
	for l.pos < len(l.src) && !ends(l.src[l.pos]) {
		l.pos++
	}
	return token{word, l.src[at:l.pos], at}, nil
}

// ends reports whether a byte cannot be part of a bare word. A "!" and a "~" can.
func ends(c byte) bool { return c <= ' ' || strings.IndexByte(`"'()<>=,&|`, c) >= 0 }

// quoted reads a string: between single quotes every byte stands for itself,
// between double ones a backslash begins an escape.
func (l *lexer) quoted(q byte) (token, error) {
	at := l.pos
	var b []byte
	for l.pos++; l.pos < len(l.src); l.pos++ {
		switch c := l.src[l.pos]; {
		case c == q:
			l.pos++
			return token{text, string(b), at}, nil
		case c == '\\' && q == '"':
			v, err := l.escape()
			if err != nil {
				return token{}, err
			}
			b = append(b, v)
		default:
			b = append(b, c)
		}
	}
	return token{}, l.fail(at, "the string that begins here has no end")
}

// escape reads one escape and leaves the position at its last byte.
func (l *lexer) escape() (byte, error) {
	at := l.pos
	l.pos++
	if l.pos == len(l.src) {
		return 0, l.fail(at, "the string ends within an escape")
	}
	switch c := l.src[l.pos]; c {
	case '"', '\\', '\'':
		return c, nil
	case 'n':
		return '\n', nil
	case 't':
		return '\t', nil
	case 'r':
		return '\r', nil
	case '0':
		return 0, nil
	case 'x':
		if l.pos+2 < len(l.src) {
			if v, err := strconv.ParseUint(l.src[l.pos+1:l.pos+3], 16, 8); err == nil {
				l.pos += 2
				return byte(v), nil
			}
		}
	}
	e := l.fail(at, "not an escape")
	e.Hint = `escapes are \" \\ \n \t \r \0 and \xNN; in '...' a backslash stands for itself`
	return 0, e
}
