package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// problems returns the messages of a policy without its name.
func problems(t *testing.T, src string) []string {
	t.Helper()
	_, err := Parse("p", []byte(src))
	if err == nil {
		return nil
	}
	return strings.Split(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\np:", "\n"), "p:"), "\n")
}

// The small ways in which YAML goes wrong, each with its line and column.
func TestYAMLProblems(t *testing.T) {
	for src, want := range map[string][]string{
		"sandbox: {}\n":                            nil,
		"---\nsandbox: {}\n...\n":                  nil,
		"# c\n---\n# d\nsandbox: {}\n":             nil,
		"sandbox: {}\n---\n":                       {"2:1: a policy is one document (keep one; give several files with several -p)"},
		"---\n---\nsandbox: {}\n":                  {"2:1: a policy is one document (keep one; give several files with several -p)"},
		"sandbox: {}\n...\n---\na: b\n":            {"3:1: a policy is one document (keep one; give several files with several -p)"},
		"sandbox: {5: a}\n":                        {"1:11: a key must be a word"},
		"sandbox: {null: a}\n":                     {"1:11: a key must be a word"},
		"sandbox: {true: a}\n":                     {"1:11: a key must be a word"},
		"? sandbox\n: {}\n":                        {"1:1: a key must be a word"},
		"'sandbox': {\"stdin\": null}\n":           nil,
		"sandbox\n":                                {`1:1: expected a mapping, got the text "sandbox" (start with sandbox:)`},
		"5\n":                                      {`1:1: expected a mapping, got the number "5" (start with sandbox:)`},
		".inf\n":                                   {`1:1: expected a mapping, got no finite number (start with sandbox:)`},
		"{}\n":                                     {"1:1: the key sandbox is missing (start with sandbox:)"},
		"sandbox: {stdin: |\n  pass\n}":            {"2:3: ',' or '}' must be specified"},
		"sandbox:\n  stdin: |-\n    pass\n":        nil,
		"sandbox:\n  stdin: >\n    pass\n":         {`2:10: stdin: unknown word "pass\n" (did you mean "pass"?)`},
		"sandbox:\n  env: {set: {A: .nan}}\n":      {"2:18: env.set: expected text or a number or true or false, got no finite number (write \"\" for an empty value)"},
		"sandbox:\n  env: {set: {A: ~}}\n":         {"2:18: env.set: expected text or a number or true or false, got nothing (write \"\" for an empty value)"},
		"sandbox:\n  env: {set: {A: \"a\\0b\"}}\n": {`2:18: env.set: the value of "A" contains a NUL byte`},
		"sandbox:\n  network: {allowlist: [*.pypi.org:443]}\n":                                       {"2:25: aliases (*) are not allowed in a policy (write the value out; quote a text that begins with *)"},
		"sandbox:\n  network: {allow_private: [\"2001:db8::1\", \"[2001:db8::2]\", \"::1:80:x\"]}\n": {`2:61: network.allow_private: "::1:80:x" is not a host (` + endpointForms + `)`},
		"sandbox:\n  network: {allowlist: [\"2001:db8::1\"]}\n":                                      {`2:25: network.allowlist: "2001:db8::1": an IPv6 address is written in brackets (write [V6]:PORT)`},
		// What is refused is looked through: the values behind it are checked too.
		"sandbox: &s\n  stdin: &x bad\n  env: {allowlist: [&y 1A, *y]}\n  runtime: !!str 5\n": {
			"1:10: anchors (&) are not allowed in a policy (write the value out)",
			"2:10: anchors (&) are not allowed in a policy (write the value out)",
			`2:13: stdin: unknown word "bad" (one of null, pass)`,
			"3:21: anchors (&) are not allowed in a policy (write the value out)",
			`3:24: env.allowlist: "1A" is not the name of a variable (letters, digits and _ only, not starting with a digit)`,
			"3:28: aliases (*) are not allowed in a policy (write the value out; quote a text that begins with *)",
			`4:12: tags (!) are not allowed in a policy (to remove an entry, quote it: "!!str")`,
			`4:17: runtime: expected text, got the number "5" (quote it if it is meant as text)`,
		},
	} {
		if diff := cmp.Diff(want, problems(t, src)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", src, diff)
		}
	}
}

// All problems of a large file are counted, not all are printed.
func TestProblemsAreBounded(t *testing.T) {
	src := "sandbox: {env: {allowlist: [" + strings.Repeat("1,", 5000) + "]}}"
	if got := len(problems(t, src)); got != maxErrors {
		t.Errorf("%d problems", got)
	}
}

// What a viewer shows otherwise than it is parsed is refused: here a limit that is in a remark.
func TestUnseenCharacters(t *testing.T) {
	for _, c := range []string{"\u2028", "\u2029", "\u200b", "\u200e", "\u200f", "\u061c", "\u2060", "\ufeff", "\u202e", "\u0085"} {
		_, err := Parse("p.yaml", []byte("sandbox: # a remark"+c+"  process: {max_memory_mb: 10}\n  runtime: process\n"))
		if err == nil || !strings.Contains(err.Error(), "p.yaml:1:20: the file contains the control character U+") {
			t.Errorf("%+q: %v", c, err)
		}
	}
	if _, err := Parse("p.yaml", []byte("\ufeffsandbox: # \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\n  runtime: process\n")); err != nil {
		t.Errorf("a mark of the byte order, and a joiner: %v", err)
	}
}
