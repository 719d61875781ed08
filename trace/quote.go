package trace

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quote renders bytes that may be hostile as one shell word on one line: bare
// when every character is harmless, in single quotes when it is printable, else
// as $'...' with escapes, in which invalid UTF-8 is \xNN. The result holds no
// control, format or bidi character, and a POSIX.1-2024 shell (bash, zsh) reads
// it back as the same bytes.
func Quote[T ~[]byte | ~string](s T) string { return string(appendQuote(nil, s)) }

// appendQuote appends what Quote returns to b.
func appendQuote[T ~[]byte | ~string](b []byte, s T) []byte {
	bare, printable := classify(s)
	switch {
	case bare:
		return append(b, s...)
	case !printable:
		return appendDollar(b, s)
	}
	b = append(b, '\'')
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' {
			b = append(b, `'\''`...)
			continue
		}
		b = append(b, s[i])
	}
	return append(b, '\'')
}

const bareBytes = "@%+=:,./_-"

// classify reports whether s needs no quoting at all, and whether all of it is
// printable.
func classify[T ~[]byte | ~string](s T) (bare, printable bool) {
	bare = len(s) > 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return false, false
			}
			alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
			bare = bare && (alnum || strings.IndexByte(bareBytes, c) >= 0)
			i++
			continue
		}
		bare = false
		r, n := decodeRune(s[i:])
		if r == utf8.RuneError && n == 1 || !strconv.IsPrint(r) {
			return false, false
		}
		i += n
	}
	return bare, true
}

func appendDollar[T ~[]byte | ~string](b []byte, s T) []byte {
	b = append(b, `$'`...)
	for i := 0; i < len(s); {
		r, n := rune(s[i]), 1
		if s[i] >= utf8.RuneSelf {
			r, n = decodeRune(s[i:])
		}
		switch {
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\'' || r == '\\':
			b = append(b, '\\', byte(r))
		case strconv.IsPrint(r) && (r != utf8.RuneError || n > 1):
			b = append(b, s[i:i+n]...)
		default: // every byte for itself: \xNN reads back in any locale
			for j := i; j < i+n; j++ {
				b = appendByteEscape(b, s[j], s[j+1:])
			}
		}
		i += n
	}
	return append(b, '\'')
}

// appendByteEscape writes \xNN, or the three-digit octal form when a hex digit
// follows: shells that take more than two digits after \x would read on.
func appendByteEscape[T ~[]byte | ~string](b []byte, c byte, rest T) []byte {
	if len(rest) > 0 && isHex(rest[0]) {
		return append(b, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
	}
	return append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// Line passes a sentence that our own code made, and quotes it when it holds
// anything unprintable, as it does in a file that was tampered with.
func Line(s string) string {
	if _, printable := classify(s); printable {
		return s
	}
	return Quote(s)
}

// Size renders a number of bytes in binary units: "512 B", "12.3 MiB".
func Size(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, unit := float64(n)/(1<<10), 0
	for v >= 1<<10 && unit < 5 {
		v, unit = v/(1<<10), unit+1
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + "KMGTPE"[unit:unit+1] + "iB"
}

// QuoteArgs renders an argument list as a shell command line of about limit
// bytes at most; what does not fit is replaced by "... (N more)". A limit of 0
// means no limit.
func QuoteArgs[T ~[]byte | ~string](args []T, limit int) string {
	var b []byte
	for i, a := range args {
		before := len(b)
		if i > 0 {
			b = append(b, ' ')
		}
		if limit > 0 && len(a) > limit {
			a = a[:limit+1] // too long in any form: do not quote all of it
		}
		b = appendQuote(b, a)
		if limit == 0 || len(b) <= limit {
			continue
		}
		rest := len(args) - i
		if b = b[:before]; i == 0 { // the program's name is cut rather than left out
			b = appendQuote(b, a[:min(len(a), limit/4)])
			rest--
		}
		b = append(b, " ..."...)
		if rest > 0 {
			b = append(b, " ("+strconv.Itoa(rest)+" more)"...)
		}
		break
	}
	return string(b)
}
