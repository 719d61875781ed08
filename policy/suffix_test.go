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
