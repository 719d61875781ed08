package action

import (
	"os"
	"strings"
	"testing"
	"time"
)

const oneBroker = `brokers:
  model:
    about: a model
    upstream: https://api.example.org
    allow:
      - POST /v1/messages?beta
      - GET,HEAD /v1/models/{id}?limit&after%5Bid%5D
    headers: {Api-Version: "2"}
    pass_headers: [x-version]
    show_headers: [X-Cost]
    credential: {file: /etc/key}
    auth: {scheme: header, header: X-Api-Key}
    destination: {allow_private: [10.1.0.0/16]}
    limits: {per_run: 5, request_bytes: 1M}
`

func TestBroker(t *testing.T) {
	f, err := Parse("b.yaml", []byte(oneBroker))
	if err != nil {
		t.Fatal(err)
	}
	b := f.FindBroker("model")
	if b == nil || f.FindBroker("other") != nil || len(f.Actions) != 0 {
		t.Fatalf("%+v", f)
	}
	if b.Origin() != "https://api.example.org:443" || b.Auth.Header != "X-Api-Key" || b.Credential.Name != "/etc/key" || b.Source.String() != "b.yaml:2:3" {
		t.Errorf("%+v", b)
	}
	if len(b.Routes) != 2 || b.Routes[0].String() != "POST /v1/messages?beta" || b.Routes[1].String() != "GET,HEAD /v1/models/{id}?limit&after%5Bid%5D" || b.Routes[1].Query[1] != "after[id]" {
		t.Errorf("%+v", b.Routes)
	}
	if b.Headers[0] != [2]string{"Api-Version", "2"} || b.Pass[0] != "X-Version" || b.Show[0] != "X-Cost" || len(b.Destination.AllowPrivate) != 1 {
		t.Errorf("%+v", b)
	}
	if b.Limits.PerRun != 5 || b.Limits.RequestBytes != 1<<20 || b.Limits.Timeout != 10*time.Minute {
		t.Errorf("%+v", b.Limits)
	}
}

// What is wrong with a broker is said with its place.
func TestWrongBrokers(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"  model:", "  Model:", `b.yaml:2:3: "Model" is not the name of a broker`},
		{"https://api.example.org", "http://api.example.org", "is not the origin of an https URL"},
		{"https://api.example.org", "https://api.example.org/v1", "is not the origin of an https URL"},
		{"https://api.example.org", "https://user@api.example.org", "no field, user or escape"},
		{"https://api.example.org", "https://127.1", "is not a host"},
		{"POST /v1/messages?beta", "POST v1/messages", "is no path"},
		{"POST /v1/messages?beta", "/v1/messages", "is no method and path"},
		{"POST /v1/messages?beta", "CONNECT /v1/messages", `the method "CONNECT" cannot be allowed`},
		{"POST /v1/messages?beta", "POST /v1/../keys", "not a path in its plain form"},
		{"POST /v1/messages?beta", "POST /v1//keys", "not a path in its plain form"},
		{"POST /v1/messages?beta", "POST /v1/%2e%2e/keys", "not a path in its plain form"},
		{"POST /v1/messages?beta", "POST /{rest...}/keys", "not a path in its plain form"},
		{"POST /v1/messages?beta", "POST /v1/messages?a=b", "is not the name of a parameter"},
		{"POST /v1/messages?beta", "POST /v1/messages?", "is not the name of a parameter"},
		{"{Api-Version: \"2\"}", "{Authorization: x}", "Authorization is not for an action to set"},
		{"{Api-Version: \"2\"}", "{X-A: \"{f}\"}", "has no property"},
		{"[x-version]", "[Cookie]", `"Cookie" is not a header that is let through`},
		{"[x-version]", "[X-Http-Method-Override]", "is not a header that is let through"},
		{"[x-version]", "[x-api-key]", "the header X-Api-Key is the credential's"},
		{"[X-Cost]", "[Set-Cookie]", "is not a header that is let through"},
		{"[X-Cost]", "[location]", "is not a header that is let through"},
		{"    credential: {file: /etc/key}\n", "", "the credential is missing"},
		{"{scheme: header, header: X-Api-Key}", "{scheme: query, name: key, unsafe: credential-in-url}", "the scheme query is not for a broker"},
		{"{scheme: header, header: X-Api-Key}", "{scheme: hmac-sha256, header: X-Sig}", "the scheme hmac-sha256 is not for a broker"},
		{"{allow_private: [10.1.0.0/16]}", "{plain_http: loopback}", "a broker speaks TLS"},
		{"per_run: 5", "per_run: none", "is not a number"},
		{"request_bytes: 1M", "request_bytes: 1G", "more than 16777216"},
		{"    about: a model", "    input: {}", "unknown key"},
	} {
		text := strings.Replace(oneBroker, c.old, c.new, 1)
		if text == oneBroker {
			t.Fatalf("no %q", c.old)
		}
		if _, err := Parse("b.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
}

// The brokers that are shipped as examples can be used as they are.
func TestShippedBrokers(t *testing.T) {
	src, err := os.ReadFile("../../docs/examples/brokers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse("brokers.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"openai", "anthropic", "github", "gitlab"} {
		if f.FindBroker(name) == nil {
			t.Errorf("no %s", name)
		}
	}
}
