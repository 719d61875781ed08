// Package profile holds the policy fragments for toolchains and uses that people
// have in common, the shipped ones and the user's own, and fits them to a home
// directory. A fragment adds to a policy: it says nothing of the workspace.
package profile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed shipped
var shipped embed.FS

// Profile is one fragment as it is stored.
type Profile struct {
	Name  string
	From  string // "shipped", or the path of the user's own file
	About string // its first line
	Text  string
}

// Places says where the user's own profiles and home are, and reads them as the
// user.
type Places struct {
	Home string // "" when there is none
	Dir  string // of the user's own profiles; "" when there is none

	ReadFile func(path string) ([]byte, error)
	ReadDir  func(path string) ([]string, error) // names
	Exists   func(path string) bool
}

// isName reports whether a profile can be called that.
func isName(s string) bool {
	return s != "" && s[0] != '-' && s[0] != '_' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// Names returns the names of all profiles in their order.
func (p *Places) Names() []string {
	var names []string
	entries, _ := shipped.ReadDir("shipped") // embedded: it is there
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	if p.Dir != "" {
		own, _ := p.ReadDir(p.Dir) // none, when there is no such directory
		for _, n := range own {
			if n, ok := strings.CutSuffix(n, ".yaml"); ok && isName(n) {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Find returns a profile. A user's own takes the place of a shipped one.
func (p *Places) Find(name string) (*Profile, error) {
	if !isName(name) {
		return nil, fmt.Errorf("profile %q: a name is of small letters, digits, - and _", name)
	}
	out := &Profile{Name: name, From: "shipped"}
	var text []byte
	err := fs.ErrNotExist
	if p.Dir != "" {
		own := filepath.Join(p.Dir, name+".yaml")
		if text, err = p.ReadFile(own); err == nil {
			out.From = own
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	if err != nil {
		if text, err = shipped.ReadFile("shipped/" + name + ".yaml"); err != nil {
			return nil, fmt.Errorf("no profile is called %q; there are %s", name, strings.Join(p.Names(), ", "))
		}
	}
	out.Text = string(text)
	first, _, _ := strings.Cut(out.Text, "\n")
	if about, ok := strings.CutPrefix(first, "# "); ok {
		out.About = about
	}
	return out, nil
}

// hostPath is an entry of a list of mounts that stands on a line of its own.
var hostPath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(\s+- )((?:~/|/)[^\s:]+)(:\S+)?(\s+#.*)?$`)
})

// homeValue is a value that is a path of the home directory.
var homeValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([:,{] )(~/[^\s,}]+)`) })

// keyLine is a key whose values are on the lines that follow.
var keyLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*([a-z_]+):\s*(#.*)?$`) })

// Fit returns the text as a policy for this home: ~ is the home directory, and
// list entries whose path is not there are taken out, since nobody has every
// toolchain. What is protected stays: it grants nothing, and may be made later. Lines
// keep their numbers.
func (p *Places) Fit(f *Profile) []byte {
	lines := strings.Split(f.Text, "\n")
	key, at := "", 0
	left := map[int]int{} // entries of the list whose key is on that line
	for i, l := range lines {
		if k := keyLine().FindStringSubmatch(l); k != nil {
			key, at = k[1], i
		}
		m := hostPath().FindStringSubmatch(l)
		if m == nil {
			lines[i] = homeValue().ReplaceAllStringFunc(l, func(s string) string { return s[:2] + strconv.Quote(p.home(s[2:])) })
			if strings.HasPrefix(strings.TrimSpace(l), "- ") {
				left[at]++
			}
			continue
		}
		if _, met := left[at]; !met {
			left[at] = 0
		}
		if path := p.home(m[2]); path[0] == '/' && (key == "protect" || p.Exists(path)) {
			lines[i] = m[1] + strconv.Quote(path+m[3])
			left[at]++
		} else {
			lines[i] = "#" + l
		}
	}
	for at, n := range left {
		if n == 0 { // the list has lost all entries
			lines[at] = strings.Replace(lines[at], ":", ": []", 1)
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// home puts the home directory in the place of ~, if there is one.
func (p *Places) home(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && p.Home != "" {
		return filepath.Join(p.Home, rest)
	}
	return path
}
