package terminal

import (
	"bytes"
	"slices"
	"strings"
)

// escapes are the two-byte sequences of full-screen programs: save and restore
// the cursor, index, next line, reverse index, tab stop, keypad modes. RIS (c)
// and DECID (Z), which is a query, are none.
var escapes = []byte("78DEMH=>")

// moves are the final bytes of control sequences that move the cursor, erase,
// insert, delete, scroll and set tab stops (ECMA-48).
const moves = "@ABCDEFGHIJKLMPSTXZ`abdefg"

// maxDigits bounds a number: no screen is larger, and REP (b) repeats as often.
const maxDigits = 5

// control judges one control sequence, less its CSI: params, intermediate bytes
// and final byte. What passes is appended to dst.
//
// Not to pass are: queries and what they make a terminal send (c, n, t, x, and
// with $ DECRQM; and all of > and =), windows and titles (t), printing (i), the
// keyboard's lock and encoding (2h, 20h, >u, >m), and the erasing of what has
// scrolled out (3J), which is the caller's.
func (f *Filter) control(dst, params []byte, final byte) []byte {
	p := string(params)
	switch {
	case final == 'm' && only(p, ";:"):
		if f.level >= Colours {
			f.modes.sgr(p)
			dst = emit(dst, p, final)
		}
		return dst
	case f.level < Screen:
		return dst
	case strings.HasPrefix(p, "?"):
		return f.private(dst, p[1:], final)
	case passes(p, final):
		f.modes.control(p, final)
		return emit(dst, p, final)
	}
	if a := answerTo(p, final); f.level == Screen && len(f.answers)+len(a) <= maxAnswers {
		f.answers = append(f.answers, a...)
	}
	return dst
}

// maxAnswers bounds the answers to what is read at once.
const maxAnswers = 256

// answerTo is the answer to two queries that is true of any terminal that has the
// escapes of this file, and says nothing of the caller's: who it is (DA1: a VT100 with
// advanced video, as tmux says), and how it is (DSR 5: well). Programs send DA1 after queries that a
// terminal may not know, and wait for its answer to know that the others have none.
func answerTo(p string, final byte) string {
	switch {
	case final == 'c' && (p == "" || p == "0"):
		return "\x1b[?1;2c"
	case final == 'n' && p == "5":
		return "\x1b[0n"
	}
	return ""
}

// passes judges a sequence without a private mark.
func passes(p string, final byte) bool {
	switch {
	case final == 'q':
		return strings.HasSuffix(p, " ") && number(p[:len(p)-1]) // cursor style
	case final == 'p':
		return p == "!" // soft reset
	case final == 'h', final == 'l':
		return p == insertMode
	case final == 's', final == 'u':
		return p == ""
	case final == 'S', final == 'T': // with more numbers T tracks the mouse
		return number(p)
	case final == 'J' && strings.Contains(p, "3"):
		return false
	}
	return (final == 'r' || strings.IndexByte(moves, final) >= 0) && only(p, ";") && short(p)
}

// insertMode is IRM: the only one of ANSI's modes that is about the screen alone.
const insertMode = "4"

// private passes those of DEC's private modes that are in the table.
func (f *Filter) private(dst []byte, p string, final byte) []byte {
	if final != 'h' && final != 'l' || !only(p, ";") {
		return dst
	}
	var kept []string
	for _, n := range strings.Split(p, ";") {
		if i := slices.IndexFunc(decModes[:], func(m decMode) bool { return m.number == n }); i >= 0 {
			f.modes.private(i, final == 'h')
			kept = append(kept, n)
		}
	}
	if len(kept) == 0 {
		return dst
	}
	return emit(dst, "?"+strings.Join(kept, ";"), final)
}

func emit(dst []byte, p string, final byte) []byte {
	return append(append(append(dst, 0x1b, '['), p...), final)
}

// only reports whether p consists of digits and separators.
func only(p, separators string) bool {
	return strings.IndexFunc(p, func(r rune) bool { return (r < '0' || r > '9') && !strings.ContainsRune(separators, r) }) < 0
}

func short(p string) bool {
	for n := range strings.SplitSeq(p, ";") {
		if len(n) > maxDigits {
			return false
		}
	}
	return true
}

func number(p string) bool { return only(p, "") && short(p) }

// decMode is one of DEC's private modes (xterm's ctlseqs) that may be switched.
type decMode struct {
	number string
	on     bool // as it is when nobody has touched it
	left   bool // it is not put back: it has no state, or nobody knows which it had
}

// decModes are those that full-screen programs need. What a terminal sends by the
// mouse modes, and as pasted text, answers a person; 1004, which would tell
// whether the window has the focus, is not among them.
var decModes = [...]decMode{
	{number: "2026"}, // synchronised output
	{number: "6"},    // origin
	{number: "1049"}, // alternate screen
	{number: "1047"},
	{number: "47"},
	{number: "1048", left: true}, // save the cursor
	{number: "1"},                // cursor keys
	{number: "5"},                // reverse video
	{number: "7", on: true},      // wrap
	{number: "12", left: true},   // blinking cursor
	{number: "25", on: true},     // the cursor is seen
	{number: "1000"},             // mouse: buttons
	{number: "1002"},             // drags too
	{number: "1003"},             // all motion
	{number: "1006"},             // as numbers
	{number: "2004"},             // pasted text is marked
}

// modes are what the output has left a terminal in.
type modes struct {
	dec      [len(decModes)]bool // not as it was
	insert   bool
	keypad   bool
	margins  bool
	coloured bool
	style    bool    // of the cursor
	shifted  bool    // to G1
	lines    [2]bool // G0 and G1 are not ASCII
}

const (
	shiftOut = 0x0e
	shiftIn  = 0x0f
)

func (m *modes) shift(c byte) {
	if c != 0x07 {
		m.shifted = c == shiftOut
	}
}

func (m *modes) escape(c byte) {
	if c == '=' || c == '>' {
		m.keypad = c == '='
	}
}

func (m *modes) charset(g string, set byte) { m.lines[strings.Index("()", g)] = set != 'B' }

func (m *modes) sgr(p string) { m.coloured = strings.Trim(p, "0;") != "" }

func (m *modes) private(i int, on bool) { m.dec[i] = !decModes[i].left && on != decModes[i].on }

func (m *modes) control(p string, final byte) {
	switch final {
	case 'r':
		m.margins = p != ""
	case 'h', 'l':
		m.insert = final == 'h'
	case 'q':
		m.style = p != " " && p != "0 "
	}
}

// Undo returns what puts a terminal back into the state in which it was before
// the output, apart from the text on it; nothing when it is.
func (f *Filter) Undo() []byte {
	m := &f.modes
	var b bytes.Buffer
	put := func(when bool, seq string) {
		if when {
			b.WriteString(seq)
		}
	}
	put(f.level == All && f.state != escText, "\x1b\\") // what was begun was shown: ST ends it
	put(m.margins, "\x1b7\x1b[r\x1b8")                  // to set margins moves the cursor
	for i, off := range m.dec {
		put(off, "\x1b[?"+decModes[i].number+letter(decModes[i].on))
	}
	put(m.insert, "\x1b["+insertMode+"l")
	put(m.keypad, "\x1b>")
	put(m.shifted, string(rune(shiftIn)))
	put(m.lines[0], "\x1b(B")
	put(m.lines[1], "\x1b)B")
	put(m.style, "\x1b[0 q")
	put(m.coloured, "\x1b[m")
	return b.Bytes()
}

// Redo returns what switches on again what Undo has switched off, as far as a
// program that is to go on expects it. Text, colours and margins are its own to set.
func (f *Filter) Redo() []byte {
	var b []byte
	for i, on := range slices.Backward(f.modes.dec[:]) {
		if on {
			b = append(b, "\x1b[?"+decModes[i].number+letter(!decModes[i].on)...)
		}
	}
	if f.modes.keypad {
		b = append(b, "\x1b="...)
	}
	return b
}

func letter(on bool) string {
	if on {
		return "h"
	}
	return "l"
}
