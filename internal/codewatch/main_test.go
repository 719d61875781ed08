package codewatch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A child of the tests is this binary again, with the name of an act in this variable.
const actVariable = "AGENTGUARD_CODEWATCH_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		acts[act]()
		os.Exit(0)
	}
	os.Exit(testenv.Main(m))
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// dirStore is a Store in a directory of the test.
type dirStore string

func (d dirStore) Write(name string, content []byte) error {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// view is a tree of the host, as a run has it, that a Watch watches.
type view struct {
	*Watch
	tree  *os.File
	store dirStore
	own   *client
}

// watched makes a recursive copy of the host's root with a Watch on it; work is
// a writable file system of the run's own, mounted nowhere.
func watched(t *testing.T, limits Limits, system bool, cache *Cache) *view {
	t.Helper()
	testenv.Root(t)
	v := &view{store: dirStore(t.TempDir())}
	v.Watch = New(Config{Limits: limits, Store: v.store, Cache: cache})
	if v.Err() != nil {
		testenv.Missing(t, "fanotify", v.Err().Error())
	}
	t.Cleanup(func() { must(t, v.Release(), v.Close()) })
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	defer root.Close()
	fd, err := unix.OpenTree(int(root.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	must(t, err)
	v.tree = os.NewFile(uintptr(fd), "tree")
	t.Cleanup(func() { v.tree.Close() })
	must(t, v.Mark([]Mount{{Name: "/", Tree: v.tree, Source: root, System: system}}))
	v.Start()
	v.own = v.client(t)
	return v
}

// spawn is what a spawner is asked for.
type spawn struct {
	Dir   string
	Argv  []string
	Erase bool // Argv[0] is opened, erased and then executed by descriptor
}

type spawned struct {
	Pid uint32
	Err string
}

// spawner is a child that executes in the tree at descriptor 3. A process that
// watches must not do so by os/exec itself: its thread is stopped until the
// execve is through (CLONE_VFORK), which a garbage collection would wait for,
// and so would the answer.
func spawner() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var s spawn
		if in.Decode(&s) != nil {
			return
		}
		cmd := &exec.Cmd{Path: s.Argv[0], Args: s.Argv, Dir: s.Dir, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Chroot: "/proc/self/fd/3"}}
		if s.Erase {
			f, err := os.Open("/proc/self/fd/3" + s.Argv[0])
			if err == nil {
				err = os.Remove(s.Argv[0])
			}
			cmd = &exec.Cmd{Path: "/proc/self/fd/3", Args: s.Argv, Err: err, ExtraFiles: []*os.File{f}}
		}
		done := spawned{}
		if err := cmd.Run(); err != nil {
			done.Err = err.Error()
		}
		if cmd.Process != nil {
			done.Pid = uint32(cmd.Process.Pid)
		}
		if out.Encode(done) != nil {
			return
		}
	}
}

// client talks to a spawner.
type client struct {
	in  *json.Encoder
	out *json.Decoder
}

func (v *view) client(t testing.TB) *client {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = append(os.Environ(), actVariable+"=spawner"), os.Stderr, []*os.File{v.tree}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	t.Cleanup(func() { must(t, in.Close(), cmd.Wait()) })
	return &client{json.NewEncoder(in), json.NewDecoder(out)}
}

// do executes and returns the process, which has ended.
func (c *client) do(s spawn) (uint32, error) {
	var done spawned
	if err := errors.Join(c.in.Encode(s), c.out.Decode(&done)); err != nil {
		return 0, err
	}
	if done.Err != "" {
		return done.Pid, errors.New(done.Err)
	}
	return done.Pid, nil
}

// run runs a program to its end and returns what it opened to execute.
func (v *view) run(t *testing.T, dir string, argv ...string) []*File {
	t.Helper()
	pid, err := v.own.do(spawn{Dir: dir, Argv: argv})
	must(t, err)
	return v.Executed(pid, bootTime())
}

func sumOf(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// program copies a program of the host to a place of the test.
func program(t testing.TB, from string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	must(t, err)
	name := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(name, b, 0o755))
	return name
}

// ask submits a request and waits for its outcome.
func ask(t *testing.T, submit func(Request), r Request) *File {
	t.Helper()
	got := make(chan *File, 1)
	var once sync.Once
	r.Done = func(f *File) { once.Do(func() { got <- f }) }
	submit(r)
	select {
	case f := <-got:
		return f
	case <-time.After(time.Minute):
		t.Fatal("no outcome")
		return nil
	}
}

// idOf is what a record of the kernel's would call the file.
func idOf(t *testing.T, name string) ID {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	return ID{st.Dev, st.Ino}
}

var acts = map[string]func(){"never-answer": neverAnswer, "memfd": execMemfd, "spawner": spawner}
