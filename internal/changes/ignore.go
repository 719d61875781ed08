package changes

import (
	"path"
	"strings"
	"unicode/utf8"
)

// ignores answers what gitignore(5) says of paths below one directory. It asks
// for the files itself, each once.
type ignores struct {
	read   func(dir string) []byte // .gitignore of a directory below the top ("" is the top); nil: none
	rules  map[string][]rule       // by directory
	tops   map[string]string       // by directory: the highest ignored one that it is or lies in; "" none
	parsed int                     // rules so far
	left   int                     // comparisons of a component that are still made, long ones more: patterns may be hostile

	tracked map[string]bool       // by git, whatever the patterns say
	known   bool                  // tracked is all of it
	nested  func(dir string) bool // asks whether a directory is a repository of its own
	within  map[string]bool       // by directory: it is one, or lies in one
}

// inNested reports a directory that is, or lies in, a repository below the top.
func (g *ignores) inNested(dir string) bool {
	if dir == "" {
		return false
	}
	in, asked := g.within[dir]
	if !asked {
		in = g.inNested(parentOf(dir)) || g.nested(dir)
		g.within[dir] = in
	}
	return in
}

// Bounds of what is read and done. What is beyond them is
// not ignored, and so is listed.
const (
	maxRules       = 8000 // of all files together
	maxParts       = 32
	maxComparisons = 16 << 20
)

// rule is one pattern, split at its slashes.
type rule struct {
	parts   []string // path.Match patterns, or "**"
	cost    int      // of parts
	dirOnly bool
	keep    bool // "!": what it matches is not ignored
}

func newIgnores(read func(dir string) []byte) *ignores {
	return &ignores{read: read, rules: map[string][]rule{}, tops: map[string]string{"": ""}, within: map[string]bool{}, left: maxComparisons}
}

// dir returns the highest ignored directory that d is or lies in, or "".
func (g *ignores) dir(d string) string {
	top, known := g.tops[d]
	if known {
		return top
	}
	if top = g.dir(parentOf(d)); top == "" && g.matches(d, true) {
		top = d
	}
	g.tops[d] = top
	return top
}

// file reports whether the name p, which is no directory, is ignored by itself.
func (g *ignores) file(p string) bool { return g.matches(p, false) }

// matches looks for the last rule that fits in the nearest file: it decides.
// Nothing above p is ignored.
func (g *ignores) matches(p string, dir bool) bool {
	for at := parentOf(p); ; at = parentOf(at) {
		list := g.of(at)
		rel := strings.Split(strings.TrimPrefix(p[len(at):], "/"), "/")
		each := cost(rel)
		for i := len(list) - 1; i >= 0; i-- {
			r := &list[i]
			if g.left -= r.cost * each; g.left < 0 {
				return false
			}
			if (dir || !r.dirOnly) && fits(r.parts, rel) {
				return !r.keep
			}
		}
		if at == "" {
			return false
		}
	}
}

func (g *ignores) of(dir string) []rule {
	list, known := g.rules[dir]
	if !known {
		list = parseIgnore(g.read(dir), maxRules-g.parsed)
		g.parsed += len(list)
		g.rules[dir] = list
	}
	return list
}

func parentOf(p string) string {
	if d := path.Dir(p); d != "." {
		return d
	}
	return ""
}

func parseIgnore(b []byte, most int) []rule {
	var out []rule
	for line := range strings.Lines(strings.TrimPrefix(string(b), "\ufeff")) {
		if len(out) >= most { // what is left could be exceptions
			out = append(out, keepAll)
			break
		}
		if r, ok := parseRule(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")); ok {
			out = append(out, r)
		}
	}
	return out
}

// keepAll stands for exceptions that are not understood, so that nothing is hidden that git shows.
var keepAll = rule{parts: []string{"**"}, cost: 1, keep: true}

func parseRule(line string) (r rule, ok bool) {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	if line, r.keep = strings.CutPrefix(line, "!"); line == "" {
		return r, false
	}
	if line, r.dirOnly = strings.CutSuffix(line, "/"); line == "" {
		return r, false
	}
	if !strings.Contains(line, "/") {
		line = "**/" + line // without a slash: at any depth
	}
	for _, part := range strings.Split(strings.TrimPrefix(line, "/"), "/") {
		if part != "**" {
			part = goPattern(bytewise(part))
			if _, err := path.Match(part, ""); err != nil || strings.Contains(part, "[:") {
				return keepAll, r.keep // git takes it for one that nothing fits; classes by name are not built
			}
		}
		r.parts = append(r.parts, part)
	}
	if len(r.parts) > maxParts {
		return keepAll, r.keep
	}
	r.cost = cost(r.parts)
	return r, true
}

// cost is how much components take to compare: path.Match goes through a long name again for each part of
// a long pattern, so that one comparison can take a thousand times what another does.
func cost(parts []string) (n int) {
	const short = 16 // bytes
	for _, p := range parts {
		n += 1 + len(p)/short
	}
	return n
}

// bytewise makes a character of each byte: git's ? and [...] are of bytes (wildmatch.c).
func bytewise(s string) string {
	ascii := true
	for i := 0; i < len(s) && ascii; i++ {
		ascii = s[i] < utf8.RuneSelf
	}
	if ascii {
		return s
	}
	out := make([]rune, len(s))
	for i := range len(s) {
		out[i] = rune(s[i])
	}
	return string(out)
}

// goPattern turns git's negated class into path.Match's.
func goPattern(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		b.WriteByte(p[i])
		switch {
		case p[i] == '\\' && i+1 < len(p):
			i++
			b.WriteByte(p[i])
		case p[i] == '[' && i+1 < len(p) && p[i+1] == '!':
			i++
			b.WriteByte('^')
		}
	}
	return b.String()
}

// fits matches the components of a path. "**" is any number of them, in the end
// at least one. The time is at most the product of both lengths: the pattern is
// a hostile one.
func fits(parts, names []string) bool {
	at := make([]bool, len(names)+1) // names[:i] fits what was looked at of parts
	at[0] = true
	for k, part := range parts {
		next := make([]bool, len(names)+1)
		for i := range at {
			switch {
			case part == "**":
				if i > 0 && (at[i-1] || next[i-1]) {
					next[i] = true
				}
				if at[i] && k < len(parts)-1 {
					next[i] = true
				}
			case i > 0 && at[i-1]:
				ok, err := path.Match(part, bytewise(names[i-1]))
				next[i] = ok && err == nil
			}
		}
		at = next
	}
	return at[len(names)]
}
