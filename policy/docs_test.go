package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/policy.md is what people copy from: its examples are valid, and it has
// every key, flag, word and gap.
func TestDocumentation(t *testing.T) {
	raw, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(doc, -1)
	if len(blocks) < 4 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		if strings.HasPrefix(b[1], "ceiling:") {
			_, err = parseCeiling("example.yaml", []byte(b[1]))
		} else {
			_, err = load("example.yaml", []byte(b[1]))
		}
		if err != nil {
			t.Errorf("%v\n%s", err, b[1])
		}
	}
	var need []string
	for _, k := range schema() {
		parts := strings.Split(k.name, ".")
		need = append(need, parts[len(parts)-1]+"`", "--"+k.flag)
	}
	for _, w := range unsafeWords() {
		need = append(need, "| `"+w+"`")
	}
	for _, body := range []string{everyGap, "  unsafe: [host-network]\n"} {
		for _, g := range merge(t, mustParse(t, "/p", body)).Gaps() {
			need = append(need, "`"+g.Clause+"`")
		}
	}
	for _, n := range need {
		if !strings.Contains(doc, n) {
			t.Errorf("docs/policy.md does not have %s", n)
		}
	}
}

// everyGap asks for everything that this version does not build, but for what
// stands in the test.
const everyGap = `  runtime: microvm
  secrets: [act]
  filesystem:
    workspace: {path: /w, mode: cow}
    cow_mounts: [/c]
    writable_mounts: [/d]
    toolchains: auto
    persistence: keep
    commit: ask
    protect: [x]
    max_output_bytes: 1G
    max_files: 5
  network:
    allowlist: ["a.example:1"]
    allow_private: [10.0.0.0/8]
    resolve: {a.example: 10.0.0.1}
    unix: [/s]
    publish: [80]
    max_connections: 1
    max_egress_bytes: 1M
`
