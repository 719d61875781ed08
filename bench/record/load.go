package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// load is a script for sh that leaves its directory as it found it.
type load struct {
	name, what string
	needs      []string // programs
	script     string
}

var loads = []load{
	{
		"build", "60 small C files compiled one by one, and linked",
		[]string{"cc"},
		`mkdir o
for i in $(seq 60); do
	printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(void) { return puts("%d"); }\n' $i $i >o/$i.c
	cc -O1 -c o/$i.c -o o/$i.o
done
echo 'int main(void) { return 0; }' >o/main.c
cc o/main.c o/[0-9]*.o -o o/all
rm -r o`,
	},
	{
		"git", "a repository of 400 files: add, commit, status, checkout, log",
		[]string{"git"},
		`export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
mkdir g
cd g
git init -q .
for i in $(seq 400); do echo $i >f$i; done
git add .
git commit -q -m one
echo x >>f1
git commit -q -a -m two
git status >/dev/null
git checkout -q HEAD~1
git log --stat >/dev/null
cd ..
rm -rf g`,
	},
	{
		"python", "the standard library imported by name, five times",
		[]string{"python3"},
		`for i in 1 2 3 4 5; do
	python3 -B -c 'import sys, importlib
for name in sorted(sys.stdlib_module_names):
    if name[0] != "_" and name not in ("antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo"):
        try: importlib.import_module(name)
        except Exception: pass'
done`,
	},
	{"walk", "find over /usr, with a look at each file", []string{"find"}, `find /usr -xdev -type f -size +1k -print >/dev/null 2>&1 || :`},
	{"read", "4000 files opened and read by one program", []string{"find", "head"}, `find /usr -xdev -type f 2>/dev/null | head -n 4000 | xargs head -qc 1 >/dev/null 2>&1 || :`},
	{"processes", "1000 times /bin/true, one after the other", nil, `i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done`},
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

// row is one contestant and what it took.
type row struct {
	name      string
	prefix    []string // before the command
	work      string   // the directory that the load runs in
	wall, cpu []time.Duration
}

// measure runs every row once a round. Each round begins with another row, so
// that none always follows the same neighbour.
func (l *load) measure(rows []*row, rounds int) error {
	for i := range rounds + 1 {
		for k := range rows {
			r := rows[(i+k)%len(rows)]
			wall, cpu, err := r.once(l.script)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if i > 0 {
				r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
			}
		}
	}
	return nil
}

// once runs the script and returns the time until its status was read, and the
// CPU time of all that was waited for.
func (r *row) once(script string) (wall, cpu time.Duration, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer null.Close()
	argv := append(r.prefix[:len(r.prefix):len(r.prefix)], "/bin/sh", "-ec", script)
	attr := &syscall.ProcAttr{
		Dir: r.work, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
		Files: []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd()},
	}
	start := time.Now()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	var status syscall.WaitStatus
	var used syscall.Rusage
	for {
		_, err = syscall.Wait4(pid, &status, 0, &used)
		if err != syscall.EINTR {
			break
		}
	}
	wall = time.Since(start)
	if err != nil {
		return 0, 0, fmt.Errorf("wait for %s: %w", argv[0], err)
	}
	if status != 0 {
		return 0, 0, fmt.Errorf("wait status %#x", int(status))
	}
	return wall, time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
