package trace

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fullEvent has a value other than zero in every field.
func fullEvent() *Event {
	e := &Event{}
	n := uint64(1)
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		n++
		switch v.Kind() {
		case reflect.Uint16, reflect.Uint32, reflect.Uint64:
			v.SetUint(n)
		case reflect.Int32, reflect.Int64:
			v.SetInt(int64(n))
		case reflect.String:
			v.SetString("s" + strings.Repeat("x", int(n%7)))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[netip.Addr]() {
				v.Set(reflect.ValueOf(netip.MustParseAddr("2001:db8::1")))
				return
			}
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Slice:
			if v.Type().Elem().Kind() == reflect.Uint8 {
				v.SetBytes([]byte{'b', byte('a' + n%26), 0xff, '\n'})
				return
			}
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0))
			fill(v.Index(1))
		default:
			panic(v.Kind())
		}
	}
	fill(reflect.ValueOf(e).Elem())
	e.Proc.Boot, e.Child.Boot, e.Target.Boot = "1a2b3c4d", "1a2b3c4d", "1a2b3c4d"
	e.Wall = 1_795_970_000_123_456_789
	return e
}

func encodeOne(e *Event) []byte {
	var l line
	l.appendEvent(e)
	return l.b
}

func decodeOne(t testing.TB, b []byte) *Event {
	t.Helper()
	e := &Event{}
	if err := new(decoder).decode(bytes.TrimSuffix(b, []byte("\n")), e); err != nil {
		t.Fatalf("decode: %v\n%s", err, b)
	}
	return e
}

var equalEvents = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}),
	cmpopts.EquateEmpty(),
}

// TestRoundTripEveryField fails when a field is added to Event but not to the
// encoder or the schema.
func TestRoundTripEveryField(t *testing.T) {
	want := fullEvent()
	v := reflect.ValueOf(*want)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("fullEvent leaves out %s", v.Type().Field(i).Name)
		}
	}
	// A process of the child or the target has no parent and no uid of its own
	// in the record, and its pid is in its id only.
	for _, p := range []*Proc{&want.Child, &want.Target} {
		p.PPid, p.PStart, p.UID = 0, 0, 0
	}
	got := decodeOne(t, encodeOne(want))
	if d := cmp.Diff(want, got, equalEvents); d != "" {
		t.Errorf("-written +read:\n%s", d)
	}
}

// keys returns the top-level keys of a JSON object in their order.
func keys(t *testing.T, b []byte) []string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for d.More() {
		k, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, k.(string))
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func schemaNames() []string {
	var names []string
	for _, f := range schema {
		names = append(names, f.name)
	}
	return names
}

func TestEncoderFollowsSchema(t *testing.T) {
	if d := cmp.Diff(schemaNames(), keys(t, encodeOne(fullEvent()))); d != "" {
		t.Errorf("schema and encoder differ, -schema +encoder:\n%s", d)
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(schemaNames())))); n != len(schema) {
		t.Errorf("%d of %d names are unique", n, len(schema))
	}
	for _, f := range schema {
		if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(f.name) {
			t.Errorf("field name %q", f.name)
		}
	}
}

// TestSchemaIsDocumented holds docs/record.md and the schema together.
func TestSchemaIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/record.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllSubmatch(doc, -1) {
		documented = append(documented, string(m[1]))
	}
	var want []string
	for _, n := range schemaNames() { // x_b64 and x_len are explained once, for all texts
		if !strings.HasSuffix(n, "_b64") {
			want = append(want, n)
		}
	}
	if d := cmp.Diff(want, documented); d != "" {
		t.Errorf("docs/record.md and the schema differ, -schema +documented:\n%s", d)
	}
	for _, k := range kinds {
		if !bytes.Contains(doc, []byte("**"+string(k)+"**")) {
			t.Errorf("docs/record.md does not explain the kind %s", k)
		}
	}
}

// TestPresence pins what is written although it is zero, and what is not.
func TestPresence(t *testing.T) {
	tests := []struct {
		name string
		e    Event
		want string
	}{
		{"nothing", Event{}, `{"v":1,"seq":0,"mono":0,"wall":"1970-01-01T00:00:00.000000000Z"}`},
		{"uid 0", Event{Kind: KindOpen, Proc: Proc{Boot: "ab", Pid: 7, Tid: 7, Start: 5}}, `"proc":"ab-5-7","pid":7,"uid":0}`},
		{"thread", Event{Kind: KindOpen, Proc: Proc{Boot: "ab", Pid: 7, Tid: 8, Start: 5}}, `"pid":7,"tid":8,"uid":0}`},
		{"parent", Event{Kind: KindOpen, Proc: Proc{Boot: "ab", Pid: 7, PPid: 1, PStart: 2}}, `"ppid":1,"parent":"ab-2-1"`},
		{"exit 0", Event{Kind: KindExit}, `"kind":"exit","exit_code":0}`},
		{"killed", Event{Kind: KindExit, Signal: 9}, `"kind":"exit","signal":"SIGKILL"}`},
		{"read is call 0", Event{Kind: KindDeny, Syscall: "read"}, `"syscall":"read","nr":0}`},
		{"exec without arguments", Event{Kind: KindExec}, `"argv":[]}`},
		{"port 0", Event{Kind: KindBind, Addr: netip.MustParseAddr("::1")}, `"addr":"::1","port":0}`},
		{"zone is left out", Event{Kind: KindBind, Addr: netip.MustParseAddr("fe80::1%e\x1b")}, `"addr":"fe80::1","port":0}`},
		{"loss", Event{Kind: KindLoss, Loss: Loss{Class: "bulk", Cause: "ring", CPU: -1}}, `"lost_class":"bulk","lost_cause":"ring","lost_count":0,"after_seq":0}`},
		{"loss on CPU 0", Event{Kind: KindLoss, Loss: Loss{Class: "bulk"}}, `"lost_cpu":0}`},
		{"kernel record on CPU 0", Event{Kind: KindOpen, CPUSeq: 7}, `"cpu":0,"cpu_seq":7}`},
		{"descriptor 0", Event{Kind: KindInherit}, `"kind":"inherit","fd":0}`},
		{"mode", Event{Kind: KindChmod, Mode: 0o644}, `"mode":"0644"}`},
		{"unknown errno", Event{Kind: KindOpen, Errno: 4000}, `"errno":"E4000"}`},
		{"real-time signal", Event{Kind: KindSignal, Signal: 40}, `"signal":"SIG40"}`},
		{"device", Event{Kind: KindOpen, DevMinor: 31, Ino: 1 << 63}, `"dev":"0:31","ino":9223372036854775808}`},
	}
	for _, tt := range tests {
		if got := string(encodeOne(&tt.e)); !strings.HasSuffix(got, tt.want+"\n") {
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s: got %swant %s", tt.name, got, tt.want)
			}
		}
	}
}

func TestWallTime(t *testing.T) {
	var s stamp
	for _, ns := range []int64{0, 1, -1, 999_999_999, 1e9, 1_795_970_000_123_456_789, 1_795_970_000_999_999_999, -1e18, 1 << 62} {
		want := time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000Z")
		if got := string(s.append(nil, ns)); got != want {
			t.Errorf("%d: got %s, want %s", ns, got, want)
		}
	}
}

func TestCuts(t *testing.T) {
	long := bytes.Repeat([]byte("x"), MaxPath+10)
	e := decodeOne(t, encodeOne(&Event{Seq: 1, Kind: KindOpen, Path: long, To: long[:5], ToLen: 90}))
	if len(e.Path) != MaxPath || e.PathLen != MaxPath+10 || e.ToLen != 90 {
		t.Errorf("path %d of %d, to of %d", len(e.Path), e.PathLen, e.ToLen)
	}
	args := make([][]byte, 5)
	for i := range args {
		args[i] = bytes.Repeat([]byte("\xff"), 100<<10)
	}
	raw := encodeOne(&Event{Seq: 1, Kind: KindExec, Argv: args})
	e = decodeOne(t, raw)
	if len(e.Argv) != 2 || e.Argc != 5 || e.ArgvLen != 500<<10 || !bytes.Contains(raw, []byte(`"argv_truncated":true`)) {
		t.Errorf("argv %d of %d, %d bytes", len(e.Argv), e.Argc, e.ArgvLen)
	}
	if len(raw) > MaxLine {
		t.Errorf("a record of %d bytes is longer than MaxLine", len(raw))
	}
	e = decodeOne(t, encodeOne(&Event{Seq: 1, Kind: KindExec, Argv: make([][]byte, 100_000)}))
	if len(e.Argv) != MaxArgv/8 || e.Argc != 100_000 {
		t.Errorf("%d of %d empty arguments", len(e.Argv), e.Argc)
	}
}

// TestWorstCaseFits takes the longest texts that exist, of the bytes that take
// most room: every record that the caps allow is one that the Reader accepts.
func TestWorstCaseFits(t *testing.T) {
	for _, c := range []string{"\x01", "\xff", "\u202e", "\U000e0001"} {
		text := bytes.Repeat([]byte(c), MaxPath/len(c))
		e := &Event{Seq: 1, Kind: KindExec, Path: text, To: text, Name: text, Comm: text}
		e.PathGiven, e.ToGiven, e.Script, e.Interp = text, text, text, text
		e.Env = [][]byte{text[:MaxEnv-8]}
		for range 4 {
			e.Argv = append(e.Argv, bytes.Repeat([]byte(c), (MaxArgv/4-8)/len(c)))
		}
		b := encodeOne(e)
		if len(b) > MaxLine {
			t.Errorf("%q: %d bytes", c, len(b))
		}
		if got := decodeOne(t, b); len(got.Argv) != 4 || !bytes.Equal(got.Path, text) {
			t.Errorf("%q: cut", c)
		}
	}
}
