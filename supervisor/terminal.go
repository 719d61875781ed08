package supervisor

import (
	"unicode/utf8"
)

// sanitizer makes output safe to show on a terminal: text, line control and
// colours pass; everything with which a program steers the terminal itself is
// dropped: OSC (title, clipboard, links), DCS, APC, PM, SOS, every CSI but
// SGR, C1 controls, and bytes that are no UTF-8 (ECMA-48, xterm's ctlseqs).
// What it has seen of an unfinished sequence is kept between calls.
type sanitizer struct {
	state escState
	seq   []byte // of a CSI that may turn out to be SGR, or of an unfinished rune
}

type escState uint8

const (
	escText      escState = iota
	escEscape             // after ESC
	escCSI                // after ESC [, collecting
	escSkip               // in a CSI that is dropped
	escString             // in OSC, DCS, APC, PM or SOS: until ST or BEL
	escStringEsc          // ESC inside of a string
	escNF                 // ESC and intermediate bytes: until a final byte
)

// maxSGR bounds the parameters of a colour sequence.
const maxSGR = 64

// filter appends what of src may be shown to dst.
func (s *sanitizer) filter(dst, src []byte) []byte {
	for _, c := range src {
		switch s.state {
		case escText:
			dst = s.text(dst, c)
		case escEscape:
			s.escape(c)
		case escCSI:
			dst = s.csi(dst, c)
		case escSkip:
			if c >= 0x40 && c <= 0x7e || c < 0x20 {
				s.state = escText
			}
		case escString:
			switch c {
			case 0x07, 0x18, 0x1a: // BEL ends a string, CAN and SUB abort it
				s.state = escText
			case 0x1b:
				s.state = escStringEsc
			}
		case escStringEsc:
			if s.state = escString; c == '\\' {
				s.state = escText
			}
		case escNF:
			if c >= 0x30 {
				s.state = escText
			}
		}
	}
	return dst
}

// text takes one byte outside of sequences.
func (s *sanitizer) text(dst []byte, c byte) []byte {
	if len(s.seq) > 0 || c >= 0x80 {
		return s.rune(dst, c)
	}
	switch {
	case c == 0x1b:
		s.state = escEscape
	case c >= 0x20 && c != 0x7f, c == '\n', c == '\r', c == '\t', c == '\b':
		dst = append(dst, c)
	}
	return dst
}

// rune collects a multi-byte rune. U+0080 to U+009F are controls; what is no
// UTF-8 is shown as a question mark, since a terminal may take it for one.
func (s *sanitizer) rune(dst []byte, c byte) []byte {
	if len(s.seq) > 0 && (c < 0x80 || c >= 0xc0) { // the rune before was cut
		s.seq = s.seq[:0]
		dst = append(dst, '?')
		return s.text(dst, c)
	}
	s.seq = append(s.seq, c)
	if !utf8.FullRune(s.seq) {
		return dst
	}
	r, size := utf8.DecodeRune(s.seq)
	switch {
	case r == utf8.RuneError && size <= 1:
		dst = append(dst, '?')
	case r >= 0xa0 && r != 0x2028 && r != 0x2029:
		dst = append(dst, s.seq...)
	}
	s.seq = s.seq[:0]
	return dst
}

func (s *sanitizer) escape(c byte) {
	switch {
	case c == '[':
		s.state, s.seq = escCSI, s.seq[:0]
	case c == ']', c == 'P', c == '_', c == '^', c == 'X':
		s.state = escString
	case c >= 0x20 && c < 0x30:
		s.state = escNF
	case c == 0x1b:
	default:
		s.state = escText
	}
}

// csi collects a control sequence and passes it when it is SGR with plain
// parameters.
func (s *sanitizer) csi(dst []byte, c byte) []byte {
	switch {
	case c >= '0' && c <= '9', c == ';', c == ':':
		if s.seq = append(s.seq, c); len(s.seq) > maxSGR {
			s.state, s.seq = escSkip, s.seq[:0]
		}
		return dst
	case c == 'm':
		dst = append(append(append(dst, 0x1b, '['), s.seq...), 'm')
	case c == 0x1b:
		s.state, s.seq = escEscape, s.seq[:0]
		return dst
	case c >= 0x20 && c < 0x40: // private or intermediate: never a colour
		s.state, s.seq = escSkip, s.seq[:0]
		return dst
	}
	s.state, s.seq = escText, s.seq[:0]
	return dst
}
