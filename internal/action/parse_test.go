package action

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

const good = `actions:
  forge.open-issue:
    about: Open an issue
    input:
      type: object
      additionalProperties: false
      required: [owner, repo, title]
      properties:
        owner: {type: string}
        repo: {type: string, maxLength: 100}
        title: {type: string}
        body: {type: string}
        draft: {type: boolean}
    request:
      method: POST
      url: "https://forge.example.org/api/v1/repos/{owner}/{repo}/issues?via=agentguard&who={owner}"
      headers: {X-Trace: "{title}"}
      body: {title: "{title}", body: "{body}", note: "by {owner}", list: [1, true, null]}
    credential: {file: /etc/agentguard/credentials/forge}
    auth: {scheme: bearer}
    destination: {allow_private: [10.1.0.0/16]}
    limits: {request_bytes: 64K, response_bytes: 1M, timeout: 10, per_run: 3, per_minute: 6}
    response: {status: [201], fields: [/number, /html_url]}
`

func TestParse(t *testing.T) {
	f, err := Parse("a.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	a := f.Find("forge.open-issue")
	if a == nil || f.Find("other") != nil {
		t.Fatal("the action is not found")
	}
	if a.URL.Origin() != "https://forge.example.org:443" || len(a.URL.Segments) != 6 || a.URL.Segments[3][0].Field != "owner" || a.URL.Segments[3][0].Type != "string" {
		t.Errorf("%+v", a.URL)
	}
	if a.Limits.RequestBytes != 64<<10 || a.Limits.Timeout.Seconds() != 10 || a.Limits.PerRun != 3 {
		t.Errorf("%+v", a.Limits)
	}
	if a.Body.Kind != BodyMapped || a.Auth.Header != "Authorization" || a.Credential.ID() != "file:/etc/agentguard/credentials/forge" {
		t.Errorf("%+v %+v %+v", a.Body, a.Auth, a.Credential)
	}
	if want := `{"type":"object","additionalProperties":false,"required":["owner","repo","title"]`; !strings.HasPrefix(string(a.Input), want) {
		t.Errorf("%s", a.Input)
	}
}

// Each case replaces a piece of the good file; the error names the place.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"https://forge.example.org/", "https://{owner}.example.org/", `a.yaml:16:12: forge.open-issue.request.url: "{owner}.example.org": no field, user or escape`},
		{"https://forge.example.org/", "{owner}://forge.example.org/", "is not an https URL"},
		{"https://forge.example.org/", "https://forge.example.org:{owner}/", "no field, user or escape"},
		{"https://forge.example.org/", "https://user@forge.example.org/", "no field, user or escape"},
		{"https://forge.example.org/", "http://forge.example.org/", "over plain http"},
		{"https://forge.example.org/", "https://127.1/", "is not a host"},
		{"https://forge.example.org/", "https://0x7f000001/", "is not a host"},
		{"https://forge.example.org/", "https://2130706433/", "is not a host"},
		{"https://forge.example.org/", "https://fórge.example.org/", "is not a host"},
		{"https://forge.example.org/", "https://forge.example.org:0/", "has no valid port"},
		{"https://forge.example.org/", "https://::1/", "is not a host"},
		{"https://forge.example.org/api/", "https://forge.example.org/../", "a segment of dots"},
		{"https://forge.example.org/api/", "https://forge.example.org/%2E%2e/", "a segment of dots"},
		{"https://forge.example.org/api/", "https://forge.example.org/a b/", "may not stand there"},
		{"https://forge.example.org/api/", `https://forge.example.org/%2{repo}/`, "may not stand there"},
		{"?via=agentguard", "?{owner}=1", "is not a name of a query"},
		{"?via=agentguard", "#{owner}", "a fragment"},
		{"/{repo}/", "/{body}/", `"body" must be one text, whole number or truth value that is always there`},
		{"/{repo}/", "/{nothing}/", `no property "nothing"`},
		{"/{repo}/", "/{repo/", "begins no field"},
		{"X-Trace:", "Host:", "Host is not for an action to set"},
		{"X-Trace:", "authorization:", "Authorization is not for an action to set"},
		{"X-Trace:", "Proxy-X:", "Proxy-X is not for an action to set"},
		{"X-Trace:", "\"X Trace\":", "is not the name of a header"},
		{`X-Trace: "{title}"`, `X-Trace: "a\nb"`, "printable ASCII"},
		{`note: "by {owner}"`, `note: "by {body}"`, `"body" is no text`},
		{"scheme: bearer", "scheme: query, name: key", "ends in the logs"},
		{"scheme: bearer", "scheme: bearer, user: x", "user is not for the scheme"},
		{"scheme: bearer", "scheme: basic", "the scheme basic needs user"},
		{"scheme: bearer", "scheme: magic", `unknown word "magic"`},
		{"file: /etc/agentguard/credentials/forge", "file: forge", "an absolute path"},
		{"{file: /etc/agentguard/credentials/forge}", "{file: /a, env: B}", "name one source"},
		{"{file: /etc/agentguard/credentials/forge}", "{command: [pass]}", "begins with an absolute path"},
		{"{file: /etc/agentguard/credentials/forge}", "{keyring: \"logon:x\"}", "gives a logon key to nobody"},
		{"timeout: 10", "timeout: none", "is not a duration"},
		{"timeout: 10", "timeout: 1h", "more than 10m0s"},
		{"response_bytes: 1M", "response_bytes: 1G", "more than 67108864"},
		{"status: [201]", "status: [302]", "redirects are never followed"},
		{"/number", "number", "is not a JSON Pointer"},
		{"additionalProperties: false", "$ref: \"https://evil.example/s\"", "must lead to $defs"},
		{"method: POST", "method: CONNECT", `unknown word "CONNECT"`},
		{"method: POST", "method: GET", "has no body"},
		{"10.1.0.0/16", "10.1.2.3/16", "allow_private"},
		{"  forge.open-issue:", "  none:", `"none" is not the name of an action`}, // to ask for it would be to ask for nothing
		{"about: Open an issue", "abuot: Open an issue", `unknown key "abuot" (did you mean "about"?)`},
		{"about: Open an issue", "about: &x Open an issue", "anchors (&) are not allowed"},
		{"about: Open an issue", "about: a\n    about: b", "duplicate key"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Errorf("%q is not in the file", c.old)
		}
		_, err := Parse("a.yaml", []byte(text))
		var errs policy.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.new, err, c.want)
			continue
		}
		if errs[0].Source.Line == 0 || errs[0].Source.Col == 0 {
			t.Errorf("%s: no place: %v", c.new, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Parse("f.yaml", b)
		if err == nil && len(file.Actions) > MaxActions {
			t.Error("too many")
		}
	})
}

// The example of the documentation is a file of actions.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/dispatch.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(doc), "forge.yaml <<'END'\n")
	text, _, _ = strings.Cut(text, "\nEND\n")
	f, err := Parse("forge.yaml", []byte(text+"\n"))
	if !ok || err != nil || f.Find("forge.open-issue") == nil {
		t.Errorf("%v %v", ok, err)
	}
}

func TestDispatchPermits(t *testing.T) {
	f, err := Parse("a.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	d := f.Actions[0].Destination
	for _, c := range []struct {
		host, addr string
		want       bool
	}{
		{"forge.example.org", "10.1.2.3", true},
		{"forge.example.org", "10.2.2.3", false},
		{"forge.example.org", "169.254.169.254", false},
		{"forge.example.org", "::ffff:169.254.169.254", false},
		{"forge.example.org", "127.0.0.1", false},
		{"forge.example.org", "::1", false},
		{"forge.example.org", "93.184.216.34", true},
		{"10.9.9.9", "10.9.9.9", true},
		{"10.9.9.9", "10.9.9.8", false},
		{"[::1]", "::1", true},
	} {
		if got := d.Permits(c.host, addr(t, c.addr)); got != c.want {
			t.Errorf("%s at %s: %v", c.host, c.addr, got)
		}
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(actVar) != "" {
		os.Exit(act())
	}
	os.Exit(m.Run())
}
