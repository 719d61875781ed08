package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// record returns the lines of a small whole record.
func record(t testing.TB) []string {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, testClock)
	for i := range 5 {
		w.Append(openEvent(i))
	}
	if err := w.Close(nil); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestJudgement(t *testing.T) {
	lines := record(t)
	last := len(lines) - 1
	lines[last] += "\n"
	join := func(l ...string) string { return strings.Join(l, "") }
	tests := []struct {
		name string
		rec  string
		want Judgement
		why  string // part of the reasons
	}{
		{"whole", join(lines...), Complete, ""},
		{"empty", "", Unsealed, "no summary"},
		{"no summary", join(lines[:last]...), Unsealed, "no summary"},
		{"torn", strings.TrimSuffix(join(lines[:3]...), "\n"), Unsealed, "torn"},
		{"torn in a record", join(lines[:3]...)[:len(join(lines[:3]...))-40], Unsealed, "torn"},
		{"zeros at the end", join(lines[:3]...) + strings.Repeat("\x00", 9000), Unsealed, "torn"},
		{"many zeros at the end", join(lines[:3]...) + strings.Repeat("\x00", MaxLine+9000), Unsealed, "torn"},
		{"one removed", join(lines[0], lines[1]) + join(lines[3:]...), Incomplete, "numbers missing: 1"},
		{"first removed", join(lines[1:]...), Incomplete, "numbers missing: 1"},
		{"swapped", join(lines[0], lines[2], lines[1]) + join(lines[3:]...), Incomplete, "other numbers"},
		{"repeated", join(lines[0], lines[0]) + join(lines[1:]...), Incomplete, "other numbers"},
		{"after the summary", join(lines...) + lines[0], Incomplete, "after the summary: 1"},
		{"garbage between", join(lines[0], "hello\n", lines[1]) + join(lines[2:]...), Incomplete, "unreadable lines: 1"},
		{"empty line", join(lines[0], "\n", lines[1]) + join(lines[2:]...), Incomplete, "unreadable lines: 1"},
		{"too long between", join(lines[0], strings.Repeat("x", MaxLine+1)+"\n", lines[1]) + join(lines[2:]...), Incomplete, "unreadable lines: 1"},
		{"summary alone", lines[last], Incomplete, "numbers missing: 5"},
		{"summary with other counts", join(lines[:last]...) + strings.Replace(lines[last], `"records":5`, `"records":4`, 1), Incomplete, "other numbers"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, report := readAll(t, []byte(tt.rec))
			j, why := report.Judge()
			if j != tt.want || !strings.Contains(strings.Join(why, "; "), tt.why) {
				t.Errorf("judged %s: %q; want %s: %q", j, why, tt.want, tt.why)
			}
		})
	}
}

// TestEveryPrefix cuts a record at every byte, as kill -9 does: what is before
// is read as it is, and the whole is never called complete.
func TestEveryPrefix(t *testing.T) {
	rec := []byte(strings.Join(record(t), "") + "\n")
	for n := range rec {
		events, report := readAll(t, rec[:n])
		if want := bytes.Count(rec[:n], []byte("\n")); len(events) != want || report.BadLines != 0 {
			t.Fatalf("cut at %d: %d of %d events, bad: %v", n, len(events), want, report.Bad)
		}
		if j, _ := report.Judge(); j != Unsealed {
			t.Fatalf("cut at %d: judged %s", n, j)
		}
	}
}

func TestLineErrors(t *testing.T) {
	pre := `{"v":1,"seq":1,"mono":1,"wall":"2026-11-29T16:36:24.000000000Z","kind":"open"`
	tests := []struct{ line, want string }{
		{pre + `,"verdict":"deny","verdict":"allow"}`, "field verdict: repeated or out of order"},
		{pre + `,"uid":5,"pid":4}`, "field pid: repeated or out of order"},
		{pre + `,"path":5}`, "field path: wrong type"},
		{pre + `,"ino":1.5}`, "malformed"},
		{pre + `,"ino":1e3}`, "malformed"},
		{pre + `,"ino":-1}`, "field ino: wrong type"},
		{pre + `,"ino":01}`, "field ino: wrong type"},
		{pre + `,"ino":18446744073709551616}`, "field ino: wrong type"},
		{pre + `,"nr":-0}`, "field nr: wrong type"},
		{pre + `,"port":65536}`, "field port: wrong type"},
		{pre + `,"addr":"fe80::1%eth0"}`, "field addr: wrong type"},
		{pre + `,"proc":"a-1-2","pid":3}`, "field pid: wrong type"},
		{pre + `,"proc":"a-01-2"}`, "field proc: wrong type"},
		{pre + `,"proc":"` + "\\u001b" + `-1-2"}`, "field proc: wrong type"},
		{pre + `,"errno":"13"}`, "field errno: wrong type"},
		{pre + `,"path_b64":"a"}`, "field path_b64: wrong type"},
		{pre + `,"argv":["a"],"argv_b64":["","YQ=="]}`, "field argv_b64: wrong type"},
		{pre + `,"path":"\ud800"}`, "malformed"},
		{pre + `,"path":"\udc00\ud800"}`, "malformed"},
		{pre + `,"path":"\x"}`, "malformed"},
		{pre + `,"path":"` + "\x1b" + `"}`, "malformed"},
		{pre + `,"path":"` + "\x7f" + `"}`, "malformed"},
		{pre + `,"path":"` + "\u202e" + `"}`, "malformed"},
		{pre + `,"path":"` + "\xff" + `"}`, "malformed"},
		{pre + `,"` + "\u009b" + `":1}`, "malformed"},
		{pre + `,"truncated":false}`, "field truncated: wrong type"},
		{pre + `,"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "nested too deeply"},
		{pre + `,"x":[1,]}`, "malformed"},
		{pre + `,"x":{"a" 1}}`, "malformed"},
		{pre + `,"x":nil}`, "malformed"},
		{pre + `}{`, "malformed"},
		{pre, "malformed"},
		{pre + `,`, "malformed"},
		{`{"v":2,"seq":1}`, "schema version 2"},
		{`{"v":1,"kind":"open"}`, "no seq"},
		{`{"v":1,"seq":1}`, "no kind"},
		{`[1]`, "not a JSON object"},
		{`null`, "not a JSON object"},
	}
	for _, tt := range tests {
		r := NewReader(strings.NewReader("\n" + tt.line + "\n"))
		var e Event
		r.Next(&e)
		err := r.Next(&e)
		bad := (*LineError)(nil)
		if !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(bad.Error(), tt.want) {
			t.Errorf("%s\n\tgot %v, want line 2: %s", tt.line, err, tt.want)
			continue
		}
		assertSafe(t, "error", bad.Error())
	}
}

// TestUnknownFields reads what a later version may add.
func TestUnknownFields(t *testing.T) {
	line := `{"v":1,"seq":1,"new":{"a":[1,-2.5e+3,true,null,"\u001b"],"b":{}},"mono":1,"kind":"open","zzz":[],"path":"/x","z2":false}`
	e := decodeOne(t, []byte(line))
	if e.Kind != KindOpen || string(e.Path) != "/x" {
		t.Errorf("%+v", e)
	}
	e = decodeOne(t, []byte(`{ "v": 1, "seq": 1, "kind": "open", "dev": "8:1", "argv": [ "a" , "b" ] }`))
	if len(e.Argv) != 2 || e.DevMajor != 8 {
		t.Errorf("with blanks: %+v", e)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("I/O error") }

func TestSourceError(t *testing.T) {
	r := NewReader(io.MultiReader(strings.NewReader(record(t)[0]), failing{}))
	var e Event
	if err := r.Next(&e); err != nil {
		t.Fatal(err)
	}
	err := r.Next(&e)
	if err == nil || errors.Is(err, io.EOF) || errors.As(err, new(*LineError)) {
		t.Errorf("got %v", err)
	}
	if _, err := Show(io.Discard, failing{}); err == nil {
		t.Error("Show hides the error of its source")
	}
	if err := Copy(io.Discard, NewReader(failing{})); err == nil {
		t.Error("Copy hides the error of its source")
	}
}

func TestCopy(t *testing.T) {
	lines := record(t)
	var b bytes.Buffer
	in := lines[0] + "garbage \x1b\n" + strings.Join(lines[1:], "") + "\ntorn"
	if err := Copy(&b, NewReader(strings.NewReader(in))); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Join(lines, "")+"\n", b.String()); d != "" {
		t.Error(d)
	}
}

func TestReaderKeepsNothing(t *testing.T) {
	var rec bytes.Buffer
	w := NewWriter(&rec, testClock)
	for i := range 2000 {
		w.Append(openEvent(i))
	}
	w.Flush()
	r := NewReader(bytes.NewReader(rec.Bytes()))
	var e Event
	r.Next(&e)
	if n := testing.AllocsPerRun(1000, func() { r.Next(&e) }); n > 0 {
		t.Errorf("%v allocations a record", n)
	}
}

// What a decoder remembers of earlier lines changes nothing of what it reads.
func TestDecoderRemembers(t *testing.T) {
	var walls, procs []string
	for _, second := range []string{"2026-11-29T16:36:24.", "2026-11-29T16:36:25.", "2026-02-30T16:36:24.", "1969-12-31T23:59:59.", "1677-09-21T00:12:43.", "2262-04-11T23:47:16.", "2262-04-11 23:47:16."} {
		for _, rest := range []string{"000000000Z", "145224193Z", "145224191Z", "999999999Z", "854775807Z", "854775808Z", "12345678xZ", "1234567890", "-12345678Z", "1Z"} {
			walls = append(walls, second+rest)
		}
	}
	for _, id := range []string{"1a2b3c4d-9-42", "1a2b3c4d-9-042", "1a2b3c4d-9-42x", "1a2b3c4d-8-42", "-9-42", "1a2b3c4d-9-0", ""} {
		procs = append(procs, id, id)
	}
	var d decoder
	for i := range 3 * len(walls) * len(procs) {
		line := fmt.Appendf(nil, `{"v":1,"seq":1,"mono":1,"wall":"%s","kind":"k","proc":"%s"}`, walls[i%len(walls)], procs[i%len(procs)])
		var fresh decoder
		var got, want Event
		err, wantErr := d.decode(line, &got), fresh.decode(line, &want)
		if (err == nil) != (wantErr == nil) || err == nil && !cmp.Equal(&got, &want, equalEvents) {
			t.Fatalf("%s: %v, by a decoder that remembers nothing %v", line, err, wantErr)
		}
	}
}

// FuzzReader feeds the reader whole files.
func FuzzReader(f *testing.F) {
	f.Add([]byte(strings.Join(record(f), "") + "\n"))
	f.Add(encodeOne(fullEvent()))
	f.Add([]byte("{\"v\":1,\"seq\":1,\"kind\":\"\\ud83d\\ude00\",\"x\":[{}]}\n{}\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		var e Event
		for {
			err := r.Next(&e)
			if err == io.EOF {
				break
			}
			if err != nil {
				assertSafe(t, "error", err.Error())
				continue
			}
			if !json.Valid(r.raw) {
				t.Fatalf("accepted, but not JSON: %q", r.raw)
			}
			assertSafe(t, "line", strings.ReplaceAll(string(r.raw), "\t", ""))
			again := decodeOne(t, encodeOne(&e))
			if d := cmp.Diff(&e, again, equalEvents); d != "" {
				t.Fatalf("read, written and read again:\n%s", d)
			}
		}
		var out bytes.Buffer
		if _, err := Show(&out, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		assertSafe(t, "view", strings.ReplaceAll(out.String(), "\n", ""))
	})
}

// FuzzEncoder puts any bytes into an event; encoding/json is the judge.
func FuzzEncoder(f *testing.F) {
	for _, s := range hostile {
		f.Add([]byte(s), s, uint64(1), int32(-1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, s string, n uint64, i int32) {
		e := &Event{
			Seq: n | 1, Mono: n, Wall: int64(n), Kind: "k", Phase: Phase(s), Path: raw, PathLen: uint32(n), To: []byte(s), Comm: raw, Name: raw,
			Argv: [][]byte{raw, []byte(s), nil}, Argc: 3, Errno: i, Signal: i, ExitCode: i, Ret: int64(i), Syscall: s, SyscallNr: i,
			Proc: Proc{Boot: "1a2b", Pid: uint32(n), Tid: uint32(n >> 3), Start: n, PPid: uint32(i), UID: uint32(i)},
			Rule: s, Remedy: s, Text: s, Counts: []Count{{s, n}}, Mode: uint32(i), Port: uint16(n),
		}
		b := encodeOne(e)
		if bytes.Count(b, []byte("\n")) != 1 || !json.Valid(b) {
			t.Fatalf("not one line of JSON: %q", b)
		}
		assertSafe(t, "record", strings.TrimSuffix(string(b), "\n"))
		var judge struct {
			Path    string
			PathB64 []byte `json:"path_b64"`
			Argv    []string
			ArgvB64 [][]byte `json:"argv_b64"`
		}
		if err := json.Unmarshal(b, &judge); err != nil {
			t.Fatal(err)
		}
		if len(raw) <= MaxPath {
			got := []byte(judge.Path)
			if judge.PathB64 != nil {
				got = judge.PathB64
			}
			if !bytes.Equal(got, raw) {
				t.Fatalf("path %q reads back as %q", raw, got)
			}
		}
		if len(raw)+len(s) > MaxPath {
			return
		}
		got := decodeOne(t, b)
		if !bytes.Equal(got.Path, e.Path) || !bytes.Equal(got.To, e.To) || !bytes.Equal(got.Name, e.Name) ||
			len(got.Argv) != 3 || !bytes.Equal(got.Argv[0], raw) || string(got.Argv[1]) != s {
			t.Fatalf("read back as %+v", got)
		}
		if got.Errno != i || got.Signal != i || got.Mono != n || got.Wall != int64(n) || got.Mode != uint32(i) {
			t.Fatalf("numbers read back as %+v", got)
		}
	})
}
