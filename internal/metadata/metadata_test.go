//go:build linux

package metadata

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The caller is this process itself: its memory and its /proc are read as another's would be.
func call(name string, args ...uint64) *Call {
	c := &Call{Name: name, TID: uint32(unix.Gettid()), Waits: func() bool { return true }}
	copy(c.Args[:], args)
	return c
}

// kept keeps what calls point to.
var kept [][]byte

func at(b []byte) uint64 {
	kept = append(kept, b)
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

func text(s string) uint64 { return at(append([]byte(s), 0)) }

const here = uint64(0xffffff9c) // AT_FDCWD as the register of an int

// world is a directory with a tree and what lies outside of it.
func world(t *testing.T) (c *Changer, dir string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"in/sub", "inner", "out"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for _, f := range []string{"in/f", "in/sub/g", "out/f", "inner/f", "file", "file2", "in/s p (deleted)"} {
		must(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
	}
	for to, name := range map[string]string{"f": "in/link", "../out/f": "in/away", "../out": "in/dir", "in/f": "into", "/proc/self/fd/0": "in/magic", "sub/../f": "in/round", "loop": "in/loop"} {
		must(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	must(t, os.Link(filepath.Join(dir, "out/f"), filepath.Join(dir, "in/hard")))
	var trees []Tree
	for _, name := range []string{"in", "file"} {
		fd, err := unix.Open(filepath.Join(dir, name), unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		trees = append(trees, Tree{FD: fd, Dir: name == "in"})
	}
	c, err = New(trees)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mode(t *testing.T, name string) os.FileMode {
	t.Helper()
	st, err := os.Lstat(name)
	must(t, err)
	return st.Mode()
}

// Where a path leads decides, not how it is written.
func TestWhere(t *testing.T) {
	c, dir := world(t)
	for path, want := range map[string]string{ // the file that is changed; "": none is
		"in/f": "in/f", "in/sub/g": "in/sub/g", "in/sub": "in/sub", "in": "in", "in/": "in", "in/link": "in/f", "into": "in/f", "in/round": "in/f",
		"out/../in/sub/../f": "in/f", "in/s p (deleted)": "in/s p (deleted)", "file": "file",
		"out/f": "", "in/away": "", "in/dir/f": "", "in/../out/f": "", "in/hard": "", "inner/f": "", "inner": "", "file2": "", "out": "", ".": "", "in/magic": "",
	} {
		before := map[string]os.FileMode{}
		_ = filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
			before[p] = mode(t, p)
			return err
		})
		errno, done := c.Change(call("chmod", text(filepath.Join(dir, "")+"/"+path), 0o4710))
		if done != (want != "") || errno != 0 {
			t.Errorf("%s: %v %v, want %q", path, done, errno, want)
		}
		for p, m := range before {
			if now := mode(t, p); (now != m) != (p == filepath.Join(dir, want) && want != "") {
				t.Errorf("%s: %s is %v, was %v", path, p, now, m)
			}
			if m&os.ModeSymlink == 0 {
				must(t, os.Chmod(p, m))
			}
		}
	}
}

// What the kernel would answer is answered, and nothing is found that lies outside.
func TestAnswers(t *testing.T) {
	c, dir := world(t)
	f, err := os.Open(filepath.Join(dir, "in"))
	must(t, err)
	defer f.Close()
	fd := uint64(f.Fd())
	ts := make([]byte, 32)
	binary.LittleEndian.PutUint64(ts, 1000)
	binary.LittleEndian.PutUint64(ts[16:], 2000)
	in := filepath.Join(dir, "in/f")
	for _, k := range []struct {
		call *Call
		done bool
		want unix.Errno
	}{
		{call("fchmodat", fd, text("f"), 0o600), true, 0},
		{call("fchmodat", fd, text("../out/f"), 0o600), false, 0},
		{call("fchmodat", fd, text("none"), 0o600), true, unix.ENOENT},
		{call("fchmodat", fd, text("f/x"), 0o600), true, unix.ENOTDIR},
		{call("fchmodat", fd, text("loop"), 0o600), true, unix.ELOOP},
		{call("fchmodat", fd, text("magic"), 0o600), false, 0},
		{call("fchmodat", 9999, text("f"), 0o600), false, 0},
		{call("fchmodat", fd, text(""), 0o600), false, 0},
		{call("fchmodat", fd, 8, 0o600), false, 0},
		{call("fchmodat2", fd, text("link"), 0o600, unix.AT_SYMLINK_NOFOLLOW), true, unix.EOPNOTSUPP},
		{call("fchmodat2", fd, text(""), 0o755, unix.AT_EMPTY_PATH), true, 0},
		{call("fchmodat2", fd, text("f"), 0o755, unix.AT_STATX_FORCE_SYNC), false, 0},
		{call("chmod", text(fmt.Sprintf("/proc/self/fd/%d", fd)), 0o755), true, 0},
		{call("lchown", text(fmt.Sprintf("/proc/self/fd/%d", fd)), 0xffffffff, 0xffffffff), false, 0},
		{call("lsetxattr", text(fmt.Sprintf("/proc/self/fd/%d", fd)), text("user.x"), text("v"), 1, 0), false, 0},
		{call("utimensat", here, text(fmt.Sprintf("/proc/self/fd/%d", fd)), at(ts), unix.AT_SYMLINK_NOFOLLOW), false, 0},
		{call("lchown", text("/proc/self/fd/9999"), 0xffffffff, 0xffffffff), false, 0},
		{call("chmod", text("/proc/self/fd/0"), 0o755), false, 0},
		{call("chmod", text("/proc/self/fd/"), 0o755), false, 0},
		{call("chmod", text("/proc/self/mem"), 0o755), false, 0},
		{call("chmod", text(strings.Repeat("x", 5000)), 0o755), false, 0},
		{call("fchownat", fd, text("f"), 0xffffffff, 0xffffffff, 0), true, 0},
		{call("lchown", text(filepath.Join(dir, "in/away")), uint64(os.Getuid()), uint64(os.Getgid())), true, 0},
		{call("chown", text(filepath.Join(dir, "in/away")), 0xffffffff, 0xffffffff), false, 0},
		{call("utimensat", fd, text("f"), at(ts), 0), true, 0},
		{call("utimensat", fd, text("f"), 8, 0), false, 0},
		{call("utimensat", here, text(in), 0, 0), true, 0},
		{call("utimes", text(in), at(ts)), true, 0},
		{call("utime", text(in), at(ts[:16])), true, 0},
		{call("setxattr", text(in), text("security.x"), text("v"), 1, 0), false, 0},
		{call("setxattr", text(in), text("system.posix_acl_access"), text("v"), 1, 0), true, unix.EINVAL},
		{call("setxattr", text(in), text("system.posix_acl_accessx"), text("v"), 1, 0), false, 0},
		{call("setxattr", text(in), text("trusted.x"), text("v"), 1, 0), false, 0},
		{call("lsetxattr", text(filepath.Join(dir, "in/away")), text("user.x"), text("v"), 1, 0), true, unix.EPERM},
		{call("setxattr", text(in), text("user.x"), text("v"), 1<<20, 0), true, unix.E2BIG},
		{call("setxattr", text(filepath.Join(dir, "out/f")), text("user.x"), text("v"), 1, 0), false, 0},
		{call("setxattrat", fd, text("f")), false, 0},
		{call("file_setattr", fd, text("f")), false, 0},
		{call("open", text(in)), false, 0},
	} {
		if errno, done := c.Change(k.call); errno != k.want || done != k.done {
			t.Errorf("%s%#x: %v %v, want %v %v", k.call.Name, k.call.Args, errno, done, k.want, k.done)
		}
	}
	gone := call("chmod", text(in), 0o777)
	gone.Waits = func() bool { return false }
	if _, done := c.Change(gone); done || mode(t, in)&0o777 == 0o777 {
		t.Error("for a caller that does not wait any more")
	}
}

// The values arrive.
func TestValues(t *testing.T) {
	c, dir := world(t)
	in := filepath.Join(dir, "in/f")
	ts := make([]byte, 32)
	for i, v := range []uint64{1000, 5, 2000, 6} {
		binary.LittleEndian.PutUint64(ts[8*i:], v)
	}
	for name, nsec := range map[string]int64{"utimes": 6000, "utimensat": 6} {
		k := call(name, text(in), at(ts))
		if name == "utimensat" {
			k = call(name, here, text(in), at(ts))
		}
		if errno, done := c.Change(k); errno != 0 || !done {
			t.Fatalf("%s: %v %v", name, errno, done)
		}
		st, err := os.Stat(in)
		must(t, err)
		if m := st.Sys().(*syscall.Stat_t); m.Mtim.Sec != 2000 || m.Mtim.Nsec != nsec || m.Atim.Sec != 1000 {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if errno, done := c.Change(call("setxattr", text(in), text("user.x"), at(bytes.Repeat([]byte("v"), 9000)), 3, 0)); errno == unix.EOPNOTSUPP {
		t.Log("this file system has no user attributes")
	} else if errno != 0 || !done {
		t.Errorf("setxattr: %v %v", errno, done)
	} else {
		b := make([]byte, 9)
		if n, err := unix.Getxattr(in, "user.x", b); n != 3 || err != nil {
			t.Errorf("%q %v", b[:max(n, 0)], err)
		}
		if errno, done := c.Change(call("removexattr", text(in), text("user.x"))); errno != 0 || !done {
			t.Errorf("removexattr: %v %v", errno, done)
		}
	}
}

// While another process renames, swaps links and exchanges directories as fast as it can, a
// file outside is never changed.
func TestRaces(t *testing.T) {
	c, dir := world(t)
	victim := filepath.Join(dir, "out/f")
	must(t, os.Remove(filepath.Join(dir, "in/hard")))
	goOn := filepath.Join(t.TempDir(), "go on")
	must(t, os.WriteFile(goOn, nil, 0o600))
	script := `cd "$0"; while [ -e "$1" ]; do
ln -sfn ../../out in/sub/x; ln -sfn ../out/f in/y; mv -T in/sub/x in/x 2>/dev/null; rm -f in/x in/y; mkdir in/x; : >in/x/f; : >in/y; rm -r in/x in/y; done`
	cmd := exec.Command("sh", "-c", script, dir, goOn)
	must(t, cmd.Start())
	defer func() { // not killed: a mkdir of it would live on
		_ = os.Remove(goOn)
		_ = cmd.Wait()
	}()
	must(t, os.Symlink("../out/f", filepath.Join(dir, "in/b")))
	must(t, os.WriteFile(filepath.Join(dir, "in/a"), nil, 0o644))
	stop := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "in/a"), unix.AT_FDCWD, filepath.Join(dir, "in/b"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	changed := 0
	for i := range 3000 {
		for _, name := range []string{"in/a", "in/b", "in/x/f", "in/y"} {
			if errno, done := c.Change(call("chmod", text(filepath.Join(dir, name)), uint64(0o600|i&1<<6))); done && errno == 0 {
				changed++
			}
		}
		if m := mode(t, victim); m != 0o644 {
			t.Fatalf("round %d: the file outside is %v", i, m)
		}
		kept = nil
	}
	close(stop)
	<-swapped
	if changed == 0 {
		t.Error("nothing was changed at all: the race was none")
	}
}

// Memory and names that change under it are read once.
func TestPathChanges(t *testing.T) {
	c, dir := world(t)
	good, bad := filepath.Join(dir, "in/f"), filepath.Join(dir, "out/f")
	buf := append([]byte(bad), make([]byte, 8)...)
	k := call("chmod", at(buf), 0o600)
	k.Waits = func() bool { // the last moment before it acts
		copy(buf, append([]byte(good), 0))
		return true
	}
	if _, done := c.Change(k); done {
		t.Error("it was read again")
	}
	copy(buf, append([]byte(good), 0))
	k.Waits = func() bool {
		copy(buf, append([]byte(bad), 0))
		return true
	}
	if errno, done := c.Change(k); !done || errno != 0 || mode(t, bad) != 0o644 || mode(t, good) != 0o600 {
		t.Errorf("%v %v", done, errno)
	}
}

// Root, and whoever has a capability, is more than the command is.
func TestAble(t *testing.T) {
	if os.Getuid() != 0 {
		testenv.Missing(t, "root", "to be somebody else")
	}
	if Able() == nil {
		t.Error("root may")
	}
	exe := reachable(t)
	for _, caps := range [][]uintptr{nil, {unix.CAP_FOWNER}, {unix.CAP_DAC_READ_SEARCH}} {
		cmd := exec.Command(exe)
		cmd.Env = []string{"AGENTGUARD_ABLE=1"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 424377, Gid: 424377}, AmbientCaps: caps}
		out, err := cmd.Output()
		if ok := string(out) == "able\n"; err != nil || ok != (caps == nil) {
			t.Errorf("%v: %q %v", caps, out, err)
		}
	}
}

// reachable is this program where everybody may execute it.
func reachable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	dir, err := os.MkdirTemp("", "agentguard-metadata-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	b, err := os.ReadFile(exe)
	must(t, err)
	to := filepath.Join(dir, "test")
	must(t, os.WriteFile(to, b, 0o755))
	return to
}

func TestMain(m *testing.M) {
	if os.Getenv("AGENTGUARD_ABLE") != "" {
		if Able() == nil {
			fmt.Println("able")
		}
		return
	}
	os.Exit(testenv.Main(m))
}
