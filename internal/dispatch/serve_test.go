package dispatch

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

func TestRoundTrip(t *testing.T) {
	u := newUpstream(t)
	s := u.session("")
	out := s.run(t, strings.NewReader(`{"repo": "a b", "title": "ä&=", "n": 3}`))
	want := `POST /repos/a%20b/issues?title=%C3%A4%26%3D "{\"n\":3,\"repo\":\"a b\",\"title\":\"ä&=\"}" auth="Bearer ` + canary + `" type="application/json" x="about a b"`
	if len(u.requests) != 1 || u.requests[0] != want {
		t.Errorf("%q\nwant %s", u.requests, want)
	}
	o := out[0]
	if o.Outcome != action.Done || o.Sent != action.SentYes || o.Status != 201 || o.ExitStatus() != 0 || string(o.Response["/number"]) != "7" || len(o.Response) != 2 || !o.Untrusted {
		t.Errorf("%+v", o)
	}
	if o.LatencyNS <= 0 || o.Address == "" || o.ResponseBytes == 0 || o.RequestBytes == 0 || len(o.InputSHA256) != 64 {
		t.Errorf("%+v", o)
	}
}

// Nothing of these is sent, and nobody is asked for the credential.
func TestRefusedInputs(t *testing.T) {
	u := newUpstream(t)
	for _, c := range []struct{ name, input, pointer, want string }{
		{"schema", `{"repo": "r", "title": ""}`, "/title", "minLength"},
		{"missing", `{"repo": "r"}`, "", "required"},
		{"type", `{"repo": 1, "title": "t"}`, "/repo", "type"},
		{"more", `{"repo": "r", "title": "t", "sha": 1}`, "/sha", "no such property"},
		{"item", `{"repo": "r", "title": "t", "labels": ["a", 1]}`, "/labels/1", "type"},
		{"items", `{"repo": "r", "title": "t", "labels": ["a", "b", "c"]}`, "/labels", "maxItems"},
		{"maximum", `{"repo": "r", "title": "t", "n": 11}`, "/n", "maximum"},
		{"not JSON", `{"repo": `, "", "not JSON"},
		{"two texts", `{"repo": "r", "title": "t"} {}`, "", "follows"},
		{"duplicate", `{"repo": "r", "title": "t", "title": "u"}`, "/title", "twice"},
		{"deep", `{"repo": "r", "title": "t", "deep": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "", "nested deeper"},
		{"large number", `{"repo": "r", "title": "t", "n": 9007199254740993}`, "/n", "beyond 2^53-1"},
		{"infinite", `{"repo": "r", "title": "t", "n": 1e999}`, "/n", "out of range"},
		{"half a pair", `{"repo": "r", "title": "\ud800"}`, "/title", "damaged text"},
		{"not UTF-8", "{\"repo\": \"\xff\", \"title\": \"t\"}", "", "UTF-8"},
		{"large", `{"repo": "r", "title": "` + strings.Repeat("x", 2000) + `"}`, "", "larger than 1024 bytes"},
		{"slash", `{"repo": "../admin", "title": "t"}`, "/repo", `'/' may not stand in a path`},
		{"dots", `{"repo": "..", "title": "t"}`, "/repo", "dots"},
		{"dot", `{"repo": ".", "title": "t"}`, "/repo", "dots"},
		{"empty", `{"repo": "", "title": "t"}`, "/repo", "empty"},
		{"escaped slash", `{"repo": "a%2fb", "title": "t"}`, "/repo", `'%' may not`},
		{"backslash", `{"repo": "a\\b", "title": "t"}`, "/repo", `may not stand in a path`},
		{"query in path", `{"repo": "a?b", "title": "t"}`, "/repo", `'?' may not`},
		{"fragment", `{"repo": "a#b", "title": "t"}`, "/repo", `'#' may not`},
		{"fullwidth slash", `{"repo": "a\uff0fb", "title": "t"}`, "/repo", `'\uff0f' may not`},
		{"one dot leader", `{"repo": "\u2024\u2024", "title": "t"}`, "/repo", "may not"},
		{"NUL", `{"repo": "a\u0000b", "title": "t"}`, "/repo", "may not"},
		{"line break", `{"repo": "r", "title": "a\r\nX-Injected: 1"}`, "/title", `'\r' may not stand in a query`},
		{"right to left", `{"repo": "r", "title": "a\u202eb"}`, "/title", `'\u202e' may not`},
		{"header", `{"repo": "r\r\nHost: evil", "title": "t"}`, "/repo", "may not"},
	} {
		s := u.session("")
		out := s.run(t, strings.NewReader(c.input))
		if len(out) != 1 || out[0].Outcome != action.Refused || out[0].Sent != action.SentNo || out[0].ExitStatus() != action.StatusRefused || s.asked != 0 {
			t.Errorf("%s: %+v, asked %d", c.name, out, s.asked)
			continue
		}
		text, placed := out[0].Why, c.pointer == ""
		for _, e := range out[0].Errors {
			text += "\n" + e.Pointer + ": " + e.Message
			placed = placed || e.Pointer == c.pointer
		}
		if !placed || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s; want %q at %q", c.name, text, c.want, c.pointer)
		}
	}
	if len(u.requests) != 0 {
		t.Errorf("sent: %q", u.requests)
	}
}

// A hundred megabytes are not read to their end.
func TestLargeInput(t *testing.T) {
	u := newUpstream(t)
	in := &counting{r: io.LimitReader(zeros{}, 100<<20)}
	out := u.session("").run(t, in)
	if out[0].Outcome != action.Refused || in.n > 1<<20 {
		t.Errorf("%+v after %d bytes", out[0], in.n)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte("0"), len(b))), nil }

type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func TestRejectedAnswers(t *testing.T) {
	head := func(status int, typ string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.Header().Set("Content-Type", typ); w.WriteHeader(status) }
	}
	body := func(text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { head(201, "application/json")(w); fmt.Fprint(w, text) }
	}
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter)
		want   string
	}{
		{"redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://169.254.169.254/")
			w.WriteHeader(307)
		}, "redirects"},
		{"status", head(500, "application/json"), "status 500"},
		{"type", head(201, "text/html"), "not JSON by its Content-Type"},
		{"no type", head(201, ""), "not JSON by its Content-Type"},
		{"not JSON", body("<html>"), "not JSON as it should be"},
		{"deep", body(strings.Repeat("[", 300)), "not JSON as it should be"},
		{"encoded", func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); body("x")(w) }, "encoded"},
		{"declared large", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1073741824")
			head(201, "application/json")(w)
		}, "would be larger"},
		{"large", func(w http.ResponseWriter) {
			head(201, "application/json")(w)
			for range 1000 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "larger than 2048 bytes"},
		{"broken off", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "100"); body(`{"number"`)(w) }, "broke off"},
		{"the credential", body(`{"number": "your token is ` + canary + `"}`), "repeats the credential at /number"},
		{"the credential escaped", body(`{"number": ["\u0043ANARY-s3cr3t-value"]}`), "repeats the credential"},
		{"the credential in base64", body(`{"number": {"Q0FOQVJZLXMzY3IzdC12YWx1ZQ==": 1}}`), "repeats the credential"},
		{"the credential within base64", body(`{"number": "` + base64.StdEncoding.EncodeToString([]byte("token="+canary+"; path")) + `"}`), "repeats the credential"},
		{"the credential in capital digits", body(`{"number": "` + strings.ToUpper(hex.EncodeToString([]byte(canary))) + `"}`), "repeats the credential"},
	} {
		u := newUpstream(t)
		u.answer = c.answer
		out := u.session("").run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))
		o := out[0]
		if o.Outcome != action.Rejected || o.Sent != action.SentYes || o.ExitStatus() != action.StatusRejected || o.Response != nil || !strings.Contains(o.Why, c.want) {
			t.Errorf("%s: %+v; want %q", c.name, o, c.want)
		}
		if len(u.requests) != 1 {
			t.Errorf("%s: %q", c.name, u.requests)
		}
	}
}

// An upstream that is not there, one that says nothing, and one that breaks off.
func TestFailures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	run := func(limit string) *action.Outcome {
		s := &session{job: action.Job{File: []byte(strings.Replace(actions(url, ""), "timeout: 60s", "timeout: "+limit, 1)), Name: "a.yaml"}}
		return s.run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))[0]
	}
	// Where this machine is slow, the time is over before anything was written.
	if o := run("200ms"); o.Outcome != action.Failed || o.Sent == action.SentYes || !strings.Contains(o.Why, "limits.timeout") || o.ExitStatus() != action.StatusFailed {
		t.Errorf("it stalls: %+v", o)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	}()
	if o := run("30s"); o.Outcome != action.Failed || o.Sent != action.SentUnknown {
		t.Errorf("it breaks off: %+v", o)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if o := run("30s"); o.Outcome != action.Failed || o.Sent != action.SentNo || !strings.Contains(o.Why, "refused") {
		t.Errorf("nobody is there: %+v", o)
	}
}

// What the library says of an answer that is no HTTP has a piece of it: not when that
// is the credential.
func TestNoHTTPRepeatsTheCredential(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\n", strings.Repeat("x", 250)+canary)
			_ = c.Close()
		}
	}()
	s := &session{job: action.Job{File: []byte(actions("http://"+l.Addr().String(), "")), Name: "a.yaml"}}
	o := s.run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))[0]
	if o.Outcome != action.Failed || !strings.Contains(o.Why, "repeats the credential") || strings.Contains(o.Why, canary[:4]) {
		t.Errorf("%+v", o)
	}
}

// An answer that begins and does not go on is cut by the time limit, wherever that
// finds it.
func TestStalledAnswer(t *testing.T) {
	u, stall := newUpstream(t), make(chan struct{})
	defer close(stall) // before the server waits for its handler
	u.answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"number"`)
		w.(http.Flusher).Flush()
		<-stall
	}
	s := u.session("")
	s.job.File = []byte(strings.Replace(string(s.job.File), "timeout: 60s", "timeout: 500ms", 1))
	o := s.run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))[0]
	if o.Outcome != action.Rejected && o.Outcome != action.Failed || !strings.Contains(o.Why, "limits.timeout") || o.Response != nil {
		t.Errorf("%+v", o)
	}
}

func TestLines(t *testing.T) {
	good, bad := `{"repo": "r", "title": "t"}`, `{"repo": "r"}`
	for _, c := range []struct {
		name, mode, input string
		refuse            string
		want              []string
		sent              int
	}{
		{"all", action.LinesAll, good + "\n\n" + good + "\n", "", []string{"1 done", "3 done"}, 2},
		{"all, one is wrong", action.LinesAll, good + "\n" + bad + "\n" + good, "", []string{"1 refused", "2 refused", "3 refused"}, 0},
		{"all, too many", action.LinesAll, strings.Repeat(good+"\n", 4), "", []string{"1 limited", "2 limited", "3 limited", "4 limited"}, 0},
		{"all, a limit", action.LinesAll, strings.Repeat(good+"\n", 2), "later", []string{"1 limited", "2 limited"}, 0},
		{"each", action.LinesEach, good + "\n" + bad + "\n" + good, "", []string{"1 done", "2 refused", "3 done"}, 2},
		{"each, a limit", action.LinesEach, bad + "\n" + good + "\n" + good, "later", []string{"1 refused", "2 limited"}, 0},
		{"each, a long line", action.LinesEach, strings.Repeat(" ", 200000) + good + "\n" + good, "", []string{"1 refused", "2 done"}, 1},
	} {
		u := newUpstream(t)
		s := u.session("")
		s.job.Lines, s.refuse = c.mode, c.refuse
		var got []string
		for _, o := range s.run(t, strings.NewReader(c.input)) {
			got = append(got, fmt.Sprint(o.Line, " ", o.Outcome))
		}
		if strings.Join(got, ", ") != strings.Join(c.want, ", ") || len(u.requests) != c.sent {
			t.Errorf("%s: %q, %d sent; want %q, %d", c.name, got, len(u.requests), c.want, c.sent)
		}
	}
}

func TestDryRun(t *testing.T) {
	u := newUpstream(t)
	s := u.session("")
	s.job.DryRun = true
	o := s.run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))[0]
	if o.Outcome != action.DryRun || o.Request == nil || s.asked != 0 || len(u.requests) != 0 {
		t.Fatalf("%+v", o)
	}
	got := o.Request.Method + " " + o.Request.URL + "\n" + strings.Join(o.Request.Headers, "\n") + "\n" + o.Request.Body
	want := "POST " + u.URL + `/repos/r/issues?title=t
Accept-Encoding: identity
Accept: application/json
Authorization: Bearer ***
Content-Type: application/json
User-Agent: agentguard
X-Title: about r
{"repo":"r","title":"t"}`
	if got != want {
		t.Errorf("%s", got)
	}
}

// A file that is wrong in its schema says so, with its place.
func TestWrongSchema(t *testing.T) {
	u := newUpstream(t)
	for old, new := range map[string]string{"maxItems: 2": "maxItem: 2", "minLength: 1": `pattern: "("`, "maximum: 10": "format: date", "type: integer": "type: int"} {
		s := u.session("")
		s.job.File = []byte(strings.Replace(string(s.job.File), old, new, 1))
		s.run(t, strings.NewReader("{}"))
		if !strings.HasPrefix(s.problem, "a.yaml:4:7: forge.open-issue.input: ") {
			t.Errorf("%s: %q", new, s.problem)
		}
	}
}
