package main

import (
	"os/exec"
)

// load is a script for sh that leaves its directory as it found it.
type load struct {
	name, what string
	needs      []string // programs
	script     string
}

var loads = []load{
	{"nothing", "a shell that ends at once: what it costs to begin and to end", nil, `:`},
	{
		"build", "20 small C files compiled by make, and linked",
		[]string{"cc", "make"},
		`mkdir o
for i in $(seq 20); do
	printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(void) { return puts("%d"); }\n' $i $i >o/$i.c
done
echo 'int main(void) { return 0; }' >o/main.c
printf 'OBJ = $(patsubst %%.c,%%.o,$(wildcard *.c))\nall: $(OBJ)\n\tcc -o $@ $(OBJ)\n%%.o: %%.c\n\tcc -O1 -c $< -o $@\n' >o/Makefile
make -s -C o
rm -r o`,
	},
	{
		"git", "a repository of 200 files: add, commit, status, checkout, log",
		[]string{"git"},
		`export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
mkdir g
cd g
git init -q .
for i in $(seq 200); do echo $i >f$i; done
git add .
git commit -q -m one
for i in 1 2 3 4 5 6 7 8 9 10; do
	echo x >>f$i
	git commit -q -a -m $i
	git status >/dev/null
done
git checkout -q HEAD~1
git log --stat >/dev/null
cd ..
rm -rf g`,
	},
	{
		"node", "all its own modules loaded, 300 files written, read and removed; three times",
		[]string{"node"},
		`for i in 1 2 3; do
	node -e 'const fs = require("fs"); for (const m of require("module").builtinModules) try { require(m) } catch {}
fs.mkdirSync("n"); for (let i = 0; i < 300; i++) { fs.writeFileSync("n/" + i, "x"); fs.readFileSync("n/" + i); fs.unlinkSync("n/" + i) } fs.rmdirSync("n")' 2>/dev/null
done`,
	},
	{
		"python", "the standard library imported by name",
		[]string{"python3"},
		`python3 -B -c 'import sys, importlib
for name in sorted(sys.stdlib_module_names):
    if name[0] != "_" and name not in ("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo"):
        try: importlib.import_module(name)
        except Exception: pass'`,
	},
	{"find", "find over /usr/share, with a look at each file", []string{"find"}, `find /usr/share -xdev -type f -size +1k -print >/dev/null 2>&1 || :`},
	{"read", "4000 files opened and read by one program", []string{"find", "head"}, `find /usr -xdev -type f 2>/dev/null | head -n 4000 | xargs head -qc 1 >/dev/null 2>&1 || :`},
	{"processes", "500 times /bin/true, one after the other", nil, `i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done`},
}

// missing names a program that the load needs and this machine lacks, or "".
func (l *load) missing() string {
	for _, name := range l.needs {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}
