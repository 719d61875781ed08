package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/broker"
)

// What is not sent, and by which clause.
func TestRefused(t *testing.T) {
	r := newRig(t, ok, func(e *broker.Endpoint) { e.MaxRequest = 100 })
	for name, c := range map[string]struct {
		request string
		status  int
		clause  string
	}{
		"another path":          {get("/v1/keys"), 403, "allow"},
		"the path's parent":     {get("/v1/models"), 403, "allow"},
		"an empty field":        {get("/v1/models/"), 403, "allow"},
		"a path below":          {get("/v1/models/a/b"), 403, "allow"},
		"another method":        {get("/v1/chat/completions"), 405, "allow"},
		"DELETE":                {"DELETE /v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 405, "allow"},
		"TRACE":                 {"TRACE /v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 405, "allow"},
		"a small method":        {"get /v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 405, "allow"},
		"dots":                  {get("/files/../v1/keys"), 400, "http"},
		"escaped dots":          {get("/files/%2e%2e/v1/keys"), 400, "http"},
		"half escaped dots":     {get("/files/.%2E/v1/keys"), 400, "http"},
		"a dot":                 {get("/files/./x"), 400, "http"},
		"dots and a blank":      {get("/files/..%20/x"), 400, "http"},
		"dots with a parameter": {get("/files/..;a=b/v1/keys"), 400, "http"},
		"a parameter":           {get("/files/x;a=b"), 400, "http"},
		"an escaped parameter":  {get("/files/x%3ba=b"), 400, "http"},
		"two slashes":           {get("//v1/models/x"), 400, "http"},
		"two slashes inside":    {get("/files//x"), 400, "http"},
		"an escaped slash":      {get("/files/..%2fv1"), 400, "http"},
		"an escaped back slash": {get("/files/..%5cv1"), 400, "http"},
		"escaped twice":         {get("/files/%252e%252e/x"), 400, "http"},
		"an escaped NUL":        {get("/files/x%00"), 400, "http"},
		"an escaped line":       {get("/files/x%0d%0aX: y"), 400, ""},
		"not UTF-8":             {get("/files/%ff%fe"), 400, "http"},
		"half an escape":        {get("/files/%2"), 400, ""},
		"a fragment":            {get("/files/x#y"), 400, "http"},
		"a question escaped":    {get("/files/x%3fy"), 400, "http"},
		"bytes beyond ASCII":    {get("/files/\xc3\xbc"), 400, "http"},
		"a query":               {get("/v1/models/x?a=b"), 403, "allow"},
		"an empty name":         {post("/v1/chat/completions?beta=1&", "{}"), 403, "allow"},
		"another parameter":     {post("/v1/chat/completions?beta=1&key=2", "{}"), 403, "allow"},
		"a semicolon":           {post("/v1/chat/completions?beta=1;key=2", "{}"), 403, "allow"},
		"absolute form":         {"GET http://" + inside + "/v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 400, "http"},
		"absolute, another":     {"GET http://evil.example/v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 400, "http"},
		"CONNECT":               {"CONNECT example.com:443 HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 400, "http"},
		"CONNECT with a path":   {"CONNECT /v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 400, "http"},
		"OPTIONS *":             {"OPTIONS * HTTP/1.1\r\nHost: " + inside + "\r\n\r\n", 400, "http"},
		"another host":          {"GET /v1/models/x HTTP/1.1\r\nHost: example.com\r\n\r\n", 421, "http"},
		"another broker":        {"GET /v1/models/x HTTP/1.1\r\nHost: other.broker.internal\r\n\r\n", 421, "http"},
		"another port":          {"GET /v1/models/x HTTP/1.1\r\nHost: " + inside + ":8080\r\n\r\n", 421, "http"},
		"a user in the host":    {"GET /v1/models/x HTTP/1.1\r\nHost: a@" + inside + "\r\n\r\n", 400, ""},
		"no host":               {"GET /v1/models/x HTTP/1.1\r\n\r\n", 400, ""},
		"no host, 1.0":          {"GET /v1/models/x HTTP/1.0\r\n\r\n", 421, "http"},
		"two hosts":             {"GET /v1/models/x HTTP/1.1\r\nHost: " + inside + "\r\nHost: evil.example\r\n\r\n", 400, ""},
		"websocket":             {get("/v1/models/x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400, "http"},
		"h2c":                   {get("/v1/models/x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"), 400, "http"},
		"HTTP/2 at once":        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", 505, "http"},
		"length and chunks":     {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/keys HTTP/1.1\r\nHost: x\r\n\r\n", 411, "http"},
		"chunks":                {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411, "http"},
		"chunks, obfuscated":    {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 5\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, ""},
		"chunks, twice":         {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, ""},
		"a blank before :":      {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length : 5\r\n\r\n12345", 400, ""},
		"two lengths":           {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400, ""},
		"a signed length":       {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: +2\r\n\r\n{}", 400, ""},
		"a list of lengths":     {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 2, 2\r\n\r\n{}", 400, ""},
		"a body too long":       {post("/v1/chat/completions", strings.Repeat("x", 101)), 413, "limits.request_bytes"},
		"a body that is packed": {post("/v1/chat/completions", "{}", "Content-Encoding: gzip"), 415, "http"},
		"many headers":          {get("/v1/models/x", strings.Split(strings.Repeat("A: b\n", 200)+"A: b", "\n")...), 431, "http"},
		"a flood of headers":    {get("/v1/models/x", "X-Version: "+strings.Repeat("a", 64<<10)), 431, ""},
		"a line that is long":   {get("/files/" + strings.Repeat("a", 3000)), 400, "http"},
		"half a body":           {"POST /v1/chat/completions HTTP/1.1\r\nHost: " + inside + "\r\nContent-Length: 9\r\n\r\n{}", 400, "http"},
	} {
		conn := r.conn().(*net.TCPConn)
		go func() {
			_, _ = io.WriteString(conn, c.request)
			if name == "half a body" {
				_ = conn.CloseWrite()
			}
		}()
		b, _ := io.ReadAll(conn) // a reset after the answer is no matter
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(b))), nil)
		if err != nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v, %.80q, want %d", name, err, b, c.status)
			continue
		}
		if strings.Contains(string(b[1:]), "\nHTTP/1.") {
			t.Errorf("%s: more than one answer: %q", name, b)
		}
		if c.clause != "" && !strings.Contains(string(b), `"code":"`+c.clause+`"`) {
			t.Errorf("%s: %q does not name %s", name, b, c.clause)
		}
	}
	if n := r.requests(); n != 0 {
		t.Errorf("%d requests were sent: %v", n, r.seen[0].RequestURI)
	}
	r.waitEvent(func(e broker.Event) bool {
		return e.Kind == broker.KindRefused && e.Clause == "allow" && e.Path == "/v1/models/x" && e.Status == 403
	})
}
