package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// troubled is brokers whose upstreams are not what they should be; the
// credential of the second is a variable of the caller's.
const troubled = `brokers:
  moved:
    upstream: https://moved.example:8443
    allow: [GET /x]
    credential: {file: %[1]q}
    auth: {scheme: bearer}
    destination: {ca_file: %[2]q}
  other:
    upstream: https://other.example
    allow: [GET /x]
    credential: {env: MODEL_WORD}
    auth: {scheme: basic, user: u}
    destination: {ca_file: %[2]q}
  plain:
    upstream: https://plain.example
    allow: [GET /x]
    credential: {file: %[1]q}
    auth: {scheme: header, header: X-Key}
`

// An upstream whose name leads to the host itself, one with a certificate of
// another name, and one that speaks no TLS get no request.
func TestBrokerUpstreams(t *testing.T) {
	b := newBrokered(t)
	b.put(b.file, fmt.Sprintf(troubled, filepath.Join(filepath.Dir(b.file), "key"), filepath.Join(b.dir, "ca.pem")))
	b.approve()
	none := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { b.hit("request") })
	b.https("127.0.0.1:8443", none, "moved.example")
	b.https("203.0.113.12:443", none, "wrong.example")
	b.tcp("203.0.113.13:443")
	b.name("moved.example", "127.0.0.1")
	b.name("other.example", "203.0.113.12")
	b.name("plain.example", "203.0.113.13")
	t.Setenv("MODEL_WORD", brokerCanary)
	b.flags = []string{"--broker", "moved", "--broker", "other", "--broker", "plain", "--env", "MODEL_WORD"}
	out, res := b.start(`
import json, os, urllib.request, urllib.error
out = {"variable": os.environ.get("MODEL_WORD")}
for name in "moved", "other", "plain":
    try: out[name] = str(urllib.request.urlopen("http://%s.broker.internal/x" % name, timeout=60).status)
    except urllib.error.HTTPError as e: out[name] = json.load(e)["error"]["message"]
print(json.dumps(out))
`, nil)
	got := map[string]string{}
	line, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{
		"moved": "it resolves to private or special addresses only", "other": "certificate is not a valid one for other.example", "plain": "does not answer in HTTP over TLS", "variable": "",
	} {
		if !strings.Contains(got[name], want) || name == "variable" && got[name] != "" {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if n := b.hitsOf("request"); n != 0 {
		t.Errorf("%d requests", n)
	}
	b.inRecord(res, "deny connect moved.example:8443", "allow connect other.example:443")
	b.clean("the output", out)
	b.cleanBelow(b.state)
}

// A process of the brokers that ends before its run is told: the account is not whole.
func TestBrokerProcessEnds(t *testing.T) {
	b := newBrokered(t)
	out, res := b.start(`
import http.client, json
def get(path):
    c = http.client.HTTPConnection("model.broker.internal", timeout=60)
    try:
        c.request("POST", path, json.dumps({"stream": True}), {"Content-Type": "application/json"}); return c.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as e: return type(e).__name__
import threading
t = threading.Thread(target=lambda: print("stream", get("/v1/chat/completions"))); t.start()
c = http.client.HTTPConnection("model.broker.internal", timeout=60); c.request("GET", "/v1/models/continue")
try: c.getresponse().read()
except (OSError, http.client.HTTPException): pass # this answer too may come too late
t.join(); print("after", get("/v1/chat/completions"))
`, func(supervisor int) {
		if pid := b.brokerOf(supervisor); pid == 0 || unix.Kill(pid, unix.SIGKILL) != nil {
			t.Error("the process of the brokers was not ended")
		}
	})
	if !strings.Contains(out, "after Connection") && !strings.Contains(out, "after Remote") && !strings.Contains(out, "after BadStatus") {
		t.Errorf("%s", out)
	}
	findings := strings.Join(res.Record.Findings, "\n")
	if res.Record.Verdict == "complete" || !strings.Contains(findings, "the process of the brokers") {
		t.Errorf("%+v", res.Record)
	}
}

// A broker that is not there, a file that was not approved or has changed, a
// credential that others may read, an allowlist in the brokers' domain: nothing is run.
func TestBrokerRefusals(t *testing.T) {
	b := newBrokered(t)
	text, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(filepath.Dir(b.file), "key")
	for _, c := range []struct {
		name   string
		change func()
		flags  []string
		want   string
	}{
		{"unknown", func() {}, []string{"--broker", "other"}, `there is no broker "other"`},
		{"domain", func() {}, []string{"--allow", "x.broker.internal:443"}, "are those of brokers"},
		{"readable", func() { _ = os.Chmod(key, 0o644) }, nil, "its mode is 0644"},
		{"empty", func() { _ = os.Chmod(key, 0o600); b.put(key, "\n") }, nil, "it is empty"},
		{"short", func() { b.put(key, "abc") }, nil, "has less than 8"},
		{"missing", func() { _ = os.Remove(key) }, nil, "no such file"},
		{"changed", func() { b.put(b.file, string(text)+"\n") }, nil, "has changed since it was approved"},
	} {
		c.change()
		b.flags = append([]string{"--broker", "model"}, c.flags...)
		out, status := b.refused()
		if status != 125 || !strings.Contains(out, c.want) {
			t.Errorf("%s: status %d, %s", c.name, status, out)
		}
		b.clean("the message", out)
	}
	if n := len(b.model.paths); n != 0 {
		t.Errorf("the upstream was asked %d times", n)
	}
}
