package policy

import (
	_ "embed"
	"strings"
	"sync"
)

//go:generate go run gen_suffixes.go

// suffixes are the rules of the public suffix list (publicsuffix.org, MPL-2.0),
// each on a line of its own: NAME, *.NAME or !NAME.
//
//go:embed suffixes.txt
var suffixes string

// suffixRules is built when the first wildcard is read, not at the start of every run.
var suffixRules = sync.OnceValue(func() map[string]bool {
	lines := strings.Fields(suffixes)
	rules := make(map[string]bool, len(lines))
	for _, l := range lines {
		rules[l] = true
	}
	return rules
})

// suffixBelow returns a public suffix that is itself below a name, "" when there is
// none: a wildcard matches at any depth.
func suffixBelow(name string) string {
	end := "." + name + "\n"
	i := strings.Index(suffixes, end)
	if i < 0 {
		return ""
	}
	begin := strings.LastIndexByte(suffixes[:i], '\n') + 1
	return strings.TrimLeft(suffixes[begin:i+len(end)-1], "*.!")
}

// publicSuffix reports a name below which others register theirs, by the rules
// of publicsuffix.org/list. A name in lower case and in ASCII is expected.
func publicSuffix(name string) bool {
	rules := suffixRules()
	_, rest, more := strings.Cut(name, ".")
	switch {
	case rules["!"+name]:
		return false
	case rules[name], more && rules["*."+rest]:
		return true
	}
	return !more // the list's last rule is *
}
