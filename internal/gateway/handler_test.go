package gateway

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/broker"
)

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"ok":true}`) }

func TestCallHasTheCredentialAndNothingOfTheCommands(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Set-Cookie", "a=b")
		h.Set("WWW-Authenticate", `Bearer realm="x"`)
		h.Set("Location", "/elsewhere")
		h.Set("Server", "secret-version")
		h.Set("X-Request-Id", "r1")
		h.Set("X-Ratelimit-Remaining", "7")
		h.Set("X-Ratelimit-Key", "for "+canary)
		h.Set("Content-Type", "application/json")
		h.Set("Connection", "X-Secret")
		ok(w, nil)
	}, func(e *broker.Endpoint) { e.SetHeaders = [][2]string{{"Api-Version", "2"}} })
	resp, body, err := r.ask(post("/v1/chat/completions?beta=1", `{"a":1}`, "Authorization: Bearer mine", "Cookie: c=1", "Proxy-Authorization: x",
		"X-Api-Key: mine", "X-Forwarded-For: 10.0.0.1", "Connection: keep-alive, X-Version", "X-Version: 3", "Accept-Encoding: gzip", "Forwarded: for=x"))
	if err != nil || resp.StatusCode != 200 || body != `{"ok":true}` {
		t.Fatalf("%v %v %q", err, resp.Status, body)
	}
	for _, name := range []string{"Set-Cookie", "Www-Authenticate", "Location", "Server", "X-Ratelimit-Key", "Connection"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("the answer has %s: %q", name, resp.Header.Get(name))
		}
	}
	if resp.Header.Get("X-Request-Id") != "r1" || resp.Header.Get("X-Ratelimit-Remaining") != "7" || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", resp.Header)
	}
	seen := r.seen[0]
	want := map[string]string{
		"Authorization": "Bearer " + canary, "Cookie": "", "Proxy-Authorization": "", "X-Api-Key": "", "X-Forwarded-For": "", "Forwarded": "", "X-Version": "3",
		"Accept-Encoding": "identity", "Api-Version": "2", "Content-Type": "application/json", "User-Agent": "agentguard",
	}
	for name, value := range want {
		if got := strings.Join(seen.Header.Values(name), ","); got != value {
			t.Errorf("upstream: %s: %q, want %q", name, got, value)
		}
	}
	if seen.Host != "example.com" || seen.RequestURI != "/v1/chat/completions?beta=1" || r.bodies[0] != `{"a":1}` || seen.TLS == nil {
		t.Errorf("upstream: %q %q %q", seen.Host, seen.RequestURI, r.bodies[0])
	}
	e := r.waitEvent(func(e broker.Event) bool { return e.Kind == broker.KindCall })
	if e.Path != "/v1/chat/completions" || e.Method != "POST" || e.Status != 200 || e.Sent != 7 || e.Received != 11 || e.Hidden != 1 || e.Duration <= 0 {
		t.Errorf("event %+v", e)
	}
}

// A path is sent on in one form, and the route is what the record has.
func TestPaths(t *testing.T) {
	r := newRig(t, ok, nil)
	for asked, sent := range map[string]string{
		"/v1/models/gpt-4.1:latest": "/v1/models/gpt-4.1:latest",
		"/v1/models/a%20b":          "/v1/models/a%20b",
		"/v1/models/%61":            "/v1/models/a",
		"/v1/models/%C3%BC":         "/v1/models/%C3%BC",
		"/files/a/b/":               "/files/a/b/",
		"/files/..a":                "/files/..a",
	} {
		resp, _, err := r.ask(get(asked))
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v %v", asked, resp.Status, err)
			continue
		}
		if got := r.seen[len(r.seen)-1].RequestURI; got != sent {
			t.Errorf("%s was sent as %s, want %s", asked, got, sent)
		}
	}
	r.waitEvent(func(e broker.Event) bool { return e.Path == "/files/{rest...}" })
}

// Requests that come together are judged one by one.
func TestPipelining(t *testing.T) {
	r := newRig(t, ok, nil)
	c := r.conn()
	go func() {
		_, _ = io.WriteString(c, get("/v1/models/a")+post("/v1/chat/completions", "{}")+get("/v1/keys")+get("/v1/models/b"))
	}()
	b, _ := io.ReadAll(c)
	if got := string(b); strings.Count(got, "HTTP/1.1 200 OK") != 2 || strings.Count(got, "HTTP/1.1 403") != 1 || strings.Count(got, "HTTP/1.1 ") != 3 {
		t.Errorf("%s", got)
	}
	if n := r.requests(); n != 2 { // what follows a refusal is not read
		t.Errorf("%d requests were sent", n)
	}
}

// An upstream that does not read the body of a GET would take it, and then the head of the next
// request with the credential in it, for a request of the command's making.
func TestBodyOfGetIsNoRequest(t *testing.T) {
	r := newRig(t, ok, nil)
	smuggled := "POST /v1/keys HTTP/1.1\r\nHost: h\r\nX: "
	for _, q := range []string{get("/v1/models/a", "Content-Length: "+strconv.Itoa(len(smuggled))) + smuggled, get("/v1/models/b")} {
		if resp, _, _ := r.ask(q); resp.StatusCode != 200 {
			t.Fatalf("%q: %d", q, resp.StatusCode)
		}
	}
	if at := r.seen[0].RemoteAddr; at == r.seen[1].RemoteAddr {
		t.Errorf("both came by the connection of %s: nothing may follow such a body", at)
	}
}

func TestLimitsOfCalls(t *testing.T) {
	r := newRig(t, ok, func(e *broker.Endpoint) { e.MaxCalls = 2 })
	for i, want := range []int{200, 200, 429, 429} {
		resp, body, _ := r.ask(get("/v1/models/a"))
		if resp.StatusCode != want || want == 429 && !strings.Contains(body, "limits.per_run") {
			t.Errorf("call %d: %d %s", i, resp.StatusCode, body)
		}
	}
	r = newRig(t, ok, func(e *broker.Endpoint) { e.MaxPerMin = 1 })
	_, _, _ = r.ask(get("/v1/models/a"))
	if resp, body, _ := r.ask(get("/v1/models/a")); resp.StatusCode != 429 || !strings.Contains(body, "limits.per_minute") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if r.requests() != 1 {
		t.Errorf("%d were sent", r.requests())
	}
}

// Events come as the upstream sends them.
func TestStreaming(t *testing.T) {
	next := make(chan string)
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for s := range next {
			_, _ = io.WriteString(w, s)
			w.(http.Flusher).Flush()
		}
	}, nil)
	c := r.conn()
	go func() { _, _ = io.WriteString(c, post("/v1/chat/completions", "{}")) }()
	var in *bufio.Reader
	for i := range 5 {
		event := fmt.Sprintf("data: {\"n\":%d}\n\n", i)
		next <- event
		if in == nil {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%v %v", err, resp)
			}
			in = bufio.NewReader(resp.Body)
		}
		got := make([]byte, len(event))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != event { // before the next is sent
			t.Fatalf("%v %q", err, got)
		}
	}
	close(next)
	if b, err := io.ReadAll(in); err != nil || len(b) != 0 {
		t.Errorf("%v %q", err, b)
	}
}

// Answers that are not passed on.
func TestAnswersRefused(t *testing.T) {
	for name, c := range map[string]struct {
		upstream http.HandlerFunc
		status   int
		text     string
	}{
		"a redirect": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "https://evil.example/?k="+canary, http.StatusFound)
		}, 502, "redirects (302)"},
		"a lasting redirect": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "/other", http.StatusPermanentRedirect)
		}, 502, "redirects (308)"},
		"no credential": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Incorrect key: sk-canary-****haQ", http.StatusUnauthorized)
		}, 401, "does not accept the credential"},
		"a proxy's": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusProxyAuthRequired) }, 407, "does not accept the credential"},
		"packed": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			ok(w, nil)
		}, 502, "encoded"},
		"too long": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1073741824") }, 502, "more than"},
		"an upgrade": {func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		}, 502, "protocol"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) { hijack(w, "SSH-2.0-x\r\n") }, 502, "does not answer in HTTP"},
		"split": {func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: a\r\n X-Evil: b\r\nContent-Length: 0\r\n\r\n")
		}, 0, ""},
		"a flood of headers": {func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\n"+strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 200)+"\r\n")
		}, 502, "does not answer in HTTP"},
		"two lengths": {func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc")
		}, 502, "does not answer in HTTP"},
	} {
		r := newRig(t, c.upstream, nil)
		resp, body, _ := r.ask(post("/v1/chat/completions", "{}"))
		if c.status != 0 && (resp.StatusCode != c.status || !strings.Contains(body, c.text)) {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
		if resp.Header.Get("Location") != "" || resp.Header.Get("X-Evil") != "" || strings.Contains(body, "sk-canary") {
			t.Errorf("%s: %v %s", name, resp.Header, body)
		}
	}
}

func hijack(w http.ResponseWriter, s string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_, _ = io.WriteString(c, s)
		c.Close()
	}
}

// An answer without an end is cut off so that it can be seen.
func TestAnswerWithoutEnd(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		for range 16 << 10 { // 1 GiB
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}, nil)
	_, body, err := r.ask(get("/v1/models/a"))
	if err == nil || len(body) > 1<<20 {
		t.Errorf("%v, %d bytes", err, len(body))
	}
	e := r.waitEvent(func(e broker.Event) bool { return e.Kind == broker.KindCall })
	if e.Clause != "limits.response_bytes" || e.Received > 2<<20 {
		t.Errorf("%+v", e)
	}
}

// An upstream that stalls, before or within its answer.
func TestStall(t *testing.T) {
	for _, first := range []string{"", "data: x\n\n"} {
		limit := 300 * time.Millisecond
		for !stall(t, first, limit) {
			if limit *= 4; limit > plenty {
				t.Fatalf("%q: never there in time", first)
			}
		}
	}
}

// stall reports whether a slow machine had the time for what comes before the stall.
func stall(t *testing.T, first string, limit time.Duration) bool {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		if first != "" {
			_, _ = io.WriteString(w, first)
			w.(http.Flusher).Flush()
		}
		<-q.Context().Done() // the gateway gives up
	}, func(e *broker.Endpoint) { e.Timeout = limit })
	got := r.raw(get("/v1/models/a", "Connection: close"))
	r.waitEvent(func(e broker.Event) bool { return e.Clause == "limits.timeout" })
	if first != "" && !strings.Contains(got, first) {
		return false
	}
	if first == "" && (!strings.HasPrefix(got, "HTTP/1.1 504 ") || !strings.Contains(got, "limits.timeout")) ||
		first != "" && (!strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, first+"\r\n")) { // without the last chunk
		t.Errorf("%q: %q", first, got)
	}
	return true
}

// A command that sends its requests a byte at a time has a connection, until its
// time is up, and nothing more.
func TestSlowRequests(t *testing.T) {
	r := newRig(t, ok, nil)
	r.server.fronts[inside].http.ReadHeaderTimeout = 50 * time.Millisecond
	r.server.gateways[0].bodyLimit = 50 * time.Millisecond
	for _, start := range []string{"GET /v1/models/a HTTP/1.1\r\nHost: ", "POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 9\r\n\r\n{"} {
		if got := r.raw(start); got != "" && !strings.HasPrefix(got, "HTTP/1.1 40") {
			t.Errorf("%q", got)
		}
	}
	if r.requests() != 0 {
		t.Error("one was sent")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	r := newRig(t, ok, nil)
	var open []net.Conn
	for range maxConnections {
		open = append(open, r.conn())
	}
	if got := r.raw(get("/v1/models/a")); got != "" {
		t.Errorf("one more was served: %q", got)
	}
	for _, c := range open {
		c.Close()
	}
	for end := time.Now().Add(plenty); len(r.server.slots) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if resp, _, err := r.ask(get("/v1/models/a")); err != nil || resp.StatusCode != 200 {
		t.Errorf("after they were closed: %v %v", resp, err)
	}
}

// The upstream must be who its name says, and speak TLS.
func TestUpstreamIsAuthenticated(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(ok))
	defer plain.Close()
	r := newRig(t, ok, func(e *broker.Endpoint) { e.Host = "api.example.net" })
	resp, body, _ := r.ask(get("/v1/models/a"))
	if resp.StatusCode != 502 || !strings.Contains(body, "certificate is not a valid one for api.example.net") {
		t.Errorf("another name: %d %s", resp.StatusCode, body)
	}
	r = newRig(t, ok, func(e *broker.Endpoint) { e.RootsPEM = nil })
	if resp, body, _ = r.ask(get("/v1/models/a")); resp.StatusCode != 502 || !strings.Contains(body, "certificate") {
		t.Errorf("an unknown authority: %d %s", resp.StatusCode, body)
	}
	if r.requests() != 0 {
		t.Error("it had a request")
	}
	for name, dial := range map[string]dialFunc{
		"no TLS": func(context.Context, *broker.Endpoint) (net.Conn, error) {
			return net.Dial("tcp", plain.Listener.Addr().String())
		},
		"refused": func(context.Context, *broker.Endpoint) (net.Conn, error) {
			return nil, &DialError{"it resolves to private addresses"}
		},
		"broken": func(context.Context, *broker.Endpoint) (net.Conn, error) { return nil, errors.New("x") },
	} {
		r := &rig{t: t, endpoint: r.endpoint}
		r.start(dial)
		if resp, body, _ := r.ask(get("/v1/models/a")); resp.StatusCode != 502 || name == "refused" && !strings.Contains(body, "private") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
}

// An answer that holds the credential in one of its forms, wherever it is cut
// into pieces.
func TestEcho(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		text := "all: " + q.Header.Get("Authorization") + " " + base64.StdEncoding.EncodeToString([]byte("x:"+canary+"!")) + " end"
		for i := range len(text) {
			_, _ = io.WriteString(w, text[i:i+1])
			w.(http.Flusher).Flush()
		}
	}, nil)
	_, body, err := r.ask(get("/v1/models/a"))
	if err != nil || strings.Contains(body, canary[3:12]) || !strings.HasPrefix(body, "all: **") || !strings.HasSuffix(body, " end") {
		t.Errorf("%v %q", err, body)
	}
	if e := r.waitEvent(func(e broker.Event) bool { return e.Kind == broker.KindCall }); e.Hidden < 2 {
		t.Errorf("%+v", e)
	}
}

// At the end of a run its calls are broken off and told.
func TestEnd(t *testing.T) {
	started := make(chan struct{})
	r := newRig(t, func(_ http.ResponseWriter, q *http.Request) {
		close(started)
		<-q.Context().Done()
	}, nil)
	c := r.conn()
	go func() { _, _ = io.WriteString(c, get("/v1/models/a")) }()
	<-started
	r.server.end()
	r.waitEvent(func(e broker.Event) bool { return e.Kind == broker.KindCall && e.Path == "/v1/models/{id}" })
	if e := r.waitEvent(func(e broker.Event) bool { return e.Kind == broker.KindUsage }); e.Count != 1 || e.Refused != 0 {
		t.Errorf("%+v", e)
	}
}
