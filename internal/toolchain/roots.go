package toolchain

import (
	"os"
	"path"
	"path/filepath"
	"strings"
)

// root is where a known toolchain, or the manager of many, lies. Nothing else is
// kept in such a place, so that a link that leads into it may be anybody's.
type root struct {
	dir      string // "~/" stands for the home directory
	variable string // names the directory: moves it when the caller sets it, and is set for the command
	whole    bool   // its parts need each other; else each version is an install of its own
	clean    bool   // holds no configuration of its user's, so that no credentials are looked for
	up       int    // the variable names the directory so many levels above dir
	needs    []string
}

// known is the table of roots. Sources: the tools' own documentation of their
// directories and variables.
var known = []root{
	{dir: "~/.pyenv", variable: "PYENV_ROOT", whole: true},
	{dir: "~/.rbenv", variable: "RBENV_ROOT", whole: true},
	{dir: "~/.nodenv", variable: "NODENV_ROOT", whole: true},
	{dir: "~/.goenv", variable: "GOENV_ROOT", whole: true},
	{dir: "~/.jenv", variable: "JENV_ROOT", whole: true},
	{dir: "~/.asdf", variable: "ASDF_DATA_DIR", whole: true},
	{dir: "~/.local/share/mise", variable: "MISE_DATA_DIR", whole: true},
	{dir: "~/.volta", variable: "VOLTA_HOME", whole: true},
	{dir: "~/.nvm/versions"},
	{dir: "~/.local/share/fnm"},
	{dir: "~/.local/share/pnpm", whole: true},
	{dir: "~/.bun/bin", whole: true, needs: []string{"~/.bun/install/global"}},
	{dir: "~/.deno/bin", whole: true},
	{dir: "~/.cargo/bin", whole: true, needs: []string{"~/.rustup"}},
	{dir: "~/.rustup", variable: "RUSTUP_HOME", whole: true},
	{dir: "~/.ghcup", whole: true},
	{dir: "~/.sdkman/candidates"},
	{dir: "~/.jdks"},
	{dir: "~/sdk"},
	{dir: "~/go/bin", whole: true},
	{dir: "~/go/pkg/mod/golang.org"},
	{dir: "~/.local/share/uv/python"},
	{dir: "~/.local/share/uv/tools"},
	{dir: "~/.local/share/pipx", whole: true},
	{dir: "~/.local/pipx", whole: true},
	{dir: "~/.local/bin", whole: true, needs: []string{"~/.local/lib"}},
	{dir: "~/.local/lib", variable: "PYTHONUSERBASE", up: 1, whole: true},
	{dir: "~/.linuxbrew", whole: true},
	{dir: "/home/linuxbrew/.linuxbrew", whole: true},
	{dir: "/nix/store", whole: true, clean: true},
	{dir: "/snap", clean: true},
}

// rootsOf is the table for one home and its variables.
func rootsOf(home string, env func(string) string) []root {
	places := map[string]string{} // by what the table calls them
	for _, r := range known {
		places[r.dir] = r.place(home, env)
	}
	var out []root
	for _, r := range known {
		dir := places[r.dir]
		if dir == "" || dir == "/" || dir == home {
			continue
		}
		needs := r.needs
		r.dir, r.needs = dir, nil
		for _, n := range needs {
			if p, ok := places[n]; ok {
				r.needs = append(r.needs, p)
			} else if n = inHome(n, home); n != "" {
				r.needs = append(r.needs, n)
			}
		}
		out = append(out, r)
	}
	return out
}

// place is where a root lies, without links where it is there: "" when nowhere.
func (r root) place(home string, env func(string) string) string {
	dir := inHome(r.dir, home)
	if r.variable != "" && r.up == 0 && filepath.IsAbs(env(r.variable)) {
		dir = path.Clean(env(r.variable))
	}
	if st, err := os.Lstat(dir); err != nil || st.Mode()&os.ModeSymlink == 0 { // the home itself is given without links
		return dir
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// inHome puts the home directory in the place of "~"; "" when there is none.
func inHome(p, home string) string {
	rest, own := strings.CutPrefix(p, "~/")
	switch {
	case !own:
		return p
	case !filepath.IsAbs(home):
		return ""
	}
	return path.Join(home, rest)
}

// holds reports whether a path without links lies in the root.
func (r root) holds(p string) bool { return within(p, r.dir) }

// install is the part of the root that a directory of programs belongs to.
func (r root) install(dir string) string {
	if r.whole {
		return r.dir
	}
	if up := path.Dir(dir); programDirs[path.Base(dir)] && within(up, r.dir) && up != r.dir {
		return up
	}
	return dir
}

// value is what the root's variable is set to.
func (r root) value() string {
	dir := r.dir
	for range r.up {
		dir = path.Dir(dir)
	}
	return dir
}

// clean reports a root that holds nothing of its user's.
func clean(roots []root, dir string) bool {
	for _, r := range roots {
		if r.clean && r.holds(dir) {
			return true
		}
	}
	return false
}

// usual are directories of programs that are often not on the PATH of root or
// of sudo; a star stands for one name.
var usual = []string{
	"~/.local/bin", "~/bin", "~/.cargo/bin", "~/go/bin", "~/.pyenv/shims", "~/.rbenv/shims", "~/.nodenv/shims", "~/.asdf/shims", "~/.local/share/mise/shims",
	"~/.volta/bin", "~/.bun/bin", "~/.deno/bin", "~/.local/share/pnpm", "~/.npm-global/bin", "~/.nvm/versions/node/*/bin", "~/.sdkman/candidates/*/current/bin", "~/sdk/*/bin",
	"/usr/local/go/bin", "/home/linuxbrew/.linuxbrew/bin", "~/.nix-profile/bin", "/nix/var/nix/profiles/default/bin", "/opt/*/bin", "/opt/bin", "/snap/bin",
}

// UsualDirs lists where toolchains keep their programs, whether or not PATH has
// it, of those that are there.
func UsualDirs(home string) []string {
	var out []string
	for _, pattern := range usual {
		if p := inHome(pattern, home); p != "" {
			found, _ := filepath.Glob(p) // the patterns are well formed
			out = append(out, found...)
		}
	}
	return out
}
