package toolchain

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes files below a new directory: "PATH" is a program, "PATH -> TARGET"
// a link, "PATH/" a directory. "@" in targets is the new directory.
func tree(t *testing.T, list ...string) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range list {
		name, target, link := strings.Cut(entry, " -> ")
		at := path.Join(base, name)
		dir := path.Dir(at)
		if strings.HasSuffix(name, "/") {
			dir = at
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		switch {
		case link:
			err = os.Symlink(strings.ReplaceAll(target, "@", base), at)
		case dir != at:
			err = os.WriteFile(at, nil, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return base
}

// find searches below base, whose "home" is the home, "ws" a workspace and
// "usr" the system. What is found is relative to base.
func find(base string, dirs, near []string, vars map[string]string) (installs []string, f Found) {
	in := func(names ...string) func(string) bool {
		return func(p string) bool {
			return slices.ContainsFunc(names, func(n string) bool { return within(p, path.Join(base, n)) })
		}
	}
	s := Search{
		Home: path.Join(base, "home"), System: in("usr"), Shown: in("ws"), Staged: in("ws"),
		Env:   func(name string) string { return strings.ReplaceAll(vars[name], "@", base) },
		Broad: func(p string) bool { return p == base },
	}
	for _, d := range dirs {
		s.Path = append(s.Path, strings.ReplaceAll(d, "@", base))
	}
	for _, d := range near {
		s.Near = append(s.Near, strings.ReplaceAll(d, "@", base))
	}
	f = Find(s)
	for _, i := range f.Installs {
		rel := strings.TrimPrefix(i.Dir, base+"/")
		if len(i.Secrets) > 0 {
			rel += " but " + strings.Join(i.Secrets, " ")
		}
		installs = append(installs, rel)
	}
	return installs, f
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name string
		tree []string
		path []string
		near []string
		vars map[string]string
		want []string // installs
		env  string
	}{
		{name: "the system's own", tree: []string{"usr/bin/sh"}, path: []string{"@/usr/bin"}},
		{name: "relative, empty and missing entries", tree: []string{"opt/x/bin/x"}, path: []string{"", ".", "opt/x/bin", "@/nowhere"}},
		{name: "pyenv", tree: []string{"home/.pyenv/shims/python", "home/.pyenv/versions/3/bin/python", "home/.pyenv/bin/pyenv"}, path: []string{"@/home/.pyenv/shims", "@/home/.pyenv/bin"}, want: []string{"home/.pyenv"}, env: "PYENV_ROOT=@/home/.pyenv"},
		{name: "settings of a version", tree: []string{"home/.pyenv/shims/python", "home/.pyenv/versions/3/bin/python", "home/.pyenv/versions/3/pip.conf", "home/.pyenv/versions/3/lib/x.pem"}, path: []string{"@/home/.pyenv/shims"}, want: []string{"home/.pyenv but versions/3/pip.conf"}, env: "PYENV_ROOT=@/home/.pyenv"},
		{name: "a root that is a link", tree: []string{"home/.pyenv -> @/data/py", "data/py/shims/python"}, path: []string{"@/home/.pyenv/shims"}, want: []string{"data/py"}, env: "PYENV_ROOT=@/data/py"},
		{name: "pyenv elsewhere", tree: []string{"py/shims/python"}, path: []string{"@/py/shims"}, vars: map[string]string{"PYENV_ROOT": "@/py"}, want: []string{"py"}, env: "PYENV_ROOT=@/py"},
		{name: "cargo and its toolchains, without what else is there", tree: []string{"home/.cargo/bin/cargo", "home/.cargo/credentials.toml", "home/.rustup/toolchains/s/bin/cargo"}, path: []string{"@/home/.cargo/bin"}, want: []string{"home/.cargo/bin", "home/.rustup"}, env: "RUSTUP_HOME=@/home/.rustup"},
		{name: "one version of node", tree: []string{"home/.nvm/versions/node/v1/bin/node", "home/.nvm/versions/node/v2/bin/node"}, path: []string{"@/home/.nvm/versions/node/v2/bin"}, want: []string{"home/.nvm/versions/node/v2"}},
		{name: "an alias of a version", tree: []string{"home/.sdkman/candidates/java/21/bin/java", "home/.sdkman/candidates/java/current -> 21"}, path: []string{"@/home/.sdkman/candidates/java/current/bin"}, vars: map[string]string{"JAVA_HOME": "@/home/.sdkman/candidates/java/current"}, want: []string{"home/.sdkman/candidates/java/21"}, env: "JAVA_HOME=@/home/.sdkman/candidates/java/21"},
		{name: "a variable alone", tree: []string{"jdk/bin/java", "jdk/lib/"}, vars: map[string]string{"JAVA_HOME": "@/jdk", "GOROOT": "@/none"}, want: []string{"jdk"}, env: "JAVA_HOME=@/jdk"},
		{name: "programs of Go, and not its modules", tree: []string{"home/go/bin/x", "home/go/pkg/mod/"}, path: []string{"@/home/go/bin"}, want: []string{"home/go/bin"}},
		{name: "a tool in an environment of its own", tree: []string{
			"home/.local/bin/ruff -> @/home/.local/share/uv/tools/ruff/bin/ruff", "home/.local/share/uv/tools/ruff/bin/ruff",
			"home/.local/share/uv/tools/ruff/bin/python -> @/home/.local/share/uv/python/3.12/bin/python3", "home/.local/share/uv/python/3.12/bin/python3", "home/.local/share/keyrings/login",
		}, path: []string{"@/home/.local/bin"}, want: []string{"home/.local/bin", "home/.local/share/uv/tools/ruff", "home/.local/share/uv/python/3.12"}},
		{name: "pip --user", tree: []string{"home/.local/bin/x", "home/.local/lib/python3/x"}, path: []string{"@/home/.local/bin"}, want: []string{"home/.local/bin", "home/.local/lib"}, env: "PYTHONUSERBASE=@/home/.local"},
		{name: "an own directory of programs", tree: []string{"home/bin/x", "home/.ssh/id"}, path: []string{"@/home/bin"}, want: []string{"home/bin"}},
		{name: "never the home", tree: []string{"home/x", "home/lib/"}, path: []string{"@/home", "@/home/../home"}},
		{name: "an install in the home", tree: []string{"home/apps/x/bin/x", "home/apps/x/lib/"}, path: []string{"@/home/apps/x/bin"}, want: []string{"home/apps/x"}},
		{name: "a project in the home", tree: []string{"home/src/x/bin/x", "home/src/x/lib/", "home/src/x/.git/"}, path: []string{"@/home/src/x/bin"}, want: []string{"home/src/x/bin"}},
		{name: "the home of a service", tree: []string{"srv/app/bin/x", "srv/app/lib/", "srv/app/.ssh/"}, path: []string{"@/srv/app/bin"}, want: []string{"srv/app/bin"}},
		{name: "a link of the administrator's", tree: []string{"local/bin/node -> @/n/node/bin/node", "n/node/bin/node", "n/node/lib/", "n/node/etc/npmrc", "n/node/lib/node_modules/npm/.npmrc"}, path: []string{"@/local/bin"}, want: []string{"local/bin", "n/node but etc/npmrc lib/node_modules/npm/.npmrc"}},
		{name: "a link to one program of a home", tree: []string{"home/bin/x -> ../docs/x.py", "home/docs/x.py", "home/docs/diary"}, path: []string{"@/home/bin"}, want: []string{"home/bin", "home/docs/x.py"}},
		{name: "a link to what is no program", tree: []string{"home/bin/x -> ../docs/", "home/docs/diary", "home/bin/gone -> nowhere"}, path: []string{"@/home/bin"}, want: []string{"home/bin"}},
		{name: "the interpreter of a workspace's environment", tree: []string{"ws/.venv/bin/python -> @/home/.pyenv/versions/3/bin/python", "home/.pyenv/versions/3/bin/python"}, near: []string{"@/ws/.venv/bin"}, want: []string{"home/.pyenv"}, env: "PYENV_ROOT=@/home/.pyenv"},
		{name: "a link that a run may have left", tree: []string{"ws/bin/x -> @/home/secret/bin/x", "home/secret/bin/x", "home/secret/lib/"}, path: []string{"@/ws/bin"}, near: []string{"@/ws/bin"}},
		{name: "packages of a global install", tree: []string{"home/.npm-global/bin/x -> ../lib/node_modules/x/cli.js", "home/.npm-global/lib/node_modules/x/cli.js"}, path: []string{"@/home/.npm-global/bin"}, want: []string{"home/.npm-global"}},
		{name: "credentials of an install", tree: []string{"conda/bin/conda", "conda/conda-meta/", "conda/.condarc", "conda/etc/pip.conf", "conda/lib/python/certs.pem"}, path: []string{"@/conda/bin"}, want: []string{"conda but .condarc etc/pip.conf"}},
		{name: "a part, and then the whole", tree: []string{"x/tools/bin/a", "x/tools/lib/", "x/bin/b", "x/lib/"}, path: []string{"@/x/tools/bin", "@/x/bin"}, want: []string{"x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := tree(t, c.tree...)
			got, f := find(base, c.path, c.near, c.vars)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("installs, -want +got:\n%s", d)
			}
			if env := strings.ReplaceAll(strings.Join(f.Env, " "), base, "@"); env != c.env {
				t.Errorf("env %q, want %q", env, c.env)
			}
			for _, i := range f.Installs {
				if i.From == "" {
					t.Errorf("%s: from nowhere", i.Dir)
				}
			}
		})
	}
}

// A directory of PATH that is a link is found under its own name and its real one.
func TestMovedPath(t *testing.T) {
	base := tree(t, "home/.local/state/fnm/1/bin -> @/home/.local/share/fnm/v20/bin", "home/.local/share/fnm/v20/bin/node")
	got, f := find(base, []string{"@/home/.local/state/fnm/1/bin"}, nil, nil)
	if want := (map[string]string{base + "/home/.local/state/fnm/1/bin": base + "/home/.local/share/fnm/v20/bin"}); !cmp.Equal(want, f.Path) || len(got) != 1 {
		t.Errorf("%v, %v", got, f.Path)
	}
}

// A link in a directory that anybody may write is anybody's.
func TestWritableByOthers(t *testing.T) {
	base := tree(t, "open/bin/x -> @/home/bin/x", "home/bin/x")
	if err := os.Chmod(base+"/open/bin", 0o777); err != nil {
		t.Fatal(err)
	}
	if got, _ := find(base, []string{"@/open/bin"}, nil, nil); !slices.Equal(got, []string{"open/bin"}) {
		t.Error(got)
	}
}

// A search ends, whatever there is.
func TestBounds(t *testing.T) {
	var list, dirs []string
	for i := range 3 * maxInstalls {
		name := strings.Repeat("x", i+1)
		list = append(list, "opt/"+name+"/bin/p", "opt/"+name+"/lib/")
		dirs = append(dirs, "@/opt/"+name+"/bin")
	}
	list = append(list, "loop/bin/a -> b", "loop/bin/b -> a", "loop/bin/self -> @/loop/bin")
	base := tree(t, list...)
	got, _ := find(base, append([]string{"@/loop/bin"}, dirs...), nil, nil)
	if len(got) != maxInstalls {
		t.Errorf("%d installs", len(got))
	}
}

func TestCaches(t *testing.T) {
	base := tree(t, "home/.cache/go-build/", "home/.npm/", "home/.cargo/registry/", "home/.cargo/credentials.toml", "home/.m2/repository/", "home/.gradle", "moved/", "gopath/pkg/mod/", "home/.cache/uv -> @/moved")
	env := map[string]string{"GOPATH": base + "/gopath:/other", "PIP_CACHE_DIR": base + "/moved", "YARN_CACHE_FOLDER": "relative"}
	var got []string
	for _, c := range Caches(nil, base+"/home", "/h", func(n string) string { return env[n] }) {
		got = append(got, strings.ReplaceAll(strings.Join(append([]string{c.Name, c.Dir, c.At}, c.Env...), " "), base, "@"))
	}
	want := []string{
		"go-build @/home/.cache/go-build @/home/.cache/go-build GOCACHE=@/home/.cache/go-build",
		"go-mod @/gopath/pkg/mod @/gopath/pkg/mod GOMODCACHE=@/gopath/pkg/mod",
		"npm @/home/.npm @/home/.npm npm_config_cache=@/home/.npm",
		"pip @/moved @/moved PIP_CACHE_DIR=@/moved",
		"uv @/moved @/moved UV_CACHE_DIR=@/moved UV_LINK_MODE=copy",
		"cargo @/home/.cargo/registry /h/.cargo/registry",
		"maven @/home/.m2/repository /h/.m2/repository",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if one := Caches([]string{"npm"}, base+"/home", "/h", func(string) string { return "" }); len(one) != 1 {
		t.Errorf("%v", one)
	}
	if none := Caches(nil, "", "/h", func(string) string { return "" }); len(none) != 0 {
		t.Errorf("without a home: %v", none)
	}
}

func TestUsualDirs(t *testing.T) {
	base := tree(t, "home/.nvm/versions/node/v20/bin/node", "home/.cargo/bin/cargo")
	got := UsualDirs(base + "/home")
	for _, want := range []string{base + "/home/.nvm/versions/node/v20/bin", base + "/home/.cargo/bin"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q has no %s", got, want)
		}
	}
}
