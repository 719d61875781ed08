package trace

import (
	"strconv"
	"unicode/utf8"
)

// Everything that a record or a view says about the command's doings came from
// the command. Two rules keep such bytes harmless, and they live only here:
// appendJSON for the record, Quote for people.

const hexDigits = "0123456789abcdef"

// plain holds the ASCII bytes that stand for themselves in a JSON string.
var plain = func() (t [utf8.RuneSelf]bool) {
	for c := ' '; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendJSON appends s as a JSON string. Control characters, DEL, C1, bidi and
// other format characters and unassigned code points are written as \uXXXX, so
// that no reader's terminal ever sees one raw. Invalid bytes become U+FFFD and
// valid is false: the caller adds the exact bytes elsewhere.
func appendJSON[T ~[]byte | ~string](b []byte, s T) (out []byte, valid bool) {
	b = append(b, '"')
	valid = true
	done := 0
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if !plain[c] {
				b = append(b, s[done:i]...)
				b = appendEscape(b, rune(c))
				done = i + 1
			}
			i++
			continue
		}
		r, n := decodeRune(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, s[done:i]...)
			b = append(b, "\uFFFD"...)
			valid, done = false, i+n
		case !strconv.IsPrint(r):
			b = append(b, s[done:i]...)
			b = appendEscape(b, r)
			done = i + n
		}
		i += n
	}
	b = append(b, s[done:]...)
	return append(b, '"'), valid
}

func decodeRune[T ~[]byte | ~string](s T) (rune, int) {
	var p [utf8.UTFMax]byte
	return utf8.DecodeRune(p[:copy(p[:], s)])
}

func appendEscape(b []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(b, '\\', byte(r))
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	if r > 0xffff {
		r -= 0x10000
		b = appendHex4(b, 0xd800+uint32(r>>10))
		return appendHex4(b, 0xdc00+uint32(r&0x3ff))
	}
	return appendHex4(b, uint32(r))
}

func appendHex4(b []byte, u uint32) []byte {
	return append(b, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// QuoteJSON renders s as a JSON string that is safe to print; bytes that are not
// UTF-8 become U+FFFD.
func QuoteJSON[T ~[]byte | ~string](s T) string {
	b, _ := appendJSON(nil, s)
	return string(b)
}

// EscapeJSON replaces what is unprintable in the strings of valid JSON by its
// \uXXXX form: encoding/json leaves DEL, C1 and bidi characters raw.
func EscapeJSON(src []byte) []byte {
	out := make([]byte, 0, len(src))
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r >= 0x7f && !strconv.IsPrint(r) {
			out = appendEscape(out, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
		i += n
	}
	return out
}
