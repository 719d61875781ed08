package trace

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
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
	procs  map[string]Proc   // ids that were parsed
	second second            // of the last line
}

// second is the beginning of a wall time, of which the rest is nanoseconds.
type second struct {
	text string
	ns   int64 // of its beginning, since the Unix epoch
}

var (
	errNotObject = errors.New("not a JSON object")
	errSyntax    = errors.New("malformed JSON")
	errType      = errors.New("wrong type or value")
	errOrder     = errors.New("repeated or out of order")
)

const (
	maxDepth  = 8    // of arrays and objects in unknown fields
	maxIntern = 4096 // words kept
)

// decode fills e from one line without its newline.
func (d *decoder) decode(src []byte, e *Event) error {
	*e = Event{Argv: e.Argv[:0], Env: e.Env[:0], Counts: e.Counts[:0], Findings: e.Findings[:0]}
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
	if e.CPUSeq == 0 {
		e.CPU = 0
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

// procID parses "<boot>-<start>-<pid>". Most lines name a process that one
// before them has named.
func (d *decoder) procID(p *Proc) error {
	b, err := d.str()
	if err != nil {
		return err
	}
	known, ok := d.procs[string(b)]
	if !ok {
		s := string(b)
		if err := known.parseID(s); err != nil {
			return err
		}
		if d.procs == nil {
			d.procs = make(map[string]Proc)
		}
		if len(d.procs) < maxIntern {
			d.procs[s] = known
		}
	}
	p.Boot, p.Start, p.Pid = known.Boot, known.Start, known.Pid
	return nil
}

func (p *Proc) parseID(s string) (err error) {
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
	if err != nil || n == 0 || string(p.AppendID(again[:0])) != s {
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
	const point = len("2006-01-02T15:04:05.")
	if ns := nanoseconds(b[point:]); ns >= 0 && string(b[:point]) == d.second.text {
		return d.second.ns + ns, nil
	}
	ns, err := parseWall(b, form)
	if frac := nanoseconds(b[point:]); err == nil && ns > math.MinInt64+1e9 && ns < math.MaxInt64-1e9 { // no other of this second overflows
		d.second = second{string(b[:point]), ns - frac}
	}
	return ns, err
}

// nanoseconds parses nine digits and a Z; -1 where that is something else.
func nanoseconds(b []byte) int64 {
	n := int64(0)
	for _, c := range b[:len(b)-1] {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	if len(b) != 10 || b[9] != 'Z' {
		return -1
	}
	return n
}

func parseWall(b []byte, form string) (int64, error) {
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
	var again [32]byte
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
