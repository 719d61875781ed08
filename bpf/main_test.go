package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A child of the tests is this binary again, with the name of an act in this
// variable: it is born into the leaf, so it cannot be done in-process.
const actVariable = "AGENTGUARD_BPF_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		os.Exit(perform(act))
	}
	os.Exit(testenv.Main(m, func() error { return common.remove() }))
}

func perform(act string) int {
	f := acts[act]
	if f == nil {
		fmt.Fprintln(os.Stderr, "no act", act)
		return 99
	}
	if err := f(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// host is a parent cgroup and a bpffs of the test's own.
type host struct {
	t      testing.TB
	cfg    Config
	leaves int
	shared bool
}

func newHost(t testing.TB) *host {
	t.Helper()
	require(t)
	root, level := cgroupRoot(t)
	dir := filepath.Join(root, testenv.CgroupName())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, cfg: Config{PinDir: filepath.Join(t.TempDir(), "bpf"), Parent: dir, Level: level + 1}}
	t.Cleanup(func() { h.clean() })
	return h
}

// common is the host of tests that only run something below programs which are
// pinned already: to verify them takes a second, on an emulated machine ten.
var common *host

func sharedHost(t testing.TB) *host {
	t.Helper()
	require(t)
	if common == nil {
		root, level := cgroupRoot(t)
		dir, err := os.MkdirTemp("", "agentguard-bpf-")
		if err != nil {
			t.Fatal(err)
		}
		common = &host{cfg: Config{PinDir: filepath.Join(dir, "bpf"), Parent: filepath.Join(root, testenv.CgroupName()), Level: level + 1}}
		if err := os.Mkdir(common.cfg.Parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := &host{t: t, cfg: common.cfg, shared: true}
	t.Cleanup(func() { h.clean() })
	return h
}

// remove takes away the host that the tests shared.
func (h *host) remove() error {
	if h == nil {
		return nil
	}
	err := unmount(h.cfg.PinDir)
	return errors.Join(err, removeCgroup(h.cfg.Parent), os.RemoveAll(filepath.Dir(h.cfg.PinDir)))
}

func unmount(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return os.NewSyscallError("umount "+dir, err)
}

func (h *host) clean() {
	dirs, _ := filepath.Glob(filepath.Join(h.cfg.Parent, "*/"))
	if !h.shared {
		if err := unmount(h.cfg.PinDir); err != nil {
			h.t.Error(err)
		}
		dirs = append(dirs, h.cfg.Parent)
	}
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			continue
		}
		if err := removeCgroup(dir); err != nil {
			h.t.Error(err)
		}
	}
}

func removeCgroup(dir string) error {
	var err error
	for range 200 {
		if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("rmdir %s: %w", dir, err)
}

func require(t testing.TB) {
	t.Helper()
	testenv.Root(t)
	if err := bpfError(); err != nil {
		testenv.Missing(t, "bpf", err.Error())
	}
}

// bpfError is why this kernel lets us load nothing at all. That our own
// programs fail to load is a failure of the tests, not a reason to skip them.
var bpfError = sync.OnceValue(func() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	return m.Close()
})

// cgroupRoot finds the v2 hierarchy and the level of a directory directly below its root.
func cgroupRoot(t testing.TB) (string, int) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, 1
		}
	}
	testenv.Missing(t, "cgroup", "no cgroup v2 hierarchy is mounted")
	return "", 0
}

func (h *host) open() *Programs {
	h.t.Helper()
	p, err := Open(h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { p.Close() })
	return p
}

func (h *host) leaf() *os.File {
	h.t.Helper()
	h.leaves++
	dir := filepath.Join(h.cfg.Parent, fmt.Sprint("leaf", h.leaves))
	if err := os.Mkdir(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

// act makes a child that performs act in the leaf, in a network namespace of
// its own with lo up.
func act(leaf *os.File, name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), actVariable+"="+name, "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(leaf.Fd()), Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
	}
	return cmd
}

// recorder reads a run into memory.
type recorder struct {
	run    *Run
	leaf   *os.File
	mu     sync.Mutex
	events []Event
	done   chan error
}

func (h *host) start(p *Programs, cfg RunConfig) *recorder {
	h.t.Helper()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		h.t.Fatal(err)
	}
	cfg.CgroupID = id
	run, err := p.Start(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { run.Close() })
	rec := &recorder{run: run, leaf: leaf, done: make(chan error, 1)}
	go func() { rec.done <- run.Read(rec.keep) }()
	return rec
}

func (r *recorder) keep(ev *Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, clone(ev))
	return nil
}

func clone(ev *Event) Event {
	c := *ev
	for _, b := range []*[]byte{
		&c.Exec.File, &c.Exec.Args, &c.Exec.Env, &c.Exec.Interp, &c.Exec.Image.Text, &c.Call.Path, &c.Call.Path2, &c.Call.Addr,
		&c.Call.Dir.Text, &c.Call.Dir2.Text, &c.File.Path.Text, &c.File.Given, &c.Socket.Text,
		&c.Object.Path.Text, &c.Object.Path2.Text, &c.Object.Text,
	} {
		*b = append([]byte(nil), *b...)
	}
	return c
}

// finish waits for the cgroup to be empty, stops the run and returns what it recorded.
func (r *recorder) finish(t testing.TB) ([]Event, Stats) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		busy, err := populated(int(r.leaf.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if !busy {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("leaf is still populated")
		}
		time.Sleep(time.Millisecond)
	}
	if err := r.run.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	stats, err := r.run.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run.Close(); err != nil {
		t.Fatal(err)
	}
	return r.events, stats
}

// complete repeats a run that admits that it is incomplete: a kernel that preempts
// tracepoints skips a program now and then, more so in an emulated machine. What
// is still so at last is the caller's to judge.
func (h *host) complete(once func() ([]Event, Stats)) ([]Event, Stats) {
	h.t.Helper()
	for try := 1; ; try++ {
		events, stats := once()
		if stats.Missed == 0 || try == 5 {
			return events, stats
		}
		mayMiss(h.t, stats)
		h.t.Logf("%d programs were skipped", stats.Missed)
	}
}

// observe runs one act in a fresh run and returns the record, which is complete where that can be had.
func (h *host) observe(p *Programs, cfg RunConfig, name string, args ...string) ([]Event, Stats) {
	h.t.Helper()
	if slices.Contains([]string{"changes", "maps", "names"}, name) { // the second time they would find what they made
		return h.observeOnce(p, cfg, name, args...)
	}
	return h.complete(func() ([]Event, Stats) { return h.observeOnce(p, cfg, name, args...) })
}

func (h *host) observeOnce(p *Programs, cfg RunConfig, name string, args ...string) ([]Event, Stats) {
	h.t.Helper()
	rec := h.start(p, cfg)
	if out, err := act(rec.leaf, name, args...).CombinedOutput(); err != nil {
		h.t.Fatalf("act %s: %v %s", name, err, out)
	}
	events, stats := rec.finish(h.t)
	if testing.Verbose() {
		logAll(h.t, events)
	}
	return events, stats
}

func logAll(t testing.TB, events []Event) {
	t.Helper()
	for i := range events {
		t.Log(describe(&events[i]))
	}
}

func describe(ev *Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cpu%d #%d %d.%09d type=%d class=%d phase=%d flags=%d %d/%d nr=%d ret=%d", ev.CPU, ev.Seq,
		ev.Time/1e9, ev.Time%1e9, ev.Type, ev.Class, ev.Phase, ev.Flags, ev.TGID, ev.TID, ev.NR, ev.Ret)
	switch ev.Type {
	case Exec, ExecArgs:
		fmt.Fprintf(&b, " exec %q is %q argc=%d len=%d off=%d args=%.100q dev=%x ino=%d ppid=%d nspid=%d", ev.Exec.File, ev.Exec.Image.Text, ev.Exec.Argc, ev.Exec.ArgsLen, ev.Exec.Offset, ev.Exec.Args, ev.Exec.Dev, ev.Exec.Inode, ev.Exec.PPID, ev.Exec.NSPID)
	case Fork:
		fmt.Fprintf(&b, " fork %+v", ev.Fork)
	case Exit:
		fmt.Fprintf(&b, " exit %+v", ev.Exit)
	case Deny, ExecFail, Call:
		fmt.Fprintf(&b, " call path=%q path2=%q addr=%x args=%x dir=%q dir2=%q ino=%d object=%d refused=%+v", ev.Call.Path, ev.Call.Path2, ev.Call.Addr, ev.Call.Args, ev.Call.Dir.Text, ev.Call.Dir2.Text, ev.Call.Inode, ev.Call.Object, ev.Call.Refused)
	case Object:
		fmt.Fprintf(&b, " object path=%q path2=%q text=%q ino=%d", ev.Object.Path.Text, ev.Object.Path2.Text, ev.Object.Text, ev.Object.Inode)
	case File, Repeat, FD, Receive:
		fmt.Fprintf(&b, " file path=%q given=%q %+v", ev.File.Path.Text, ev.File.Given, ev.File)
	default:
		fmt.Fprintf(&b, " socket %+v", ev.Socket)
	}
	return b.String()
}
