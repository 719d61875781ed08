package dispatch

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

const everyField = `actions:
  fuzz:
    input:
      type: object
      required: [a, b, c, d, n]
      properties: {a: {type: string}, b: {type: string}, c: {type: string}, d: {type: string}, n: {type: integer}}
    request:
      url: "https://api.example.org:8443/v1/{a}/x-{b}.json/{n}/end?q={c}&fixed=1"
      headers: {X-D: "d {d}"}
`

// FuzzURL puts any text into each field that a URL and a header can have. The
// request is refused, or a server reads it as the action says: the same origin,
// the same number of segments, each field whole in its own.
func FuzzURL(f *testing.F) {
	for _, s := range []string{
		"..", ".", "", "/", "%2f", "%2e%2e", "..%2f", "\\", "a/../b", "//evil.example/", "@evil.example", ":80", "?x=1", "#f", "a\r\nHost: evil", "\x00", "\u2024\u2024",
		"\uff0f", "\u2044", "\u202e", "a b", "&x=1", "=", "+", "%", "%zz", ";x=1", "\ud7ff", "\u00ad", "[::1]", "https://evil", "a\u0301", "\t", "\u2028",
	} {
		f.Add(s, s, s, s, int64(len(s)))
	}
	file, err := action.Parse("fuzz.yaml", []byte(everyField))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string, n int64) {
		raw, err := json.Marshal(map[string]any{"a": a, "b": b, "c": c, "d": d, "n": n})
		if err != nil {
			return
		}
		input, bad := decode(raw)
		if len(bad) > 0 {
			return
		}
		r, bad := render(file.Actions[0], input)
		if len(bad) > 0 {
			return
		}
		out := r.http(t.Context(), action.Proof{})
		got := httptest.NewRequest(out.Method, out.URL.String(), nil) // parses as a server does
		if out.URL.Scheme != "https" || out.URL.Host != "api.example.org:8443" || got.URL.Host != "api.example.org:8443" || got.URL.User != nil {
			t.Fatalf("%q leads to another origin", out.URL)
		}
		segments := strings.Split(got.URL.EscapedPath(), "/")
		if len(segments) != 6 || segments[1] != "v1" || segments[5] != "end" {
			t.Fatalf("%q has other segments", out.URL)
		}
		for i, want := range map[int]string{2: a, 3: "x-" + b + ".json"} {
			if s, err := url.PathUnescape(segments[i]); err != nil || s != want || strings.ContainsAny(s, "/\\") || s == ".." || s == "." || s == "" {
				t.Fatalf("segment %d of %q is %q, want %q", i, out.URL, s, want)
			}
		}
		q, err := url.ParseQuery(got.URL.RawQuery)
		if err != nil || len(q) != 2 || len(q["q"]) != 1 || q.Get("q") != c || q.Get("fixed") != "1" {
			t.Fatalf("%q has another query: %v", out.URL, q)
		}
		var wire strings.Builder
		if err := out.Header.Write(&wire); err != nil || strings.Count(wire.String(), "\r\n") != len(out.Header) || out.Header["X-D"][0] != "d "+d {
			t.Fatalf("%q", wire.String())
		}
	})
}

// FuzzDecode: what is read is the same to a second reader, and within its bounds.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `[[[[`, `{"a":1,"a":2}`, `1e999`, `"\ud800"`, `{"":{"~/":0}}`, "[1] 2"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, bad := decode(b)
		if len(bad) > 0 {
			return
		}
		again, err := encode(v)
		if err != nil {
			t.Fatal(err)
		}
		var x, y any
		if json.Unmarshal(b, &x) != nil || json.Unmarshal(again, &y) != nil {
			t.Fatalf("%q was read, and is not JSON", b)
		}
		m, _ := json.Marshal(x)
		n, _ := json.Marshal(y)
		if string(m) != string(n) {
			t.Fatalf("%q became %q", b, again)
		}
	})
}
