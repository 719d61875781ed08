package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

// work is what people do in a tree all day: begin makes the tree on the host,
// act changes it in a run, and check looks at the host's tree after a commit.
// FILES is how many files the large one makes.
type work struct {
	name, needs       string
	begin, act, check string
	flags             []string
}

var works = []work{
	{
		name: "git", needs: "git",
		begin: `git init -q -b main; for i in 1 2 3; do echo $i >f$i; git add .; git commit -qm c$i; done
			git checkout -q -b side HEAD~2; echo s >s; git add .; git commit -qm side; git checkout -q main; git gc -q`,
		act: `echo new >>f1; git commit -qam changed; git checkout -q side; git rebase -q main; git checkout -q main; git merge -q --no-edit side
			git tag done; git status --porcelain; git fsck --strict 2>&1`,
		check: `git status --porcelain | grep . && exit 1; git fsck --strict; test "$(git log --format=%s | tr '\n' ' ')" = "side changed c3 c2 c1 "; test -e s`,
	},
	{
		name: "go test", needs: "go",
		flags: []string{"--ro", "@GOROOT", "--cow", "@GOCACHE", "--env", "GOCACHE=@GOCACHE", "--env", "GOFLAGS=-buildvcs=false " + os.Getenv("GOFLAGS")},
		begin: `printf 'module example.com/x\n\ngo 1.20\n' >go.mod; mkdir a b; printf 'package a\nfunc F() int { return 1 }\n' >a/a.go
			printf 'package a\nimport ("os"; "testing")\nfunc TestF(t *testing.T) { if F() != 1 || os.WriteFile("golden", []byte("x"), 0o644) != nil { t.Fatal() } }\n' >a/a_test.go
			printf 'package main\nfunc main() { println("b") }\n' >b/b.go`,
		act:   `@GOROOT/bin/go test ./...; @GOROOT/bin/go build -o prog ./b; ./prog`,
		check: `test -x prog; test "$(cat a/golden)" = x`,
	},
	{
		name: "npm", needs: "npm",
		begin: `mkdir dep; cd dep; /usr/bin/python3 -c "$MANY"; tar czf ../many-1.0.0.tgz package; cd ..; rm -r dep; echo '{"name": "x", "version": "1.0.0", "private": true}' >package.json`,
		act:   `npm install --offline --no-audit --no-fund --loglevel=error ./many-1.0.0.tgz; find node_modules/many -name '*.js' | wc -l`,
		check: `test $(find node_modules/many -name '*.js' | wc -l) = $FILES; node -e 'if (require("many/lib/5/f5.js") !== 5) process.exit(1)'`,
	},
	{
		name: "pip in a venv", needs: "pip3",
		begin: `/usr/bin/python3 -c "$WHEEL"`,
		act:   `/usr/bin/python3 -m venv --without-pip venv; /usr/bin/pip3 --python venv/bin/python install -q --no-index ./thing-1.0-py3-none-any.whl; venv/bin/python -c 'import thing; print(thing.x)'`,
		check: `test "$(venv/bin/python -c 'import thing; print(thing.x)')" = 42`,
	},
	{
		name: "sqlite in WAL mode", needs: "/usr/bin/python3",
		begin: `/usr/bin/python3 -c 'import sqlite3; c = sqlite3.connect("db"); c.execute("pragma journal_mode=wal"); c.execute("create table t(a)"); c.execute("insert into t values(1)"); c.commit()'`,
		act:   `/usr/bin/python3 -c "$WAL"`,
		check: `test "$(/usr/bin/python3 -c 'import sqlite3; print(sqlite3.connect("db").execute("select count(*) from t").fetchone()[0])')" = 201`,
	},
	{
		name: "hard links", needs: "cp",
		begin: `mkdir store; for i in $(seq 300); do echo $i >store/$i; done; cp -al store tree; ln store/1 alias`,
		act: `cp -al store build; cp -al tree t2; rm -r tree; for i in 1 2 3; do echo changed >build/1$i; done; ln -f build/5 alias; mv t2 tree
			test "$(stat -c %h build/11)" -ge 2; cmp build/11 store/11; rm -r store; test -e build/300`,
		check: `test "$(cat build/11)" = changed; test ! -e store; test "$(cat alias)" = 5; test "$(stat -c %i alias)" = "$(stat -c %i build/5)"`,
	},
	{
		name: "rm -rf", needs: "cp",
		begin: `mkdir -p a/b/c .hidden; echo x >a/b/c/f; ln -s f a/b/c/l; mkfifo p; touch -d @12345.678901234 a/b/c/f
			/usr/bin/python3 -c 'import os; os.setxattr("a/b/c/f", "user.a", b"b")'; chmod 500 a/b`,
		act:   `chmod 700 a/b; rm -rf ./* .hidden; test -z "$(ls -A)"`,
		check: `test -z "$(ls -A)"`,
	},
}

// Programs of the works.
var workPrograms = []string{
	"MANY=" + `
import os
for i in range(int(os.environ["FILES"])):
    d = "package/lib/%d" % (i % 97); os.makedirs(d, exist_ok=True); open("%s/f%d.js" % (d, i), "w").write("module.exports = %d;\n" % i)
open("package/package.json", "w").write('{"name": "many", "version": "1.0.0"}')`,
	"WHEEL=" + `
import zipfile
z = zipfile.ZipFile("thing-1.0-py3-none-any.whl", "w"); info = "thing-1.0.dist-info/"
z.writestr("thing/__init__.py", "x = 42\n")
z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
z.writestr(info + "RECORD", "thing/__init__.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n" % (info, info, info))`,
	"WAL=" + `
import os, sqlite3
for n in range(4):
    if os.fork() == 0:
        c = sqlite3.connect("db", timeout=60); c.execute("pragma synchronous=full")
        for i in range(50):
            c.execute("insert into t values(?)", (n * 100 + i,)); c.commit()
        os._exit(0)
assert all(os.wait()[1] == 0 for _ in range(4))
c = sqlite3.connect("db"); assert c.execute("pragma integrity_check").fetchone() == ("ok",)
assert c.execute("select count(*) from t").fetchone() == (201,)`,
	// All of a tree that its bits hold: types, modes, owners, sizes, links, inodes, times of
	// content and of change, targets, attributes, digests.
	"LIST=" + `
import hashlib, os, stat
for top, dirs, files in os.walk("."):
    dirs.sort()
    for name in sorted(files) + dirs + (["."] if top == "." else []):
        p = os.path.join(top, name); s = os.lstat(p)
        out = [p, oct(s.st_mode), s.st_uid, s.st_gid, s.st_size, s.st_nlink, s.st_ino, s.st_mtime_ns, s.st_ctime_ns]
        if stat.S_ISREG(s.st_mode): out.append(hashlib.sha256(open(p, "rb").read()).hexdigest())
        if stat.S_ISLNK(s.st_mode): out.append(os.readlink(p))
        out.append(sorted((n, os.getxattr(p, n, follow_symlinks=False)) for n in os.listxattr(p, follow_symlinks=False)))
        print(*map(repr, out))`,
	"HOME=/nonexistent", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
}

// What a run does to a workspace stays its own until it is committed: the host's
// tree is the same in every bit, also after a discard, and after a commit it is
// what the work made.
func TestRealWork(t *testing.T) {
	testenv.Root(t)
	for _, w := range works {
		t.Run(w.name, func(t *testing.T) {
			if _, err := exec.LookPath(w.needs); err != nil {
				testenv.Missing(t, "clients", err.Error())
			}
			w.test(t)
		})
	}
}

func (w *work) test(t *testing.T) {
	files := "FILES=1500"
	if os.Getenv("AGENTGUARD_TEST_WORK") == "whole" {
		files = "FILES=20000"
	}
	ws, state := filepath.Join(t.TempDir(), "ws"), filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	in := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = ws, append(append(os.Environ(), workPrograms...), files)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	in("bash", "-ec", "umask 022; "+w.begin)
	before := in("/usr/bin/python3", "-c", "import os; exec(os.environ['LIST'])")
	unchanged := func(by string) {
		t.Helper()
		now := in("/usr/bin/python3", "-c", "import os; exec(os.environ['LIST'])")
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(now, "\n")); diff != "" {
			t.Fatalf("%s changed the host's tree (-before +after):\n%s", by, diff)
		}
	}
	args := []string{"exec", "--state", state, "--env", files, "--env", workPrograms[2]}
	for _, kv := range workPrograms[5:] {
		args = append(args, "--env", kv)
	}
	for _, f := range w.flags {
		args = append(args, goPlaces(t, f))
	}
	args = append(args, "--", "bash", "-ec", goPlaces(t, w.act))
	in(agentguard(), args...)
	unchanged("the run")
	in(agentguard(), "discard", "--state", state)
	unchanged("discard")
	in(agentguard(), args...)
	in(agentguard(), "commit", "--state", state, "--include-protected", "last", ws)
	in("bash", "-ec", w.check)
}

// goPlaces puts the places of the Go toolchain into a text that asks for them.
func goPlaces(t *testing.T, s string) string {
	t.Helper()
	for _, name := range []string{"GOROOT", "GOCACHE"} {
		if !strings.Contains(s, "@"+name) {
			continue
		}
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		s = strings.ReplaceAll(s, "@"+name, strings.TrimSpace(string(out)))
	}
	return s
}
