// Package terminal is what a run has to do with terminals: a pseudoterminal of its
// own, the caller's terminal in raw mode and out of it again, the keys that are
// typed, and a filter of what may reach a terminal.
package terminal

import (
	"bytes"
	"unicode/utf8"
)

// Level says what a [Filter] lets through.
type Level uint8

const (
	Text    Level = iota // text and line control: TERM=dumb
	Colours              // and SGR: what a program prints without owning the screen
	Screen               // and what full-screen programs need (sequence.go)
	All                  // everything; what has to be undone is noted all the same
)

// Filter makes output safe to show on a terminal. At no level but All pass: OSC
// (title, clipboard, colours, links), DCS, APC, PM, SOS, every query, every report
// that answers the output and not a person, C1 controls, ENQ, and bytes that are
// no UTF-8 (ECMA-48, xterm's ctlseqs). What it has seen of an unfinished sequence
// is kept between calls.
type Filter struct {
	level Level
	state escState
	seq   []byte // of an unfinished control or escape sequence, or rune
	modes modes  // what the output has switched on

	answers []byte // to what was asked since Answers
}

// NewFilter returns a Filter of that level.
func NewFilter(l Level) *Filter { return &Filter{level: l} }

type escState uint8

const (
	escText   escState = iota
	escEscape          // after ESC
	escCSI             // after ESC [, collecting
	escSkip            // in a CSI that is too long
	escString          // in OSC, DCS, APC, PM or SOS: until ST, BEL, or an ESC that begins something else
	escNF              // ESC and intermediate bytes, collecting: until a final byte
)

// maxSequence bounds what is collected of one sequence.
const maxSequence = 64

// Append appends what of src may be shown to dst.
func (f *Filter) Append(dst, src []byte) []byte {
	if f.level == All {
		f.shown(nil, src)
		return append(dst, src...)
	}
	return f.shown(dst, src)
}

func (f *Filter) shown(dst, src []byte) []byte {
	for i := 0; i < len(src); i++ {
		if f.state == escText && len(f.seq) == 0 {
			n := plain(src[i:])
			dst = append(dst, src[i:i+n]...)
			if i += n; i == len(src) {
				break
			}
		}
		dst = f.next(dst, src[i])
	}
	return dst
}

// plain is the length of the printable ASCII that b begins with.
func plain(b []byte) int {
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			return i
		}
	}
	return len(b)
}

func (f *Filter) next(dst []byte, c byte) []byte {
	switch f.state {
	case escText:
		return f.text(dst, c)
	case escEscape:
		return f.escape(dst, c)
	case escCSI:
		return f.csi(dst, c)
	case escNF:
		return f.nf(dst, c)
	case escSkip:
		if c == 0x1b {
			f.begin(escEscape)
		} else if c >= 0x40 && c <= 0x7e || c < 0x20 {
			f.begin(escText)
		}
	case escString:
		switch c {
		case 0x07, 0x18, 0x1a: // BEL ends a string, CAN and SUB abort it
			f.begin(escText)
		case 0x1b: // of ST, whose backslash escape drops
			f.begin(escEscape)
		}
	}
	return dst
}

// Answers returns what a modest terminal would type in reply to the queries that
// were dropped since the last call (answerTo), and forgets it. It is valid until the
// next call of Append.
func (f *Filter) Answers() []byte {
	a := f.answers
	f.answers = f.answers[:0]
	return a
}

func (f *Filter) begin(s escState) { f.state, f.seq = s, f.seq[:0] }

// text takes one byte outside of sequences.
func (f *Filter) text(dst []byte, c byte) []byte {
	if len(f.seq) > 0 || c >= 0x80 {
		return f.rune(dst, c)
	}
	switch {
	case c == 0x1b:
		f.begin(escEscape)
	case c >= 0x20 && c != 0x7f, c == '\n', c == '\r', c == '\t', c == '\b':
		dst = append(dst, c)
	case f.level >= Screen && (c == 0x07 || c == shiftOut || c == shiftIn): // BEL
		f.modes.shift(c)
		dst = append(dst, c)
	}
	return dst
}

// rune collects a multi-byte rune. U+0080 to U+009F are controls; what is no
// UTF-8 is shown as a question mark, since a terminal may take it for one.
func (f *Filter) rune(dst []byte, c byte) []byte {
	if len(f.seq) > 0 && (c < 0x80 || c >= 0xc0) { // the rune before was cut
		f.seq = f.seq[:0]
		dst = append(dst, '?')
		return f.text(dst, c)
	}
	f.seq = append(f.seq, c)
	if !utf8.FullRune(f.seq) {
		return dst
	}
	r, size := utf8.DecodeRune(f.seq)
	switch {
	case r == utf8.RuneError && size <= 1:
		dst = append(dst, '?')
	case r >= 0xa0 && r != 0x2028 && r != 0x2029:
		dst = append(dst, f.seq...)
	}
	f.seq = f.seq[:0]
	return dst
}

func (f *Filter) escape(dst []byte, c byte) []byte {
	switch {
	case c == '[':
		f.begin(escCSI)
	case c == ']', c == 'P', c == '_', c == '^', c == 'X':
		f.begin(escString)
	case c >= 0x20 && c < 0x30:
		f.state = escNF
		f.seq = append(f.seq, c)
	case c == 0x1b:
	default:
		if f.begin(escText); f.level >= Screen && bytes.IndexByte(escapes, c) >= 0 {
			f.modes.escape(c)
			dst = append(dst, 0x1b, c)
		}
	}
	return dst
}

// nf takes an escape sequence with intermediate bytes. The choice of a character
// set is the only one that passes, and of two sets that both are ASCII but for
// lines and the pound sign.
func (f *Filter) nf(dst []byte, c byte) []byte {
	switch {
	case c == 0x1b:
		f.begin(escEscape)
		return dst
	case c >= 0x20 && c < 0x30:
		if len(f.seq) < maxSequence {
			f.seq = append(f.seq, c)
		}
		return dst
	}
	g := string(f.seq)
	f.begin(escText)
	if f.level >= Screen && (g == "(" || g == ")") && (c == '0' || c == 'A' || c == 'B') {
		f.modes.charset(g, c)
		dst = append(append(append(dst, 0x1b), g...), c)
	}
	return dst
}

// csi collects a control sequence and judges it at its final byte.
func (f *Filter) csi(dst []byte, c byte) []byte {
	switch {
	case c == 0x1b:
		f.begin(escEscape)
		return dst
	case c >= 0x20 && c < 0x40:
		if f.seq = append(f.seq, c); len(f.seq) > maxSequence {
			f.begin(escSkip)
		}
		return dst
	case c >= 0x40 && c <= 0x7e:
		dst = f.control(dst, f.seq, c)
	}
	f.begin(escText)
	return dst
}
