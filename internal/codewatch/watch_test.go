package codewatch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// paths joins the names of what was opened.
func paths(list []*File) string {
	var out []string
	for _, f := range list {
		out = append(out, filepath.Base(f.Path)+" "+string(f.State))
	}
	return strings.Join(out, ", ")
}

// loaderOf is the dynamic loader, as the kernel opens it.
func loaderOf(t *testing.T) string {
	t.Helper()
	for _, l := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
		if real, err := filepath.EvalSymlinks(l); err == nil {
			return real
		}
	}
	testenv.Missing(t, "loader", "no dynamic loader of glibc")
	return ""
}

func TestExecuted(t *testing.T) {
	loader := loaderOf(t)
	v := watched(t, DefaultLimits, false, nil)
	dir := t.TempDir()
	script := filepath.Join(dir, "s.sh")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	sh, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	for _, c := range []struct {
		argv []string
		want []string // files, in the order of their opening
	}{
		{[]string{"/bin/true"}, []string{"/usr/bin/true", loader}},
		{[]string{"/bin/true"}, []string{"/usr/bin/true", loader}},
		{[]string{script}, []string{script, sh, loader}},
		{[]string{loader, "/bin/true"}, []string{loader}}, // true is only mapped
	} {
		got := v.run(t, dir, c.argv...)
		if len(got) != len(c.want) {
			t.Errorf("%q: %s, want %q", c.argv, paths(got), c.want)
			continue
		}
		for i, f := range got {
			if f.Path != c.want[i] || f.State != OK || f.SHA256 != sumOf(t, c.want[i]) || f.ID != idOf(t, c.want[i]) {
				t.Errorf("%q: %+v, want %s", c.argv, f, c.want[i])
			}
		}
	}
	if c := v.Counts(); c.Hashed != 4 || c.Opened != 8 || c.Failed != 0 {
		t.Errorf("true, sh, the loader and the script are hashed once each: %+v", c)
	}
	if got, err := os.ReadFile(filepath.Join(string(v.store), sumOf(t, script))); err != nil || string(got) != "#!/bin/sh\nexit 0\n" {
		t.Errorf("stored: %q, %v", got, err)
	}
}

// By descriptor, and without a name any more.
func TestExecutedWithoutName(t *testing.T) {
	v := watched(t, DefaultLimits, false, nil)
	name := program(t, "/bin/true")
	sum := sumOf(t, name)
	pid, err := v.own.do(spawn{Argv: []string{name}, Erase: true})
	must(t, err)
	got := v.Executed(pid, bootTime())
	if len(got) == 0 || got[0].SHA256 != sum || got[0].State != OK || !got[0].Gone || got[0].Path != name {
		t.Errorf("%s: %+v", paths(got), got)
	}
}

// A version is hashed again when the content may have changed, however soon.
func TestNewContentNewDigest(t *testing.T) {
	v := watched(t, DefaultLimits, false, nil)
	dir := t.TempDir()
	script := filepath.Join(dir, "s.sh")
	for i := range 20 {
		must(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\n: %d\n", i%10), 0o755))
		got := v.run(t, dir, script)
		if len(got) != 3 || got[0].SHA256 != sumOf(t, script) {
			t.Fatalf("round %d: %s", i, paths(got))
		}
	}
}

// A system file is not waited for again, until somebody writes to it.
func TestSystemFileIsWaitedForOnce(t *testing.T) {
	v := watched(t, DefaultLimits, true, nil)
	name, dir := program(t, "/bin/true"), t.TempDir()
	for round := range 3 {
		got := v.run(t, dir, name)
		if len(got) == 0 || got[0].Path != name || got[0].SHA256 != sumOf(t, name) || got[0].State != OK {
			t.Errorf("round %d, the first: %s", round, paths(got))
		}
		if got := v.run(t, dir, name); len(got) != 0 {
			t.Errorf("round %d, the second: %s", round, paths(got))
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = f.WriteString("x")
		must(t, err, f.Close())
	}
}

// Digests of system files are taken once a boot; scripts among them are read
// all the same, since their content is stored.
func TestCacheAcrossRuns(t *testing.T) {
	testenv.Root(t)
	cache, err := OpenCache(filepath.Join(t.TempDir(), "cache"), "boot-1")
	must(t, err)
	defer cache.Close()
	for run, hashed := range []uint64{2, 0} {
		v := watched(t, DefaultLimits, true, cache)
		got := v.run(t, "/", "/bin/true")
		if c := v.Counts(); len(got) != 2 || got[0].SHA256 != sumOf(t, "/bin/true") || c.Hashed != hashed || c.Cached != 2-hashed {
			t.Errorf("run %d: %s, %+v", run, paths(got), c)
		}
		if list, _ := os.ReadDir(string(v.store)); len(list) != 0 {
			t.Errorf("a system program was stored: %v", list)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Limits)
		want   string
	}{
		{"a file", func(l *Limits) { l.File = 100 << 10 }, "true ok, ld-linux-x86-64.so.2 too_big"},
		{"all", func(l *Limits) { l.Total = 100 << 10 }, "true ok, ld-linux-x86-64.so.2 limit"},
		{"nothing", func(l *Limits) { l.Total = 0 }, "true limit, ld-linux-x86-64.so.2 limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := DefaultLimits
			c.change(&l)
			v := watched(t, l, false, nil)
			got := strings.ReplaceAll(paths(v.run(t, "/", "/bin/true")), "aarch64.so.1", "x86-64.so.2")
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// Hashes that hang hold an execve for so long and no longer, and not each anew.
func TestHangingHashes(t *testing.T) {
	l := DefaultLimits
	l.Wait, l.Concurrent = 300*time.Millisecond, 1
	v := watched(t, l, false, nil)
	v.slots <- struct{}{} // one that never ends
	begun := time.Now()
	if got := paths(v.run(t, "/", "/bin/true")); !strings.HasPrefix(got, "true limit") || !strings.HasSuffix(got, " limit") {
		t.Error(got)
	}
	if d := time.Since(begun); d < l.Wait {
		t.Errorf("gave up after %v", d)
	}
	v.mu.Lock()
	v.hung = 1 // that one has been given up waiting for
	v.mu.Unlock()
	if got := paths(v.run(t, "/", "/bin/echo")); !strings.HasPrefix(got, "echo limit") {
		t.Error(got)
	}
	<-v.slots
}

// Many at once, of one file and of many.
func TestConcurrent(t *testing.T) {
	const rounds = 3 // emulated machines take seconds for each
	v := watched(t, DefaultLimits, false, nil)
	dir := t.TempDir()
	var group sync.WaitGroup
	for n := range 8 {
		own := filepath.Join(dir, fmt.Sprintf("s%d", n))
		must(t, os.WriteFile(own, fmt.Appendf(nil, "#!/bin/sh\n: %d\n", n), 0o755))
		c := v.client(t)
		group.Go(func() {
			for range rounds {
				for _, name := range []string{own, "/bin/true"} {
					pid, err := c.do(spawn{Dir: dir, Argv: []string{name}})
					if err != nil {
						t.Error(err)
						return
					}
					got := v.Executed(pid, bootTime())
					if len(got) < 2 || got[0].State != OK || filepath.Base(got[0].Path) != filepath.Base(name) {
						t.Errorf("%s: %s", name, paths(got))
					}
				}
			}
		})
	}
	group.Wait()
	if c := v.Counts(); c.Hashed != 11 || c.Opened != 8*rounds*5 {
		t.Errorf("8 scripts, sh, true and the loader are hashed once each: %+v", c)
	}
}

// Two images that one process had are told apart by the time of the report.
func TestExecutedInTurn(t *testing.T) {
	v := watched(t, DefaultLimits, false, nil)
	pid, err := v.own.do(spawn{Dir: "/", Argv: []string{"/usr/bin/env", "sleep", "0.01"}})
	must(t, err)
	v.mu.Lock()
	chain := append([]link(nil), v.chains[pid]...)
	v.mu.Unlock()
	if len(chain) != 4 {
		t.Fatalf("%d files were opened", len(chain))
	}
	if got := v.Executed(pid, chain[1].at); len(got) != 2 || filepath.Base(got[0].Path) != "env" {
		t.Errorf("first %s", paths(got))
	}
	if got := v.Executed(pid, chain[2].at-1); got != nil {
		t.Errorf("between %s", paths(got))
	}
	if got := v.Executed(pid, bootTime()); len(got) != 2 || filepath.Base(got[0].Path) != "sleep" {
		t.Errorf("then %s", paths(got))
	}
	if v.Executed(pid, bootTime()) != nil || len(v.chains) != 0 {
		t.Error("told twice")
	}
}

// neverAnswer is a child that holds every execve in its tree. It lets its parent
// know the tree, and when it holds one.
func neverAnswer() {
	w := New(Config{Limits: DefaultLimits})
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		var fd int
		fd, err = unix.OpenTree(int(root.Fd()), "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
		if err == nil {
			err = w.Mark([]Mount{{Tree: os.NewFile(uintptr(fd), "tree"), Source: root}})
		}
		fmt.Println(fd, err)
	}
	if err == nil {
		for err = unix.EINTR; err == unix.EINTR; {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(w.group.fd), Events: unix.POLLIN}}, -1)
		}
		fmt.Println("holds", err)
	}
	_ = unix.Pause()
	runtime.KeepAlive(w)
}

// The kernel's own rule, which the lifeline of a run makes up for: when the
// watcher dies, what it held goes on.
func TestWatcherDies(t *testing.T) {
	testenv.Root(t)
	watcher := exec.Command(os.Args[0])
	watcher.Env = append(os.Environ(), actVariable+"=never-answer")
	out, err := watcher.StdoutPipe()
	must(t, err, watcher.Start())
	defer watcher.Process.Kill()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	must(t, err)
	var fd int
	if n, _ := fmt.Sscanf(line, "%d <nil>", &fd); n != 1 {
		testenv.Missing(t, "fanotify", line)
	}
	// A shell executes it: os/exec would hold a thread, and with one CPU this process.
	held := exec.Command("/bin/sh", "-c", fmt.Sprintf("exec /proc/%d/fd/%d/bin/true", watcher.Process.Pid, fd))
	done, holds := make(chan error, 1), make(chan string, 1)
	go func() { done <- held.Run() }()
	go func() { line, _ := lines.ReadString('\n'); holds <- line }()
	select {
	case err := <-done:
		t.Fatalf("it was not held: %v", err)
	case line := <-holds:
		if line != "holds <nil>\n" {
			t.Fatalf("the watcher says %q", line)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it was not held for long: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, watcher.Process.Kill())
	_, _ = io.Copy(io.Discard, lines)
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("it is held for ever")
	}
	_ = watcher.Wait()
}
