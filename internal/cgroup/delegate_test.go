package cgroup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// delegateUID is a user without rights, to whom the tests delegate.
const delegateUID = 64321

func TestUnifiedPath(t *testing.T) {
	for text, want := range map[string]string{
		"0::/user.slice/a b.scope\n":              "/user.slice/a b.scope",
		"4:memory:/x\n1:name=systemd:/y\n0::/z\n": "/z",
		"4:memory:/x\n":                           "",
		"0::/../other\n":                          "",
		"0::/gone (deleted)\n":                    "",
		"":                                        "",
	} {
		got, ok := unifiedPath([]byte(text))
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v", text, got, ok)
		}
	}
}

// delegation is what an act that was born in a delegated cgroup tells.
type delegation struct {
	Error   string
	Refused bool // the error wraps ErrNotDelegated
	Path    string
	Own     string
	Missing []string

	During, After string // the act's own cgroup
	Leaf          string // of the child that it started in a leaf
	Limits        string // pids.max and memory.max of that
	Swept         []string
}

// delegated makes a cgroup for the test's user, below one of the test's own.
func delegated(t *testing.T, uid int) string {
	t.Helper()
	dir := filepath.Join(testParent(t).Path, "delegated")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := write(dir, "cgroup.kill", "1"); err != nil {
			t.Error(err)
		}
		old, _ := filepath.Glob(filepath.Join(dir, "agentguard-*"))
		if err := removeAll(append(old, dir), 2*time.Minute); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(dir, name), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// actIn returns an act of the test's user that is born in dir.
func actIn(t *testing.T, dir, name string) *exec.Cmd {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{actVariable + "=" + name}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(f.Fd()), Credential: &syscall.Credential{Uid: delegateUID, Gid: delegateUID},
	}
	return cmd
}

func tellIn(t *testing.T, dir, name string) (d delegation) {
	t.Helper()
	out, err := actIn(t, dir, name).Output()
	if err == nil {
		err = json.Unmarshal(out, &d)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return d
}

func tell(fn func(d *delegation, p *Parent) error, ours ...int) {
	var d delegation
	p, err := ownParent(ours...)
	if err == nil {
		d.Path, d.Own, d.Missing = p.Path, p.Own, p.Missing
		err = errors.Join(fn(&d, p), p.Leave())
		d.After = ownCgroup()
	}
	if err != nil {
		d.Error, d.Refused = err.Error(), errors.Is(err, ErrNotDelegated)
	}
	if err := json.NewEncoder(os.Stdout).Encode(d); err != nil {
		panic(err)
	}
}

func ownParent(ours ...int) (*Parent, error) {
	l, err := Detect()
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return l.Delegated(self, ours...)
}

func ownCgroup() string {
	self, _ := os.ReadFile("/proc/self/cgroup")
	path, _ := unifiedPath(self)
	return path
}

// tellWithChild has another process of its own beside it.
func tellWithChild() {
	child := exec.Command("/bin/sleep", "1000")
	if err := child.Start(); err != nil {
		panic(err)
	}
	tell(useDelegated, child.Process.Pid)
	_ = child.Process.Kill()
	_ = child.Wait()
}

// useDelegated does what a run does: a leaf with limits, a birth in it, a freeze,
// a kill, and nothing is left.
func useDelegated(d *delegation, p *Parent) error {
	d.During = ownCgroup()
	l, err := p.New("x", Limits{Memory: 64 << 20, Tasks: 20}, 1)
	if err != nil {
		return err
	}
	max1, _ := read(l.Path, "pids.max")
	max2, _ := read(l.Path, "memory.max")
	d.Limits = strings.Join(strings.Fields(string(max1)+" "+string(max2)), " ")
	cmd, err := waitIn(l)
	if err != nil {
		return errors.Join(err, l.Remove(time.Second))
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	d.Leaf, _ = unifiedPath(b)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, _, cpu := l.CPU()
	err = errors.Join(l.Freeze(true), l.Freeze(false), cpu, l.Kill(ctx))
	_ = cmd.Wait()
	return errors.Join(err, l.Remove(2*time.Minute))
}

func waitIn(l *Leaf) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{actVariable + "=wait"}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.Dir().Fd())}
	_, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	_, err := io.ReadFull(out, make([]byte, len("here\n")))
	return cmd, err
}

// abandonDelegated dies with a leaf that is in use.
func abandonDelegated(_ *delegation, p *Parent) error {
	l, err := p.New("x", Limits{}, 1)
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.Dir().Fd())}
	if err := cmd.Start(); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

func sweepDelegated(d *delegation, p *Parent) (err error) {
	l, err := p.New("live", Limits{}, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	d.Swept, err = p.Sweep(ctx, func(string) bool { return false }) // the lock alone says that "live" is alive
	return errors.Join(err, l.Remove(2*time.Minute))
}

func left(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// A user in a cgroup of its own has leaves with all that the cgroup can give, and
// leaves it as it was.
func TestDelegated(t *testing.T) {
	dir := delegated(t, delegateUID)
	for _, act := range []string{"delegated", "with child", "delegated"} {
		d := tellIn(t, dir, act)
		if d.Error != "" || d.Path != dir {
			t.Fatalf("%+v", d)
		}
		if !strings.HasSuffix(d.Leaf, "/delegated/agentguard-x.run") || !strings.HasSuffix(d.After, "/delegated") {
			t.Errorf("%+v", d)
		}
		have := strings.Fields(content(t, dir, "cgroup.controllers"))
		all := slices.Contains(have, Memory) && slices.Contains(have, Pids)
		if all && (d.Own == "" || !strings.HasSuffix(d.During, ownSuffix) || len(d.Missing) > 0 || d.Limits != "21 67108864") {
			t.Errorf("with controllers: %+v", d)
		}
		if !all && (d.Own != "" || !strings.HasSuffix(d.During, "/delegated") || len(d.Missing) == 0) {
			t.Errorf("without controllers: %+v", d)
		}
		if names := left(t, dir); len(names) > 0 {
			t.Errorf("%q is left", names)
		}
		if on := content(t, dir, "cgroup.subtree_control"); on != "" {
			t.Errorf("%q stays switched on", on)
		}
	}
}

// Where others live in the cgroup it has no controllers to give, and nobody is moved.
func TestDelegatedShared(t *testing.T) {
	dir := delegated(t, delegateUID)
	startWaiting(t, actIn(t, dir, "wait"))
	d := tellIn(t, dir, "delegated")
	if d.Error != "" || d.Own != "" || len(d.Missing) != 2 || !strings.HasSuffix(d.Leaf, "/delegated/agentguard-x.run") || !strings.HasSuffix(d.During, "/delegated") {
		t.Errorf("%+v", d)
	}
	if names := left(t, dir); len(names) > 0 {
		t.Errorf("%q is left", names)
	}
}

func TestNotDelegated(t *testing.T) {
	dir := delegated(t, delegateUID+1)
	if d := tellIn(t, dir, "delegated"); !d.Refused || !strings.Contains(d.Error, dir) {
		t.Errorf("%+v", d)
	}
	if err := os.Chown(dir, delegateUID, delegateUID); err != nil { // the directory alone is not enough
		t.Fatal(err)
	}
	if d := tellIn(t, dir, "delegated"); !d.Refused || !strings.Contains(d.Error, "cgroup.procs") {
		t.Errorf("%+v", d)
	}
}

// What a killed supervisor left is found by the next start, and what is in use is not touched.
func TestDelegatedSweep(t *testing.T) {
	dir := delegated(t, delegateUID)
	out, err := actIn(t, dir, "abandon").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || len(bytes.TrimSpace(out)) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if names := left(t, dir); !slices.Contains(names, "agentguard-x.run") {
		t.Fatalf("%q", names)
	}
	for _, c := range strings.Fields(content(t, dir, "cgroup.subtree_control")) { // as who delegates does before it puts another process there
		if err := write(dir, "cgroup.subtree_control", "-"+c); err != nil {
			t.Fatal(err)
		}
	}
	d := tellIn(t, dir, "sweep")
	if d.Error != "" || !slices.Equal(d.Swept, []string{"x"}) {
		t.Errorf("%+v", d)
	}
	if names := left(t, dir); len(names) > 0 {
		t.Errorf("%q is left", names)
	}
}

// Another supervisor that starts may remove the place before anybody is in it.
func TestPlaceIsRemoved(t *testing.T) {
	for removals, want := range []error{nil, nil, os.ErrNotExist} {
		dir := delegated(t, delegateUID)
		cmd := actIn(t, dir, "wait")
		startWaiting(t, cmd)
		own, made := filepath.Join(dir, "agentguard-1.own"), 0
		err := place([]string{strconv.Itoa(cmd.Process.Pid)}, own, func(name string, perm os.FileMode) error {
			err := os.Mkdir(name, perm)
			if made++; made <= removals {
				err = errors.Join(err, unix.Rmdir(name))
			}
			return err
		})
		if !errors.Is(err, want) || err != nil && want == nil {
			t.Errorf("%d: %v", removals, err)
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
		if path, _ := unifiedPath(b); err != nil || strings.HasSuffix(path, "/agentguard-1.own") != (want == nil) {
			t.Errorf("%d: it is in %s, %v", removals, path, err)
		}
	}
}

// Without a v2 tree, and outside of it, there is nothing to delegate.
func TestDelegatedNowhere(t *testing.T) {
	if _, err := (Layout{}).Delegated([]byte("0::/x\n")); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ErrNotDelegated) {
		t.Error(err)
	}
	l := detect(t)
	for _, self := range []string{"", "0::/../x\n", "3:pids:/x\n"} {
		if _, err := l.Delegated([]byte(self)); !errors.Is(err, ErrNotDelegated) {
			t.Errorf("%q: %v", self, err)
		}
	}
	testenv.Root(t)
	if _, err := l.Delegated([]byte("0::/no-such-cgroup-of-agentguard\n")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
