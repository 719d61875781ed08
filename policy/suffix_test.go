package policy

import (
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"
)

// The rules say what the package says that they are from: for each rule, its
// name, a name below it and the name above.
func TestPublicSuffix(t *testing.T) {
	rules := strings.Fields(suffixes)
	if len(rules) < 9000 {
		t.Fatalf("%d rules", len(rules))
	}
	for _, r := range append(rules, "example", "example.com", "a.b.example.co.uk", "internal") {
		name := strings.TrimPrefix(strings.TrimPrefix(r, "!"), "*.")
		_, above, _ := strings.Cut(name, ".")
		for _, n := range []string{name, "any." + name, "some.any." + name, above} {
			if n == "" {
				continue
			}
			want, _ := publicsuffix.PublicSuffix(n)
			if got := publicSuffix(n); got != (want == n) {
				t.Errorf("%s is a public suffix: %v; the package says that its suffix is %s", n, got, want)
			}
		}
	}
}

// A wildcard above a public suffix holds what is below that one, and is refused; beside it none is.
func TestWildcardAboveSuffix(t *testing.T) {
	if !strings.HasSuffix(suffixes, "\n") || strings.ContainsAny(suffixes, " \r\t") {
		t.Fatal("the rules are no lines")
	}
	for _, r := range strings.Fields(suffixes) {
		name := strings.TrimLeft(r, "*.!")
		for _, above, more := strings.Cut(name, "."); more; _, above, more = strings.Cut(above, ".") {
			if _, p := parseName("*." + above); p == nil {
				t.Errorf("*.%s is allowed, and holds names below %s", above, name)
			}
		}
	}
	if got := suffixBelow("core.windows.net"); !strings.HasSuffix(got, ".core.windows.net") || !publicSuffix(got) {
		t.Errorf("below core.windows.net: %q", got)
	}
	for _, name := range []string{"example.com", "pypi.org", "github.com", "example.co.uk", "me.github.io", "bucket.s3.amazonaws.com", "sts.amazonaws.com", "amazonaws.example", "s.com.example"} {
		if _, p := parseName("*." + name); p != nil {
			t.Errorf("*.%s: %v", name, p)
		}
	}
}
