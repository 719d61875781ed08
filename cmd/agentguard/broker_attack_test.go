package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// brokerAttempts is what a hostile program tries with a broker and nothing else.
const brokerAttempts = `
import json, os, socket
host = "model.broker.internal"
out = {}
def note(key, f):
    try: out[key] = f()
    except socket.gaierror: out[key] = "no name"
    except OSError as e: out[key] = e.errno or "timeout"
def name(h): return socket.getaddrinfo(h, 0, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
here = name(host)
def tcp(h, p):
    s = socket.create_connection((h, p), 60); s.close(); return "connected"
def raw(text, to=here):
    s = socket.create_connection((to, 80), 60); s.sendall(text.encode()); got = b""
    while True:
        try: b = s.recv(65536)
        except ConnectionResetError: break
        if not b: break
        got += b
    return got.decode("latin1")
def get(path, h=host, method="GET", more="", body=""):
    return raw("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n%s" % (method, path, h, more, body))
def status(answer): return answer.split(" ")[1] if answer else "closed"
answers = {}
def http(key, *a, **k):
    def f():
        answers[key] = get(*a, **k); return status(answers[key])
    note(key, f)

http("allowed", "/v1/models/m")
http("echo", "/v1/models/echo")
http("denied", "/v1/models/denied")
http("redirect", "/v1/models/redirect")
http("another path", "/v1/keys")
http("dots", "/v1/models/../keys")
http("escaped dots", "/v1/models/%2e%2e/keys")
http("another method", "/v1/models/m", method="DELETE")
http("query", "/v1/models/m?a=b")
http("another Host", "/v1/models/m", h="api.model.example")
http("another broker", "/v1/models/m", h="other.broker.internal")
http("absolute", "http://203.0.113.11/v1/models/m")
http("connect", "203.0.113.11:443", method="CONNECT")
http("websocket", "/v1/models/m", more="Upgrade: websocket\r\nConnection: Upgrade\r\n")
http("length and chunks", "/v1/chat/completions", method="POST", more="Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", body="0\r\n\r\nGET /v1/keys HTTP/1.1\r\n\r\n")
note("http/2", lambda: status(raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
note("a broker not granted", lambda: tcp("other.broker.internal", 80))
note("below it", lambda: tcp("x." + host, 80))
note("port 443 of it", lambda: tcp(here, 443))
note("port 8080 of it", lambda: tcp(here, 8080))
note("the upstream by name", lambda: tcp("api.model.example", 443))
note("the upstream by address", lambda: tcp("203.0.113.10", 443))
note("another", lambda: tcp("203.0.113.11", 443))
note("metadata", lambda: tcp("169.254.169.254", 80))
note("a neighbour", lambda: tcp("198.18.0.17", 80))
def flood():
    last = ""
    for i in range(30): last = status(get("/v1/models/m"))
    return last
note("over the limit", flood)
found = []
for d in os.listdir("/proc"):
    if d.isdigit():
        try: found.append(open("/proc/%s/cmdline" % d).read())
        except OSError: pass
out["processes"] = sum("broker" in c for c in found)
print(json.dumps(out)); print("ANSWERS", json.dumps(answers))
`

// A run with a broker and no allowlist opens that, and nothing else.
func TestBrokerAttempts(t *testing.T) {
	b := newBrokered(t)
	out, res := b.start(brokerAttempts, nil)
	got := map[string]any{}
	line, rest, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := map[string]string{
		"allowed": "200", "echo": "200", "denied": "401", "redirect": "502", "another path": "403", "dots": "400", "escaped dots": "400", "another method": "405",
		"query": "403", "another Host": "421", "another broker": "421", "absolute": "400", "connect": "400", "websocket": "400", "length and chunks": "411", "http/2": "505",
		"a broker not granted": "no name", "below it": "no name", "the upstream by name": "no name", "over the limit": "429", "processes": "0",
		"port 443 of it": "1", "port 8080 of it": "1", "the upstream by address": "1", "another": "1", "metadata": "1", "a neighbour": "1",
	}
	for key, value := range want {
		if fmt.Sprint(got[key]) != value {
			t.Errorf("%s: %v, want %s", key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d attempts, want %d", len(got), len(want))
	}
	b.clean("what the command was told", rest)
	for _, name := range []string{"Set-Cookie", "WWW-Authenticate", "Location"} {
		if strings.Contains(strings.ToLower(rest), strings.ToLower(name)+":") {
			t.Errorf("the command was told %s: %s", name, rest)
		}
	}
	for _, at := range []string{"203.0.113.10:80", "203.0.113.11:443", "203.0.113.11:80", "169.254.169.254:80"} {
		if n := b.hitsOf("tcp " + at); n > 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
	if len(b.model.paths) != 20 || b.model.auth["Bearer "+brokerCanary] != 20 {
		t.Errorf("the upstream was asked %d times: %v", len(b.model.paths), b.model.paths)
	}
	for _, p := range b.model.paths {
		if !strings.HasPrefix(p, "GET /v1/models/") || strings.Count(p, "/") != 3 {
			t.Errorf("the upstream was asked for %s", p)
		}
	}
	use := res.Brokers
	if len(use) != 1 || use[0].Calls != 20 || use[0].Refused < 20 || res.Record.Verdict != "complete" {
		t.Errorf("%+v %+v", use, res.Record)
	}
	if denied(res, "brokers.model.allow") < 5 || denied(res, "brokers.model.limits.per_run") < 10 || denied(res, "network.broker") < 5 {
		t.Errorf("%+v", res.Denials.First)
	}
	b.cleanBelow(b.state)
}
