package trace

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// decoder parses one record. It accepts less than JSON at large: known fields
// once and in the order of the schema, integers only, no lone surrogates and
// nothing unprintable raw. Two parsers can then never read one line in two ways
// ("verdict" written twice). Unknown fields are skipped wherever they stand.
type decoder struct {
	src    []byte
	pos    int
	arena  []byte            // bytes of strings that had escapes; valid until the next line
	intern map[string]string // short strings of our own vocabulary
}

var (
	errNotObject = errors.New("not a JSON object")
	errSyntax    = errors.New("malformed JSON")
	errType      = errors.New("wrong type or value")
	errOrder     = errors.New("repeated or out of order")
)

const (
	maxDepth  = 8
	maxIntern = 4096
)

// decode fills e from one line without its newline.
func (d *decoder) decode(src []byte, e *Event) error {
	argv, counts := e.Argv[:0], e.Counts[:0]
	*e = Event{Argv: argv, Counts: counts}
	d.src, d.pos, d.arena = src, 0, d.arena[:0]
	if !d.eat('{') {
		return errNotObject
	}
	next := 0 // index in schema of the next field that may come
	for first := true; !d.eat('}'); first = false {
		if !first && !d.eat(',') {
			return errSyntax
		}
		key, err := d.str()
		if err != nil || !d.eat(':') {
			return errSyntax
		}
		i := fieldIndex(key, next)
		if i < next && i >= 0 {
			return fmt.Errorf("field %s: %w", Quote(key), errOrder)
		}
		if i < 0 {
			err = d.skip(0)
		} else {
			err, next = schema[i].parse(d, e), i+1
		}
		if err != nil {
			return fmt.Errorf("field %s: %w", Quote(key), err)
		}
	}
	if d.pos != len(d.src) {
		return errSyntax
	}
	return e.complete()
}

// fieldIndex finds a key, looking first where it is expected; -1 if unknown.
func fieldIndex(key []byte, from int) int {
	for i := from; i < len(schema); i++ {
		if schema[i].name == string(key) {
			return i
		}
	}
	for i := range from {
		if schema[i].name == string(key) {
			return i
		}
	}
	return -1
}

// complete checks what every record has, fills what the encoder leaves out, and
// drops parts of things that are not there, such as a port without an address.
func (e *Event) complete() error {
	switch {
	case e.Seq == 0:
		return errors.New("no seq")
	case e.Kind == "":
		return errors.New("no kind")
	}
	for _, p := range []*Proc{&e.Proc, &e.Child, &e.Target} {
		if p.Tid == 0 {
			p.Tid = p.Pid
		}
		if p.Pid == 0 {
			*p = Proc{}
		}
	}
	if e.Loss.Class == "" {
		e.Loss = Loss{}
	}
	if !e.Addr.IsValid() {
		e.Port = 0
	}
	if e.Argc == 0 {
		e.Argc = uint32(len(e.Argv))
	}
	return nil
}

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
	start := d.pos
	for d.pos < len(d.src) {
		switch c := d.src[d.pos]; {
		case c == '"':
			s := d.src[start:d.pos:d.pos]
			d.pos++
			return s, printable(s)
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			return nil, errSyntax
		}
		d.pos++
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

// word returns a string of our own vocabulary, kept from line to line.
func (d *decoder) word() (string, error) {
	b, err := d.str()
	if err != nil {
		return "", err
	}
	if s, ok := d.intern[string(b)]; ok {
		return s, nil
	}
	s := string(b)
	if len(s) <= 64 && len(d.intern) < maxIntern {
		if d.intern == nil {
			d.intern = make(map[string]string)
		}
		d.intern[s] = s
	}
	return s, nil
}

func (d *decoder) base64() ([]byte, error) {
	b, err := d.str()
	if err != nil {
		return nil, err
	}
	from := len(d.arena)
	d.arena, err = base64.StdEncoding.Strict().AppendDecode(d.arena, b)
	if err != nil {
		return nil, errType
	}
	return d.arena[from:len(d.arena):len(d.arena)], nil
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

// procID parses "<boot>-<start>-<pid>".
func (d *decoder) procID(p *Proc) error {
	s, err := d.word()
	if err != nil {
		return err
	}
	boot, rest, ok := strings.Cut(s, "-")
	start, pid, ok2 := strings.Cut(rest, "-")
	if !ok || !ok2 || len(boot) > 64 {
		return errType
	}
	p.Boot = boot
	if p.Start, err = strconv.ParseUint(start, 10, 64); err != nil {
		return errType
	}
	n, err := strconv.ParseUint(pid, 10, 32)
	p.Pid = uint32(n)
	var again [128]byte
	if err != nil || n == 0 || string(p.appendID(again[:0])) != s {
		return errType
	}
	return nil
}

// wall parses exactly what stamp writes.
func (d *decoder) wall() (int64, error) {
	const form = "2006-01-02T15:04:05.000000000Z"
	b, err := d.str()
	if err != nil || len(b) != len(form) {
		return 0, errType
	}
	var n [7]int // year, month, day, hour, minute, second, ns
	i := 0
	for j, c := range b {
		if form[j] >= '0' && form[j] <= '9' {
			if c < '0' || c > '9' {
				return 0, errType
			}
			n[i] = n[i]*10 + int(c-'0')
			continue
		}
		if i++; c != form[j] {
			return 0, errType
		}
	}
	t := time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], n[6], time.UTC)
	// Date normalises a 31 February and UnixNano overflows: what does not come
	// back as it was is refused.
	var s stamp
	var again [len(form)]byte
	if string(s.append(again[:0], t.UnixNano())) != string(b) {
		return 0, errType
	}
	return t.UnixNano(), nil
}

func (d *decoder) addr() (netip.Addr, error) {
	b, err := d.str()
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(string(b))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, errType
	}
	return a, nil
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
