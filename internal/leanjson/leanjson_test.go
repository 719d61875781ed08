package leanjson

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

type word string

type own struct{ n int }

func (o *own) MarshalJSON() ([]byte, error) { return json.Marshal([]int{o.n, o.n}) }

type inner struct {
	A    int8
	B    word `json:"b,omitempty"`
	Skip int  `json:"-"`
	_    int
	C    []byte `json:"c"`
}

type base struct{ X int }

type embedded struct {
	base
	Y int
}

type everything struct {
	Bool   bool              `json:"bool,omitempty"`
	Int    int64             `json:"int,omitempty"`
	Uint   uint16            `json:",omitempty"`
	Str    string            `json:"str"`
	Words  []word            `json:"words"`
	Bytes  []byte            `json:"bytes,omitempty"`
	Array  [2]inner          `json:"array,omitempty"`
	Ptr    *inner            `json:"ptr,omitempty"`
	Map    map[word]inner    `json:"map,omitempty"`
	Empty  map[string]uint64 `json:"empty"`
	Time   time.Time         `json:"time"`
	For    time.Duration     `json:"for"`
	Any    any               `json:"any"`
	Float  float64           `json:"float"`
	Quoted int               `json:"quoted,string"`
	Zero   inner             `json:"zero,omitzero"`
	Addr   netip.Addr        `json:"addr"`
	Nets   []netip.Prefix    `json:"nets"`
	Own    own               `json:"own"`
	Owns   []own             `json:"owns"`
	Emb    embedded          `json:"emb"`
	Ports  map[uint16]string `json:"ports"`
}

type lean struct {
	Everything []inner           `json:"everything,omitempty"`
	Deep       map[string][]lean `json:"deep,omitempty"`
	Text       string            `json:"text"`
	Addr       netip.Addr        `json:"addr"`
	Own        own               `json:"own"`
	Float      float32           `json:"float"`
	Any        any               `json:"any,omitempty"`
	When       time.Time         `json:"when"`
}

func same(t *testing.T, v any) {
	t.Helper()
	want, werr := json.Marshal(v)
	got, err := Marshal(v)
	if (err == nil) != (werr == nil) || werr == nil && string(got) != string(want) {
		t.Errorf("got  %s, %v\nwant %s, %v", got, err, want, werr)
	}
	want, werr = json.MarshalIndent(v, "", "  ")
	got, err = MarshalIndent(v, "  ")
	if (err == nil) != (werr == nil) || werr == nil && string(got) != string(want) {
		t.Errorf("got  %s, %v\nwant %s, %v", got, err, want, werr)
	}
}

func TestSameAsEncodingJSON(t *testing.T) {
	for _, v := range []any{
		nil, true, -3, uint8(4), "a<b>&\"\\\n\x00\x7f\xff\u2028é",
		[]string{},
		[]string(nil),
		map[string]int{},
		(*inner)(nil),
		struct{}{},
		[0]int{},
		[]byte(nil),
		[]byte{},
		[3]byte{1},
		1.5, func() {}, time.Unix(1, 2).UTC(), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
		everything{},
		&everything{}, &embedded{},
		lean{},
		&lean{},
		own{1},
		&own{1},
		[]any{1, "x", nil, &own{2}},
		map[int]string{1: "x"},
		struct {
			A int `json:"a b"`
			C int `json:"c,omitempty,string"`
			D int `json:",omitempty"`
		}{},
	} {
		same(t, v)
	}
}

// fill sets what can be set of a value, at random.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if r.IntN(4) == 0 || depth > 4 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(string([]byte{byte(r.Uint32()), byte(r.Uint32()), 'x', 0xc3, byte(r.Uint32())}) + string(rune(r.IntN(0x2100))))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64())
	case reflect.Float32, reflect.Float64:
		v.SetFloat(r.NormFloat64() * 1e20)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem(), depth+1)
	case reflect.Interface:
		v.Set(reflect.ValueOf(any(r.Int())))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(3), 3))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key, depth+1)
			fill(r, elem, depth+1)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).In(time.FixedZone("", r.IntN(20)*1800))))
			return
		}
		for i := range v.NumField() {
			fill(r, v.Field(i), depth+1)
		}
	}
}

func TestRandomValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var e everything
		fill(r, reflect.ValueOf(&e).Elem(), 0)
		same(t, &e)
		var l lean
		fill(r, reflect.ValueOf(&l).Elem(), 0)
		same(t, l)
		same(t, &l)
		if t.Failed() {
			return
		}
	}
}

func FuzzString(f *testing.F) {
	for _, s := range []string{"", "a", "\x00\x1f\x7f", "<&>", "\xff\xc3", "\u2028\u2029\u202a", `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { same(t, s) })
}
