package toolchain

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Cache is the directory of a cache on the host, and where a run sees a copy.
type Cache struct {
	Name    string // as policies call it
	Dir, At string
	Env     []string // NAME=VALUE, by which the tool finds At
}

// places are where the tools keep their caches. A cache with a variable is shown
// at the host's path, because some tools make it a part of their keys; one
// without is shown where the tool looks below HOME.
var places = []struct {
	name, variable, dir string
	inside              string // below HOME; "" when the variable says where
}{
	{"go-build", "GOCACHE", "~/.cache/go-build", ""},
	{"go-mod", "GOMODCACHE", "~/go/pkg/mod", ""},
	{"npm", "npm_config_cache", "~/.npm", ""},
	{"pnpm", "npm_config_store_dir", "~/.local/share/pnpm/store", ""},
	{"yarn", "YARN_CACHE_FOLDER", "~/.cache/yarn", ""},
	{"pip", "PIP_CACHE_DIR", "~/.cache/pip", ""},
	{"uv", "UV_CACHE_DIR", "~/.cache/uv", ""},
	{"cargo", "CARGO_HOME", "~/.cargo/registry", ".cargo/registry"},
	{"cargo", "CARGO_HOME", "~/.cargo/git", ".cargo/git"},
	{"gradle", "GRADLE_USER_HOME", "~/.gradle/caches", ".gradle/caches"},
	{"gradle", "GRADLE_USER_HOME", "~/.gradle/wrapper", ".gradle/wrapper"},
	{"maven", "", "~/.m2/repository", ".m2/repository"},
	{"maven", "", "~/.m2/wrapper", ".m2/wrapper"},
}

// Caches lists the directories of the named caches, of all for nil, that are
// there. home is the caller's, inside the run's.
func Caches(names []string, home, inside string, env func(string) string) []Cache {
	var out []Cache
	for _, p := range places {
		if names != nil && !slices.Contains(names, p.name) {
			continue
		}
		dir := cacheDir(p.dir, p.variable, p.inside, home, env)
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || dir == "" {
			continue // the tool makes a new one in HOME, which ends with the run as well
		}
		if st, err := os.Stat(real); err != nil || !st.IsDir() {
			continue
		}
		c := Cache{Name: p.name, Dir: real, At: path.Join(inside, p.inside)}
		if p.inside == "" {
			c.At, c.Env = real, []string{p.variable + "=" + real}
		}
		if p.name == "uv" { // it would warn that links cannot lead from the copy to elsewhere
			c.Env = append(c.Env, "UV_LINK_MODE=copy")
		}
		out = append(out, c)
	}
	return out
}

// cacheDir is where the host has the cache: where the variable says, else at
// its usual place below the home directory.
func cacheDir(usual, variable, inside, home string, env func(string) string) string {
	if v := env(variable); variable != "" && filepath.IsAbs(v) {
		if inside == "" {
			return v
		}
		return path.Join(v, path.Base(inside)) // the variable names the directory above
	}
	if usual == "~/go/pkg/mod" {
		if first, _, _ := strings.Cut(env("GOPATH"), ":"); filepath.IsAbs(first) {
			return path.Join(first, "pkg/mod")
		}
	}
	if rest, ok := strings.CutPrefix(usual, "~/.cache/"); ok && filepath.IsAbs(env("XDG_CACHE_HOME")) {
		return path.Join(env("XDG_CACHE_HOME"), rest)
	}
	return inHome(usual, home)
}
