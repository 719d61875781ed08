package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
)

const (
	// bomb forks until it is refused, 300 times at most, and says how often it was not.
	bomb = `
import os, time
n = 0
try:
    while n < 300:
        if os.fork() == 0: time.sleep(1000)
        n += 1
except OSError as e: print(n, e.errno)`
	// threads does the same with threads.
	threadBomb = `
import threading, time
n = 0
try:
    while n < 300: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(); n += 1
except RuntimeError: print(n)`
	// hogs take more than they may and keep it: whoever looks late sees it too.
	hog  = `import time; x = [bytearray(1 << 20) for i in range(250)]; time.sleep(1000)`
	hogs = `
import os, time
if os.fork() == 0 or os.fork() == 0: x = bytearray(60 << 20)
time.sleep(1000)`
	// sharers have what their parent has, once.
	sharers = `
import os, time
x = bytearray(60 << 20)
pids = []
for i in range(4):
    pid = os.fork()
    if pid == 0: time.sleep(0.2); os._exit(0)
    pids.append(pid)
for p in pids: os.waitpid(p, 0)`
	// hide makes a process one whose files in /proc are root's.
	hide   = "import ctypes, os, time; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n"
	memfds = `
import os
for i in range(200): os.write(os.memfd_create("x"), bytes(1 << 20))
os.read(os.pipe()[0], 1)`
	files = `
import os
for i in range(5):
    fd = os.open("real/%d" % i, os.O_CREAT | os.O_WRONLY); os.write(fd, bytes(1 << 20)); os.close(fd)
os.read(os.pipe()[0], 1)`
	reserves = `
import os
for i in range(8):
    fd = os.open("real/%d" % i, os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, 1 << 20); os.close(fd)
os.read(os.pipe()[0], 1)`
	// apart has descriptors that its first thread has not.
	apart = `
import ctypes, os, threading
def hog():
    assert ctypes.CDLL(None).unshare(0x400) == 0 # CLONE_FILES
    fd = os.memfd_create("x")
    for i in range(200): os.write(fd, bytes(1 << 20))
    os.read(os.pipe()[0], 1)
threading.Thread(target=hog).start()`
	// secrets is memory that no number in /proc has, where there is such a thing.
	secrets = `
import ctypes, mmap, os
fd = ctypes.CDLL(None, use_errno=True).syscall(447, 0) # memfd_secret
if fd < 0: print(ctypes.get_errno()); raise SystemExit
os.ftruncate(fd, 50 << 22)
for i in range(50):
    m = mmap.mmap(fd, 1 << 22, offset=i << 22)
    for at in range(0, 1 << 22, 4096): m[at] = 1
    m.close()
print("taken")`
	// segments and messages are memory that no process has, in System V objects.
	segments = `
import ctypes, os
c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p
for i in range(50):
    at = c.shmat(c.shmget(0, 1 << 22, 0o600), None, 0); ctypes.memset(at, 1, 1 << 22); c.shmdt(ctypes.c_void_p(at))
os.read(os.pipe()[0], 1)`
	messages = `
import ctypes, os
c = ctypes.CDLL(None); b = ctypes.create_string_buffer(8200); b[0] = 1
for i in range(8000):
    q = c.msgget(0, 0o600)
    while c.msgsnd(q, b, 8192, 0o4000) == 0: pass
os.read(os.pipe()[0], 1)`
	// mixed is memory of which one half is mapped, and the other in a file that is not.
	mixed = `
import mmap, os
fd = os.memfd_create("x")
for i in range(80): os.write(fd, bytes(1 << 20))
m = mmap.mmap(-1, 80 << 20)
for at in range(0, 80 << 20, 4096): m[at] = 1
os.read(os.pipe()[0], 1)`
	// hoppers are a new process all the time.
	hoppers = `
while True:
    if os.fork() > 0: os._exit(0)`
	spinners = `
import os
os.fork(); os.fork()
while True: pass`
)

// Without a cgroup the limits are kept all the same, and their names are told.
func TestUserNSLimits(t *testing.T) {
	l := alone(t)
	if err := errors.Join(os.Mkdir(filepath.Join(l.work, "real"), 0o755), os.Chown(filepath.Join(l.work, "real"), l.uid(), lonerGID)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		flags  string
		script string
		status int
		reason string
		limit  string // that was met
		out    string
	}{
		{name: "fork bomb", flags: "--pids 10", script: bomb, out: "9 11\n"},
		{name: "threads", flags: "--pids 10", script: threadBomb, out: "9\n"},
		{name: "one hog", flags: "--memory 100M", script: hog, status: 137, reason: "memory", limit: "memory"},
		{name: "several hogs", flags: "--memory 100M", script: hogs, status: 137, reason: "memory", limit: "memory"},
		{name: "memfds", flags: "--memory 100M", script: memfds, status: 137, reason: "memory", limit: "memory"},
		{name: "hidden memfds", flags: "--memory 100M", script: hide + memfds, status: 137, reason: "hidden"},
		{name: "memfd of one thread", flags: "--memory 100M", script: apart, status: 137, reason: "memory", limit: "memory"},
		{name: "secret memory", flags: "--memory 100M", script: secrets, out: "38\n"},
		{name: "segments", flags: "--memory 100M", script: segments, status: 137, reason: "memory", limit: "memory"},
		{name: "messages", flags: "--memory 60M", script: messages, status: 137, reason: "memory", limit: "memory"},
		{name: "mixed", flags: "--memory 100M", script: mixed, status: 137, reason: "memory", limit: "memory"},
		{name: "hidden by one after the other", flags: "--memory 100M", script: "import os\nif os.fork() > 0: os.read(os.pipe()[0], 1)\n" + hide + hoppers, status: 137, reason: "hidden"},
		{name: "hidden, and nobody asked", flags: "--wall 100s", script: hide + "time.sleep(0.5); print(1)", out: "1\n"},
		{name: "shared memory", flags: "--memory 150M", script: sharers},
		{name: "cpu of several", flags: "--cpu 200ms", script: spinners, status: 137, reason: "cpu", limit: "cpu"},
		{name: "wall", flags: "--wall 100ms", script: "import time; time.sleep(1000)", status: 124, reason: "wall", limit: "wall"},
		{name: "output", flags: "--output 2M", script: `
try:
    with open("/tmp/x", "wb") as f:
        for i in range(100): f.write(bytes(100000))
except OSError as e: print(e.errno)`, out: "28\n"},
		{name: "output in a real directory", flags: "--output 2M --rw real", script: files, status: 137, reason: "output", limit: "output"},
		{name: "output that is reserved", flags: "--output 2M --rw real", script: reserves, status: 137, reason: "output", limit: "output"},
		{name: "hidden output", flags: "--output 2M --rw real", script: hide + files, status: 137, reason: "hidden"},
		{name: "one file", flags: "--file-size 1M", script: `
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("/tmp/x", "wb") as f:
        for i in range(100): f.write(bytes(100000))
except OSError as e: print(e.errno)`, out: "27\n"},
		{name: "files", flags: "--files 20", script: `
try:
    for i in range(100): open("/tmp/%d" % i, "w")
except OSError as e: print(e.errno)`, out: "28\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var fs unix.Statfs_t
			if err := unix.Statfs(l.work, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && strings.Contains(tt.flags, "--rw") {
				testenv.Beyond(t, "disk", "the user's directory is on a tmpfs, whose writes the kernel does not count")
			}
			args := append([]string{"--wall", "120s"}, strings.Fields(tt.flags)...) // nothing else ends what a limit does not
			args = append(args, "--mode", "ro", "--", "/usr/bin/python3", "-c", tt.script)
			r := l.result(args...)
			reason := tt.reason
			if reason == "" {
				reason = "exit"
			}
			if r.Status != tt.status || r.Reason != reason {
				t.Errorf("%d %s", r.Status, r.Reason)
			}
			if reason == runs.ReasonHidden != strings.Contains(r.Error, "prctl(PR_SET_DUMPABLE)") {
				t.Errorf("%s: %q", reason, r.Error)
			}
			var met []string
			for _, h := range r.Limits {
				met = append(met, h.Name)
			}
			if got := strings.Join(met, " "); got != tt.limit {
				t.Errorf("limits that were met: %q", got)
			}
			if out, err := os.ReadFile(filepath.Join(r.Record.Path, "stdout")); err != nil || string(out) != tt.out {
				t.Errorf("%q, %v", out, err)
			}
			for _, what := range []string{"memory: ", "cpu: ", "tasks: ", "limits: "} {
				if !slices.ContainsFunc(r.Thin, func(s string) bool { return strings.HasPrefix(s, what) }) {
					t.Errorf("nothing is said of %s: %q", what, r.Thin)
				}
			}
		})
	}
}

// ownCgroup makes a cgroup and gives it to the user, as a service manager would.
func (l *loner) ownCgroup() (layout cgroup.Layout, dir string) {
	l.t.Helper()
	layout, err := cgroup.Detect()
	if err != nil || layout.Unified == "" {
		testenv.Missing(l.t, "cgroup", fmt.Sprint("no cgroup v2 hierarchy is mounted ", err))
	}
	p, err := layout.Parent(testenv.CgroupName())
	if err != nil {
		l.t.Fatal(err)
	}
	dir = filepath.Join(p.Path, "delegated")
	if err := os.Mkdir(dir, 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		for _, d := range append(l.cgroups(dir), dir, p.Path, p.V1[cgroup.Memory], p.V1[cgroup.Pids]) {
			if d != "" {
				l.until(d+" is removed", func() bool { err := unix.Rmdir(d); return err == nil || err == unix.ENOENT })
			}
		}
	})
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(dir, name), l.uid(), lonerGID); err != nil {
			l.t.Fatal(err)
		}
	}
	return layout, dir
}

// cgroups are those in a directory of the user's.
func (l *loner) cgroups(dir string) []string {
	list, _ := filepath.Glob(filepath.Join(dir, "agentguard-*"))
	return list
}

// A user that has a cgroup of its own has its runs in it, with the controllers that there are.
func TestUserNSDelegated(t *testing.T) {
	l := alone(t)
	layout, dir := l.ownCgroup()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	born := func(args ...string) (string, string, int) {
		cmd := l.as(append([]string{agentguard(), "exec", "-q", "--mode", "ro"}, args...)...)
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
		return l.finish(cmd)
	}
	out, errs, status := born("--", "sh", "-c", "cat /proc/self/cgroup; ls /sys/fs/cgroup")
	if status != 0 || !strings.Contains(out, "0::/\n") || !strings.Contains(out, "cgroup.procs") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	out, _, _ = l.guard("runs", "show")
	all := len(layout.V1) == 0 // pure v2: the controllers are there
	if strings.Contains(out, "thin      cpu: ") || strings.Contains(out, "thin      memory: ") == all || strings.Contains(out, "thin      tasks: ") == all {
		t.Errorf("%s", out)
	}
	for _, tt := range []struct {
		flags  []string
		script string
		status int
		out    string
	}{
		{[]string{"--pids", "10"}, bomb, 0, "9 11\n"},
		{[]string{"--memory", "100M"}, hog, 137, ""},
		{[]string{"--cpu", "200ms"}, spinners, 137, ""},
	} {
		if out, errs, status := born(append(tt.flags, "--", "/usr/bin/python3", "-c", tt.script)...); status != tt.status || out != tt.out {
			t.Errorf("%v: %d %q %q", tt.flags, status, out, errs)
		}
	}
	if left := l.cgroups(dir); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	l.killedIn(dir, f)
}

// killedIn ends a supervisor that has a cgroup of its own: its run dies, and the next start removes the rest.
func (l *loner) killedIn(dir string, f *os.File) {
	l.t.Helper()
	cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "sh", "-c", "echo up; sleep 1000")
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		l.t.Fatalf("%q %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		l.t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	l.until("all of it is dead", func() bool { return len(l.processes()) == 0 })
	l.undivided(dir)
	next := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "true")
	next.SysProcAttr.UseCgroupFD, next.SysProcAttr.CgroupFD = true, int(f.Fd())
	if out, errs, status := l.finish(next); status != 0 {
		l.t.Errorf("%d %q %q", status, out, errs)
	}
	if left := l.cgroups(dir); len(left) > 0 {
		l.t.Errorf("%q is left", left)
	}
}
