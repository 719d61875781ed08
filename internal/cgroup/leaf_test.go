package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLeafIsFresh(t *testing.T) {
	p := testParent(t)
	l, err := p.New("x", Limits{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(l.Path, &st); err != nil {
		t.Fatal(err)
	}
	if l.ID() != st.Ino || l.ID() == 0 {
		t.Errorf("id %d, inode %d", l.ID(), st.Ino)
	}
	if _, err := p.New("x", Limits{}, 0); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second leaf of the same name: %v", err)
	}
	if _, err := os.Stat(l.Path); err != nil {
		t.Errorf("the first leaf suffered: %v", err)
	}
	if err := os.Mkdir(filepath.Join(l.Path, "sub"), 0o755); err == nil {
		t.Error("a cgroup can be made below a leaf")
	}
	if err := l.Remove(0); err != nil {
		t.Fatal(err)
	}
	if l.Dir() != nil {
		t.Error("the directory is still open")
	}
	if err := l.Remove(0); err != nil {
		t.Errorf("removing again: %v", err)
	}
}

func TestLeafNames(t *testing.T) {
	p := testParent(t)
	for _, id := range []string{"", "../x", "a/b", "a\nb", "/"} {
		if _, err := p.New(id, Limits{}, 0); err == nil {
			t.Errorf("%q is taken for an id", id)
		}
	}
}

func TestLeafLimits(t *testing.T) {
	p := testParent(t)
	p.need(t, Memory)
	p.need(t, Pids)
	const memory = 64 << 20
	l, err := p.New("limited", Limits{Memory: memory, Tasks: 20}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer endLeaf(t, l)
	want := map[string]string{"memory.max": "67108864", "memory.oom.group": "1", "pids.max": "22", "cgroup.max.descendants": "0"}
	if len(p.V1) > 0 {
		want = map[string]string{"memory.limit_in_bytes": "67108864", "pids.max": "20"}
	}
	for name, value := range want {
		dir := l.Path
		if v1 := l.V1[strings.Split(name, ".")[0]]; v1 != "" {
			dir = v1
		}
		if got := content(t, dir, name); got != value {
			t.Errorf("%s is %s, want %s", name, got, value)
		}
	}
	for name, value := range map[string]string{"memory.memsw.limit_in_bytes": "67108864", "memory.swap.max": "0"} {
		for _, dir := range l.dirs() {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil && strings.TrimSpace(string(b)) != value {
				t.Errorf("%s is %s, want %s", name, b, value)
			}
		}
	}
}

func TestLeafWithoutLimits(t *testing.T) {
	p := testParent(t)
	for id, lim := range map[string]Limits{"zero": {}, "negative": {Memory: -1, Tasks: -1}, "more than there can be": {Tasks: 1 << 40}} {
		if _, err := p.New(id, lim, 1); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// A limit that cannot be set ends in an error, whatever else is optional, and
// nothing of the leaf is left.
func TestLeafLimitFails(t *testing.T) {
	good := testParent(t)
	noFiles, noDir := t.TempDir(), filepath.Join(t.TempDir(), "none")
	for name, v1 := range map[string]map[string]string{
		"no memory files": {Memory: noFiles},
		"no pids files":   {Pids: noFiles},
		"no directory":    {Memory: noFiles, Pids: noDir},
	} {
		p := *good
		p.V1, p.Missing = v1, nil
		if _, err := p.New("x", Limits{Memory: 1 << 26, Tasks: 20}, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, dir := range []string{p.Path, noFiles} {
			if _, err := os.Stat(filepath.Join(dir, "x"+suffix)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s holds a leaf", name, dir)
			}
		}
	}
	// The gap was accepted: without the controllers there is nothing to set.
	p := *good
	p.V1, p.Missing = nil, []string{Memory, Pids}
	l, err := p.New("x", Limits{Memory: 1 << 26, Tasks: 20}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer endLeaf(t, l)
	if l.MemoryPeak() != 0 && len(good.V1) > 0 || l.OOMKills() != 0 || l.TaskRefusals() != 0 {
		t.Error("usage without controllers is not 0")
	}
}

func TestBirthAndJoin(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	cmd := act(t, l, "wait")
	startWaiting(t, cmd)
	got := cgroupsOf(t, cmd.Process.Pid)
	for c, dir := range map[string]string{"": l.Path, Memory: l.V1[Memory], Pids: l.V1[Pids]} {
		if dir != "" && !strings.HasSuffix(dir, got[c]) || got[c] == "/" && dir != "" {
			t.Errorf("controller %q: the child is in %q, not in %s", c, got[c], dir)
		}
	}
}

func TestEnterAndJoin(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	files, err := l.JoinFiles(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	if want := len(l.dirs()); len(files) != want {
		t.Errorf("%d files, want %d", len(files), want)
	}
	cmd := act(t, l, "wait")
	cmd.SysProcAttr.UseCgroupFD = false
	startWaiting(t, cmd)
	if got := cgroupsOf(t, cmd.Process.Pid)[""]; strings.HasSuffix(l.Path, got) && got != "/" {
		t.Fatalf("the child was born in %s", got)
	}
	if err := l.Enter(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got := cgroupsOf(t, cmd.Process.Pid)[""]; !strings.HasSuffix(l.Path, got) {
		t.Errorf("the child is in %s, not in %s", got, l.Path)
	}
}

func TestLeavesAtOnce(t *testing.T) {
	p := testParent(t)
	ids := sync.Map{}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 5 {
				l, err := p.New(fmt.Sprintf("%d-%d", i, j), Limits{Memory: 1 << 26, Tasks: 5}, 1)
				if err != nil {
					t.Error(err)
					continue
				}
				if _, twice := ids.LoadOrStore(l.ID(), true); twice {
					t.Errorf("id %d was given twice", l.ID())
				}
				endLeaf(t, l)
			}
		})
	}
	group.Wait()
}

func BenchmarkLeaf(b *testing.B) {
	p := testParent(b)
	for b.Loop() {
		l, err := p.New("b", Limits{Memory: 1 << 28, Tasks: 100}, 1)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Remove(0); err != nil {
			b.Fatal(err)
		}
	}
}
