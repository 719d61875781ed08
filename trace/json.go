package trace

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

func (d *decoder) spaces() {
	for d.pos < len(d.src) && (d.src[d.pos] == ' ' || d.src[d.pos] == '\t') {
		d.pos++
	}
}

// eat skips spaces and then c, and reports whether c was there.
func (d *decoder) eat(c byte) bool {
	d.spaces()
	if d.pos < len(d.src) && d.src[d.pos] == c {
		d.pos++
		return true
	}
	return false
}

// str parses a string. The result points into the line or the arena.
func (d *decoder) str() ([]byte, error) {
	if !d.eat('"') {
		return nil, errType
	}
	start, ascii := d.pos, true
	for i := start; i < len(d.src); i++ {
		switch c := d.src[i]; {
		case c == '"':
			s := d.src[start:i:i]
			d.pos = i + 1
			if ascii {
				return s, nil
			}
			return s, printable(s)
		case c == '\\':
			d.pos = i
			return d.escaped(start)
		case c < ' ':
			return nil, errSyntax
		case c >= 0x7f:
			ascii = false
		}
	}
	return nil, errSyntax
}

// printable refuses what the encoder never writes raw, so that a line that was
// accepted can be shown as it is.
func printable(s []byte) error {
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			if s[i] == 0x7f {
				return errSyntax
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 || !strconv.IsPrint(r) {
			return errSyntax
		}
		i += n
	}
	return nil
}

// escaped goes on with a string whose first escape is at d.pos.
func (d *decoder) escaped(start int) ([]byte, error) {
	from := len(d.arena)
	d.arena = append(d.arena, d.src[start:d.pos]...)
	for d.pos < len(d.src) {
		c := d.src[d.pos]
		d.pos++
		switch {
		case c == '"':
			s := d.arena[from:len(d.arena):len(d.arena)]
			return s, printable(d.src[start : d.pos-1])
		case c < ' ':
			return nil, errSyntax
		case c != '\\':
			d.arena = append(d.arena, c)
		default:
			if err := d.escape(); err != nil {
				return nil, err
			}
		}
	}
	return nil, errSyntax
}

func (d *decoder) escape() error {
	if d.pos >= len(d.src) {
		return errSyntax
	}
	c := d.src[d.pos]
	d.pos++
	if c == 'u' {
		r := d.hex4()
		if utf16.IsSurrogate(r) {
			low := rune(-1)
			if d.pos+2 <= len(d.src) && string(d.src[d.pos:d.pos+2]) == `\u` {
				d.pos += 2
				low = d.hex4()
			}
			r = utf16.DecodeRune(r, low)
			if r == utf8.RuneError {
				return errSyntax
			}
		}
		if r < 0 {
			return errSyntax
		}
		d.arena = utf8.AppendRune(d.arena, r)
		return nil
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		return errSyntax
	}
	d.arena = append(d.arena, "\"\\/\b\f\n\r\t"[i])
	return nil
}

// hex4 reads four hex digits; -1 when there are none.
func (d *decoder) hex4() rune {
	if d.pos+4 > len(d.src) {
		return -1
	}
	var r rune
	for _, c := range d.src[d.pos : d.pos+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return -1
		}
	}
	d.pos += 4
	return r
}

// digits returns the text of an integer: no leading zero, no fraction.
func (d *decoder) digits() ([]byte, error) {
	d.spaces()
	start := d.pos
	if d.pos < len(d.src) && d.src[d.pos] == '-' {
		d.pos++
	}
	first := d.pos
	for d.pos < len(d.src) && d.src[d.pos] >= '0' && d.src[d.pos] <= '9' {
		d.pos++
	}
	n := d.pos - first
	if n == 0 || n > 1 && d.src[first] == '0' || n > 20 {
		return nil, errType
	}
	return d.src[start:d.pos], nil
}

func (d *decoder) uint(bits int) (uint64, error) {
	s, err := d.digits()
	if err != nil {
		return 0, err
	}
	if len(s) <= 9 && s[0] != '-' && bits >= 32 { // most of them; nothing to overflow
		n := uint64(0)
		for _, c := range s {
			n = n*10 + uint64(c-'0')
		}
		return n, nil
	}
	v, err := strconv.ParseUint(string(s), 10, bits)
	if err != nil {
		return 0, errType
	}
	return v, nil
}

func (d *decoder) int(bits int) (int64, error) {
	s, err := d.digits()
	if err != nil || string(s) == "-0" {
		return 0, errType
	}
	v, err := strconv.ParseInt(string(s), 10, bits)
	if err != nil {
		return 0, errType
	}
	return v, nil
}

func (d *decoder) isTrue() error {
	d.spaces()
	if bytes.HasPrefix(d.src[d.pos:], []byte("true")) {
		d.pos += 4
		return nil
	}
	return errType
}

// list calls item for each element of an array.
func (d *decoder) list(item func(i int) error) error {
	if !d.eat('[') {
		return errType
	}
	for i := 0; !d.eat(']'); i++ {
		if i > 0 && !d.eat(',') {
			return errSyntax
		}
		if err := item(i); err != nil {
			return err
		}
	}
	return nil
}

// skip passes over any JSON value.
func (d *decoder) skip(depth int) error {
	if depth > maxDepth {
		return errors.New("nested too deeply")
	}
	d.spaces()
	if d.pos >= len(d.src) {
		return errSyntax
	}
	switch c := d.src[d.pos]; c {
	case '"':
		_, err := d.str()
		return err
	case '[':
		return d.list(func(int) error { return d.skip(depth + 1) })
	case '{':
		return d.skipObject(depth)
	}
	for _, lit := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(d.src[d.pos:], []byte(lit)) {
			d.pos += len(lit)
			return nil
		}
	}
	return d.skipNumber()
}

func (d *decoder) skipObject(depth int) error {
	d.pos++
	for first := true; !d.eat('}'); first = false {
		if !first && !d.eat(',') {
			return errSyntax
		}
		if _, err := d.str(); err != nil || !d.eat(':') {
			return errSyntax
		}
		if err := d.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) skipNumber() error {
	digits := func() bool {
		from := d.pos
		for d.pos < len(d.src) && d.src[d.pos] >= '0' && d.src[d.pos] <= '9' {
			d.pos++
		}
		return d.pos > from
	}
	d.accept("-")
	zero := d.pos < len(d.src) && d.src[d.pos] == '0'
	from := d.pos
	if !digits() || zero && d.pos > from+1 {
		return errSyntax
	}
	if d.accept(".") && !digits() {
		return errSyntax
	}
	if d.accept("eE") {
		d.accept("+-")
		if !digits() {
			return errSyntax
		}
	}
	return nil
}

func (d *decoder) accept(set string) bool {
	if d.pos < len(d.src) && strings.IndexByte(set, d.src[d.pos]) >= 0 {
		d.pos++
		return true
	}
	return false
}
