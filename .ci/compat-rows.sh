# shellcheck shell=bash
# The rows of docs/compat.md: sourced by compat.sh, which says what `row` takes.
# shellcheck disable=SC2016,SC2154 # the scripts are for the shell inside; work is compat.sh's

row git yes 'git --version' '' 'init, commit, branch, merge, stash, clone, gc' '
	git init -q -b main . && git config user.name a && git config user.email a@example.com
	echo one >f && git add f && git commit -q -m one
	git switch -q -c side && echo two >>f && git commit -q -am two && git switch -q main && git merge -q side
	echo three >>f && git stash -q && git stash pop -q && git diff --stat | grep -q f
	git clone -q . clone && git -C clone log --oneline | grep -c . | grep -qx 2 && git gc -q'

file go.mod <<'EOF'
module example.com/m
go 1.21
EOF
file m_test.go <<'EOF'
package m

import (
	"net"
	"os/exec"
	"testing"
)

func TestServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
}
EOF
row go yes 'go version' '' 'vet, test with a loopback server, build' 'go vet ./... && go test ./... && go build ./...'

file package.json <<'EOF'
{"name": "x", "version": "1.0.0", "scripts": {"test": "node --test", "build": "node -e 'require(\"fs\").writeFileSync(\"out.js\", \"1\")'"}, "dependencies": {"dep": "file:./dep"}}
EOF
file dep/package.json <<'EOF'
{"name": "dep", "version": "1.0.0", "main": "index.js"}
EOF
file dep/index.js <<<'module.exports = 41 + 1'
file x.test.js <<'EOF'
const test = require('node:test'), assert = require('node:assert')
test('dep', () => assert.equal(require('dep'), 42))
EOF
cp -a "$work/base" "$work/js"
row npm yes 'npm --version' '' 'install of a local package, test, run, pack' 'npm install --offline --no-audit && npm test && npm run build && npm pack'
cp -a "$work/js/." "$work/base"
row pnpm yes 'pnpm --version' '' 'install of a local package, test' 'pnpm install --offline && pnpm test'
cp -a "$work/js/." "$work/base"
row yarn yes 'yarn --version' '' 'install of a local package, test' 'yarn install --offline && yarn test'
row npm-registry flag 'npm --version' '--allow registry.npmjs.org:443' 'install from the registry' 'npm install --no-audit is-number@7 && node -e "require(\"is-number\")"'

file server.js <<'EOF'
const http = require('http'), { Worker } = require('worker_threads'), { spawnSync } = require('child_process')
const s = http.createServer((q, r) => r.end('ok')).listen(0, '127.0.0.1', () =>
  http.get({ port: s.address().port }, r => {
    if (spawnSync('sh', ['-c', 'exit 3']).status !== 3) process.exit(1)
    new Worker('process.exit(0)', { eval: true }).on('exit', c => { s.close(); process.exitCode = c })
  }))
EOF
row node yes 'node --version' '' 'server and client on loopback, worker, child' 'node server.js'

# A wheel is a zip file: made by hand, so that nothing has to build it.
wheel() {
	python3 - "$work/base" <<'EOF'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/pkg-1-py3-none-any.whl", "w") as z:
    z.writestr("pkg.py", "x = 42\n")
    z.writestr("pkg-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1\n")
    z.writestr("pkg-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("pkg-1.dist-info/RECORD", "")
EOF
}
wheel
row python-venv yes 'python3 --version' '' 'venv, pip install of a wheel' '
	python3 -m venv v && v/bin/pip install -q --no-index ./pkg-1-py3-none-any.whl && v/bin/python -c "import pkg; assert pkg.x == 42"'

wheel
row uv yes,spare 'uv --version' '' 'venv, pip install of a wheel, run' '
	uv venv -q v && VIRTUAL_ENV=v uv pip install -q --offline --no-index ./pkg-1-py3-none-any.whl && VIRTUAL_ENV=v uv run -q --active --offline python -c "import pkg; assert pkg.x == 42"'

file test_it.py <<'EOF'
import multiprocessing, subprocess, tempfile

def double(x): return 2 * x

def test_pool():
    with multiprocessing.Pool(2) as p:
        assert p.map(double, [1, 2]) == [2, 4]

def test_children(tmp_path):
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
    with tempfile.NamedTemporaryFile() as f:
        f.write(b"x")
EOF
row pytest yes '/usr/bin/python3 -m pytest --version' '' 'a pool of processes, temporary files' '/usr/bin/python3 -m pytest -q'

file Cargo.toml <<'EOF'
[package]
name = "m"
version = "0.1.0"
edition = "2021"
EOF
file src/lib.rs <<'EOF'
#[test]
fn server() {
    use std::io::{Read, Write};
    let l = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut c = std::net::TcpStream::connect(l.local_addr().unwrap()).unwrap();
    l.accept().unwrap().0.write_all(b"x").unwrap();
    c.read_exact(&mut [0; 1]).unwrap();
}
EOF
row cargo yes 'cargo --version' '' 'build, test' 'cargo build --offline && cargo test --offline'

file Makefile <<'EOF'
OBJS := $(patsubst %.c,%.o,$(wildcard *.c))
prog: $(OBJS)
	$(CC) -o $@ $^ -lm
EOF
for i in 1 2 3 4 5 6 7 8; do file "f$i.c" <<<"#include <stdio.h>
int f$i(void) { return puts(\"$i\"); }"; done
file main.c <<<'int f1(void); int main(void) { return f1() < 0; }'
row make-gcc yes 'gcc --version' '' 'make -j4 of a C program, run' 'make -j4 && ./prog'

file Hello.java <<<'public class Hello { public static void main(String[] a) throws Exception { var p = new ProcessBuilder("true").start(); System.exit(p.waitFor()); } }'
row java yes 'javac -version' '' 'javac, java, jar' 'javac Hello.java && java -cp . Hello && jar cf h.jar Hello.class'

file pom.xml <<'EOF'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>g</groupId><artifactId>a</artifactId><version>1</version><packaging>pom</packaging></project>
EOF
row maven yes 'mvn --version' '' 'validate, offline' 'mvn -o -q validate'

file t_test.rb <<<'require "minitest/autorun"; class T < Minitest::Test; def test_it; assert system("true"); end; end'
row ruby yes 'ruby --version' '' 'minitest, a child' 'ruby t_test.rb'
file t/a.t <<<'use Test::More tests => 1; ok(`echo x` eq "x\n");'
row perl yes 'perl -e "print \$^V"' '' 'prove' 'prove t'
row sqlite yes 'sqlite3 --version' '' 'a database with a write-ahead log' 'sqlite3 d.db "pragma journal_mode=wal; create table t(x); insert into t values (42); select x from t" | grep -qx 42'
row postgresql yes,user '/usr/lib/postgresql/15/bin/postgres --version' '' 'initdb, server on loopback, query' '
	b=/usr/lib/postgresql/15/bin; $b/initdb -D d -A trust -U u >/dev/null && $b/pg_ctl -w -D d -o "-k /tmp -p 5433" -l log start
	psql -h 127.0.0.1 -p 5433 -U u -d postgres -c "select 42" && $b/pg_ctl -w -D d stop'
row redis yes 'redis-server --version' '' 'server on loopback, client' '
	redis-server --port 6390 --save "" >log & for _ in $(seq 50); do redis-cli -p 6390 ping 2>/dev/null && break; sleep 0.1; done
	redis-cli -p 6390 set a 1 && kill %1'

row tmux yes 'tmux -V' '' 'a detached session' '
	tmux -S s -f /dev/null new-session -d "tty >out; exec cat" && for _ in $(seq 100); do grep -qs /dev/pts out && break; sleep 0.1; done
	tmux -S s send-keys echoed Enter && tmux -S s list-sessions && tmux -S s kill-server && grep -q /dev/pts out'
file text <<<'one two'
row vim yes 'vim --version' '' 'an edit by script' 'vim -Nu NONE -es -c "%s/one/three/" -c wq text && grep -q "three two" text'
file text <<<'one two'
row less yes 'less --version' '' 'a file, to a pipe' 'less -F text | grep -q one'
row top yes 'ps --version' '' 'on a terminal: two screens' 'TERM=xterm script -qec "top -d 0.1 -n 2" /dev/null </dev/null | grep COMMAND >/dev/null'
row htop yes 'htop --version' '' 'on a terminal: a screen, quit by a key' '(while sleep 1 && printf q; do :; done) | TERM=xterm script -qec htop /dev/null | grep Tasks >/dev/null'
row ssh-keygen yes 'ssh -V' '' 'a new key' 'ssh-keygen -q -t ed25519 -N "" -f key && ssh-keygen -l -f key.pub'
row tools yes 'jq --version' '' 'find, xargs -P, tar, gzip, zip, jq, flock, timeout, nice' '
	mkdir d && seq 100 | xargs -P 4 -I{} sh -c "echo {} >d/{}" && tar czf d.tgz d && zip -qr d.zip d && find d -type f | wc -l | grep -qx 100
	echo "{\"a\": 1}" | jq -e .a && flock lock true && timeout 5 nice true'

file p.c <<<'#include <stdlib.h>
int main(void) { abort(); }'
gcc -g -o "$work/base/p" "$work/base/p.c" 2>/dev/null
row gdb flag 'gdb --version' "-p $work/ptrace.yaml" 'a program that aborts, its backtrace' 'gdb -nx -batch -ex run -ex bt ./p 2>&1 | grep -q "in main"'
row strace flag 'strace -V' "-p $work/ptrace.yaml" 'a program and its children' 'strace -f -o out sh -c "true; /bin/true" && grep -q execve out'

file index.html <<<'<html><body><script>document.title = String(6 * 7)</script></body></html>'
row chromium yes 'chromium --version' '' 'headless, --no-sandbox: a page with a script' '
	chromium --headless --no-sandbox --disable-gpu --dump-dom "file://$PWD/index.html" 2>/dev/null | grep -q "<title>42"'
file index.html <<<'hello'
row dev-server yes 'python3 --version' '' 'a server, asked by curl on loopback' '
	python3 -m http.server --bind 127.0.0.1 8123 2>/dev/null & for _ in $(seq 50); do curl -sf http://127.0.0.1:8123/ >out && break; sleep 0.1; done
	grep -q hello out && kill %1'
file n.ipynb <<'EOF'
{"cells": [{"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [], "source": ["assert 6*7 == 42"]}],
 "metadata": {"kernelspec": {"display_name": "p", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 4}
EOF
row jupyter yes '/usr/bin/jupyter-execute --version' '' 'a notebook, by a kernel of its own' '/usr/bin/jupyter-execute n.ipynb'

row curl no 'curl --version' '' 'a host of the network: refused' 'curl -sf --max-time 5 https://example.com'
row docker no 'docker --version' '' 'ps: there is no socket to ask' 'docker ps'
row sudo no 'sudo --version' '' 'true: no set-user-id program gains anything' 'sudo -n true'
row ping no 'ping -V' '' 'an address outside: no raw sockets, and no network' 'ping -c 1 -W 1 192.0.2.1'
