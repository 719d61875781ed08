package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/runs"
)

// Who runs by the helper makes requests as itself: with its own credentials, in a
// log of its own. The helper makes none.
func TestHelperAndDispatch(t *testing.T) {
	s := serveUsers(t)
	out, errs, status := s.guard(ann, "exec", "-q", "--json", "-", "--", "sh", "-c", "echo words >&2")
	var res runs.Result
	if err := json.Unmarshal([]byte(out), &res); err != nil || status != 0 {
		t.Fatalf("%d %v %q %q", status, err, out, errs)
	}
	if d := res.Stderr.Data; d == nil || string(d.Text) != "words\n" || !d.Untrusted || d.Bytes != 6 || d.Truncated || d.SHA256 != res.Stderr.SHA256 {
		t.Errorf("%+v", d)
	}
	path := filepath.Join(s.home, "actions.yaml")
	must(t, os.WriteFile(path, []byte(`actions:
  say:
    input: {type: object, additionalProperties: false, required: [word], properties: {word: {type: string}}}
    request: {url: "https://api.example.com/say/{word}"}
`), 0o644))
	if out, errs, status = s.guard(ann, "exec", "--actions", path, "--dispatch", "say", "--", "echo", "{}"); status != 125 || !strings.Contains(errs, "the helper makes no requests") {
		t.Errorf("by the helper: %d %q %q", status, out, errs)
	}
	if out, errs, status = s.guard(ann, "actions", "approve", path); status != 0 {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	cmd := s.as(ann, agentguard(), "dispatch", "-f", path, "--dry-run", "say")
	cmd.Stdin = strings.NewReader(`{"word": "hello"}`)
	if out, errs, status = s.finish(cmd); status != 0 || !strings.Contains(out, `"url":"https://api.example.com:443/say/hello"`) {
		t.Errorf("by itself: %d %q %q", status, out, errs)
	}
}
