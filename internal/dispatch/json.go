package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agentguard/agentguard/internal/action"
)

// Bounds of a JSON text besides its size.
const (
	maxDepth  = 64
	maxValues = 200000
	maxErrors = 20
)

// maxExact is the largest whole number that every receiver reads as the same
// (RFC 7493, 2.2).
const maxExact = 1<<53 - 1

// faults are the errors of an input, bounded.
type faults []action.InputError

func (f *faults) add(pointer, format string, args ...any) {
	if len(*f) < maxErrors {
		*f = append(*f, action.InputError{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
}

// decode reads one JSON text strictly: UTF-8, no duplicate keys, bounded depth,
// numbers that every receiver reads as the same, nothing behind it. Numbers
// become float64, objects map[string]any, arrays []any.
func decode(b []byte) (any, faults) {
	d := &decoder{}
	if !utf8.Valid(b) {
		d.f.add("", "the text is not UTF-8")
		return nil, d.f
	}
	d.in = json.NewDecoder(bytes.NewReader(b))
	d.in.UseNumber()
	v, err := d.value("", 0)
	if err == nil {
		if _, more := d.in.Token(); !errors.Is(more, io.EOF) {
			d.f.add("", "something follows the JSON text")
		}
	} else if !errors.Is(err, errTold) {
		d.f.add("", "this is not JSON, at byte %d", d.in.InputOffset())
	}
	return v, d.f
}

// decoder reads a value token by token, so that neither depth nor size is ever
// more than its bounds.
type decoder struct {
	in     *json.Decoder
	f      faults
	values int
}

// errTold ends the reading after a fault that was noted.
var errTold = errors.New("told")

func (d *decoder) value(at string, depth int) (any, error) {
	t, err := d.in.Token()
	if err != nil {
		return nil, err
	}
	if d.values++; d.values > maxValues {
		d.f.add(at, "more than %d values", maxValues)
		return nil, errTold
	}
	switch t := t.(type) {
	case json.Delim:
		if depth == maxDepth {
			d.f.add(at, "nested deeper than %d", maxDepth)
			return nil, errTold
		}
		if t == '{' {
			return d.object(at, depth)
		}
		return d.array(at, depth)
	case json.Number:
		return d.number(at, t.String()), nil
	case string:
		d.text(at, t)
	}
	return t, nil
}

func (d *decoder) object(at string, depth int) (any, error) {
	out := map[string]any{}
	for d.in.More() {
		t, err := d.in.Token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if !ok {
			return nil, io.ErrUnexpectedEOF
		}
		below := at + "/" + escapePointer(key)
		d.text(below, key)
		if _, twice := out[key]; twice {
			d.f.add(below, "the key is there twice")
		}
		if out[key], err = d.value(below, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := d.in.Token()
	return out, err
}

func (d *decoder) array(at string, depth int) (any, error) {
	out := []any{}
	for d.in.More() {
		v, err := d.value(at+"/"+strconv.Itoa(len(out)), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := d.in.Token()
	return out, err
}

func (d *decoder) number(at, s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || math.IsInf(f, 0):
		d.f.add(at, "the number is out of range")
	case !strings.ContainsAny(s, ".eE") && math.Abs(f) > maxExact, f == math.Trunc(f) && math.Abs(f) > maxExact:
		d.f.add(at, "a whole number beyond 2^53-1 is not the same everywhere; send it as text")
	}
	return f
}

// text notes what Go puts in the place of half a surrogate pair.
func (d *decoder) text(at, s string) {
	if strings.ContainsRune(s, utf8.RuneError) {
		d.f.add(at, "the text has a character that stands for damaged text")
	}
}

// escapePointer writes a key as a token of a JSON Pointer (RFC 6901, 3), bounded.
func escapePointer(key string) string {
	const most = 100
	if len(key) > most {
		key = strings.ToValidUTF8(key[:most], "") + "..."
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// at finds the value that a JSON Pointer leads to.
func at(v any, pointer string) (any, bool) {
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[token]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(x) || token != strconv.Itoa(i) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// encode writes a value as JSON without escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
