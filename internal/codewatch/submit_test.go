package codewatch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func unwatched(t *testing.T, limits Limits) *view {
	t.Helper()
	v := &view{store: dirStore(t.TempDir())}
	v.Watch = New(Config{Limits: limits, Store: v.store})
	t.Cleanup(func() { must(t, v.Release(), v.Close()) })
	return v
}

func slash(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestPath(t *testing.T) {
	testenv.Root(t)
	v, root := unwatched(t, DefaultLimits), slash(t)
	name := program(t, "/bin/true")
	must(t, os.Symlink(name, name+".link"), unix.Mkfifo(name+".fifo", 0o600))
	id := idOf(t, name)
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	for _, c := range []struct {
		name, path string
		r          Request
		state      State
		stored     bool
	}{
		{"the file", name, Request{ID: id}, OK, true},
		{"and its version", name, Request{ID: id, Ctime: st.Ctim.Nano()}, OK, true},
		{"another version", name, Request{ID: id, Ctime: st.Ctim.Nano() - 1}, Raced, true},
		{"another file", "/bin/true", Request{ID: id}, Raced, false},
		{"no file", name + ".gone", Request{ID: id}, Raced, false},
		{"a link to it", name + ".link", Request{ID: id}, Raced, false},
		{"a fifo", name + ".fifo", Request{ID: idOf(t, name+".fifo")}, Error, false},
		{"a directory", "/", Request{ID: idOf(t, "/")}, Error, false},
	} {
		f := ask(t, func(r Request) { v.Path(root, c.path, r) }, c.r)
		if f.State != c.state || f.ID != c.r.ID || f.Stored != c.stored || c.state == OK && f.SHA256 != sumOf(t, name) {
			t.Errorf("%s: %+v, want %s", c.name, f, c.state)
		}
	}
	if left := v.Wait(); left != 0 {
		t.Errorf("%d are left", left)
	}
}

// execMemfd is a child that becomes a program without a name, and lives on.
func execMemfd() {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err == nil {
		var b []byte
		if b, err = os.ReadFile("/bin/sleep"); err == nil {
			_, err = unix.Write(fd, b)
		}
	}
	if err == nil {
		err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"sleep", "60"}, nil)
	}
	fmt.Println(err)
}

func TestMemfd(t *testing.T) {
	testenv.Root(t)
	v := unwatched(t, DefaultLimits)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), actVariable+"=memfd")
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	exe := fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		link, err := os.Readlink(exe) // fails for a moment, when another thread than the first executes
		if filepath.Base(link) == "memfd:x (deleted)" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q, %v", link, err)
		}
	}
	f := ask(t, v.Exe, Request{ID: idOf(t, exe), PID: uint32(cmd.Process.Pid)})
	if f.State != Memfd || f.SHA256 != sumOf(t, "/bin/sleep") || f.Gone || f.Path != "memfd:x" || !f.Stored {
		t.Errorf("%+v", f)
	}
	if f := ask(t, v.Exe, Request{ID: ID{1, 2}, PID: uint32(cmd.Process.Pid)}); f.State != Raced || f.SHA256 != "" {
		t.Errorf("of another file: %+v", f)
	}
	if f := ask(t, v.Exe, Request{ID: ID{1, 2}, PID: 1 << 30}); f.State != Raced {
		t.Errorf("of no process: %+v", f)
	}
}

// What is wanted is stored even when its digest was known without reading it.
func TestKeep(t *testing.T) {
	testenv.Root(t)
	v := watched(t, DefaultLimits, true, nil)
	v.run(t, "/", "/bin/true")
	id := idOf(t, "/bin/true")
	if f := ask(t, func(r Request) { v.Path(v.tree, "/usr/bin/true", r) }, Request{ID: id, Keep: true}); !f.Stored || f.State != OK {
		t.Errorf("%+v", f)
	}
	if got := sumOf(t, filepath.Join(string(v.store), sumOf(t, "/bin/true"))); got != sumOf(t, "/bin/true") {
		t.Error(got)
	}
}

// What can be written to without a trace is not said to be what ran.
func TestHeldForWriting(t *testing.T) {
	testenv.Root(t)
	v, root := unwatched(t, DefaultLimits), slash(t)
	for i, want := range []State{OK, Raced, Raced, OK} {
		name := program(t, "/bin/true")
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		if i != 1 { // else it is open besides
			must(t, f.Close())
		}
		if want == OK {
			must(t, unix.Munmap(m))
		}
		got := ask(t, func(r Request) { v.Path(root, name, r) }, Request{ID: idOf(t, name)})
		if got.State != want || got.SHA256 != sumOf(t, name) {
			t.Errorf("%d: %+v, want %s", i, got, want)
		}
		if want == Raced {
			must(t, unix.Munmap(m))
		}
		f.Close()
	}
}

// What a process of this machine serves is not asked for, and so not opened.
func TestFUSE(t *testing.T) {
	testenv.Root(t)
	v, root := unwatched(t, DefaultLimits), slash(t)
	name := program(t, "/bin/true")
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	id, err := mountID(int(f.Fd()))
	must(t, err)
	v.mounts.byID[id] = mount{dev: idOf(t, name).Dev, fuse: true}
	got := ask(t, func(r Request) { v.Path(root, name, r) }, Request{ID: idOf(t, name)})
	if got.State != FUSE || got.SHA256 != "" || got.Path != name || v.Counts().Bytes != 0 {
		t.Errorf("%+v", got)
	}
}

func TestInput(t *testing.T) {
	testenv.Root(t)
	v := unwatched(t, DefaultLimits)
	name := program(t, "/bin/true")
	for _, c := range []struct {
		from string
		want bool
	}{{name, true}, {"/dev/null", false}, {"/", false}} {
		in, err := os.Open(c.from)
		must(t, err)
		cmd := exec.Command("/bin/sleep", "60")
		cmd.Stdin = in
		must(t, cmd.Start(), in.Close())
		asked := false
		f := ask(t, func(r Request) {
			if asked = v.Input(r); !asked {
				r.Done(nil)
			}
		}, Request{PID: uint32(cmd.Process.Pid), Keep: true})
		if asked != c.want || asked && (f.ID != idOf(t, name) || f.State != OK || !f.Stored) {
			t.Errorf("%s: %v, %+v", c.from, asked, f)
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	if v.Input(Request{PID: 1 << 30}) {
		t.Error("of no process")
	}
}

func TestText(t *testing.T) {
	l := DefaultLimits
	l.Object = 5
	v := unwatched(t, l)
	if f := v.Text([]byte("hello")); !f.Stored || f.SHA256 != "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" || f.Size != 5 || f.State != OK {
		t.Errorf("%+v", f)
	}
	if f := v.Text([]byte("hello!")); f.Stored || f.SHA256 == "" {
		t.Errorf("%+v", f)
	}
}
