// Package leanjson writes JSON as encoding/json does, byte for byte, for a process
// that writes each of its few documents once.
//
// encoding/json looks at a type when it first meets it: every field, sorted, in maps
// and closures that are kept for the next time. There is none in a launch, and the
// look takes five times as long as the writing. Here a type is looked at for one
// document, and no more than its fields' tags. What that does not cover (types that
// marshal themselves, embedded structs, floating point, keys that are no strings) is
// left to encoding/json.
package leanjson

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Marshal is json.Marshal. v must not contain itself.
func Marshal(v any) ([]byte, error) { return marshal(v, "") }

// MarshalIndent is json.MarshalIndent without a prefix.
func MarshalIndent(v any, indent string) ([]byte, error) { return marshal(v, indent) }

func marshal(v any, indent string) ([]byte, error) {
	size := 4 << 10
	if indent != "" { // a plan is 20 KB
		size = 24 << 10
	}
	e := encoder{out: make([]byte, 0, size), indent: indent, shapes: map[reflect.Type]*shape{}}
	if err := e.value(reflect.ValueOf(v)); err != nil {
		return nil, err
	}
	return e.out, nil
}

type encoder struct {
	out    []byte
	indent string // "": all in one line
	depth  int
	shapes map[reflect.Type]*shape
}

// shape is what is to be known of a type.
type shape struct {
	foreign bool // left to encoding/json
	isTime  bool
	fields  []field // of a struct
}

type field struct {
	index     int
	name      string // quoted, with its colon
	omitEmpty bool
}

func (e *encoder) value(v reflect.Value) error {
	if !v.IsValid() {
		e.out = append(e.out, "null"...)
		return nil
	}
	s := e.shapeOf(v.Type())
	switch {
	case s.isTime:
		b, err := v.Interface().(time.Time).MarshalJSON()
		e.out = append(e.out, b...)
		return err
	case s.foreign:
		return e.leave(v)
	}
	switch v.Kind() {
	case reflect.Bool:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case reflect.String:
		e.out = appendString(e.out, v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case reflect.Pointer, reflect.Interface:
		return e.value(v.Elem())
	case reflect.Struct:
		return e.structure(v, s.fields)
	case reflect.Map:
		return e.mapping(v)
	default:
		return e.list(v)
	}
	return nil
}

// leave has encoding/json write a value, in its place.
func (e *encoder) leave(v reflect.Value) error {
	if v.CanAddr() {
		v = v.Addr() // the pointer's methods count too
	}
	b, err := json.Marshal(v.Interface())
	if err != nil {
		return err
	}
	if e.indent == "" {
		e.out = append(e.out, b...)
		return nil
	}
	var laidOut bytes.Buffer
	err = json.Indent(&laidOut, b, strings.Repeat(e.indent, e.depth), e.indent)
	e.out = append(e.out, laidOut.Bytes()...)
	return err
}

func (e *encoder) structure(v reflect.Value, fields []field) error {
	first := true
	e.open('{')
	for i := range fields {
		f := &fields[i]
		member := v.Field(f.index)
		if f.omitEmpty && isEmpty(member) {
			continue
		}
		e.next(&first)
		e.name(f.name)
		if err := e.value(member); err != nil {
			return err
		}
	}
	e.close('}', first)
	return nil
}

func (e *encoder) mapping(v reflect.Value) error {
	if v.IsNil() {
		e.out = append(e.out, "null"...)
		return nil
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	first := true
	e.open('{')
	for _, k := range keys {
		e.next(&first)
		e.name(string(append(appendString(nil, k.String()), ':')))
		if err := e.value(v.MapIndex(k)); err != nil {
			return err
		}
	}
	e.close('}', first)
	return nil
}

func (e *encoder) list(v reflect.Value) error {
	if v.Kind() == reflect.Slice && v.IsNil() {
		e.out = append(e.out, "null"...)
		return nil
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		e.out = append(base64.StdEncoding.AppendEncode(append(e.out, '"'), v.Bytes()), '"')
		return nil
	}
	first := true
	e.open('[')
	for i := range v.Len() {
		e.next(&first)
		if err := e.value(v.Index(i)); err != nil {
			return err
		}
	}
	e.close(']', first)
	return nil
}

func (e *encoder) open(c byte) {
	e.out = append(e.out, c)
	e.depth++
}

// next begins a member.
func (e *encoder) next(first *bool) {
	if !*first {
		e.out = append(e.out, ',')
	}
	*first = false
	e.newline()
}

func (e *encoder) close(c byte, empty bool) {
	e.depth--
	if !empty {
		e.newline()
	}
	e.out = append(e.out, c)
}

func (e *encoder) newline() {
	if e.indent == "" {
		return
	}
	e.out = append(e.out, '\n')
	for range e.depth {
		e.out = append(e.out, e.indent...)
	}
}

func (e *encoder) name(quoted string) {
	e.out = append(e.out, quoted...)
	if e.indent != "" {
		e.out = append(e.out, ' ')
	}
}

// isEmpty is what omitempty leaves out.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func (e *encoder) shapeOf(t reflect.Type) *shape {
	s := e.shapes[t]
	if s == nil {
		s = newShape(t)
		e.shapes[t] = s
	}
	return s
}

var (
	timeType      = reflect.TypeFor[time.Time]()
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func newShape(t reflect.Type) *shape {
	if t == timeType {
		return &shape{isTime: true}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface: // what they lead to is looked at
		return &shape{}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && marshalsItself(t.Elem()) {
			return &shape{foreign: true}
		}
	case reflect.Map:
		if t.Key().Kind() != reflect.String || marshalsItself(t.Key()) {
			return &shape{foreign: true}
		}
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return &shape{foreign: true}
	}
	if marshalsItself(t) {
		return &shape{foreign: true}
	}
	s := &shape{}
	if t.Kind() == reflect.Struct {
		s.fields, s.foreign = fieldsOf(t)
	}
	return s
}

func marshalsItself(t reflect.Type) bool {
	if t.PkgPath() == "" { // no methods
		return false
	}
	p := reflect.PointerTo(t) // has the methods of both
	return p.Implements(marshaler) || p.Implements(textMarshaler)
}

// fieldsOf lists what is written of a struct; foreign if there is more to know than
// name and omitempty.
func fieldsOf(t reflect.Type) (fields []field, foreign bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if f.Anonymous {
			return nil, true
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if options != "" && options != "omitempty" || strings.ContainsFunc(name, odd) {
			return nil, true
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, field{i, string(append(appendString(nil, name), ':')), options != ""})
	}
	return fields, false
}

// odd is a sign that no name here has: encoding/json ignores names with some of them.
func odd(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
}
