package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMemoryLimit(t *testing.T) {
	p := testParent(t)
	p.need(t, Memory)
	l := newLeaf(t, p, Limits{Memory: 48 << 20})
	watch, err := l.WatchOOM()
	if err != nil {
		t.Fatal(err)
	}
	if v1 := l.V1[Memory] != ""; v1 != (watch != nil) {
		t.Fatalf("v1 %v, watch %v", v1, watch)
	}
	bystander := act(t, l, "wait")
	startWaiting(t, bystander)
	out, err := act(t, l, "hog").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != -1 {
		t.Fatalf("hog: %v, %s", err, out)
	}
	if watch != nil {
		if err := watch.Wait(); err != nil {
			t.Error(err)
		}
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
	} else if err := bystander.Wait(); err == nil {
		t.Error("the rest of the run lives on: memory.oom.group")
	}
	if n, others := l.OOMKills(), l.KilledAround(); n < 1 || others != 0 {
		t.Errorf("%d kills, and %d for others", n, others)
	}
	if peak := l.MemoryPeak(); peak < 16<<20 || peak > 49<<20 { // the kernel lets it go over by a few pages
		t.Errorf("peak %d bytes", peak)
	}
}

// Who is killed because a cgroup around the leaf has no more memory has not met the leaf's own limit.
func TestMemoryLimitAround(t *testing.T) {
	p := testParent(t)
	p.need(t, Memory)
	const around = "50331648"
	if dir := p.V1[Memory]; dir != "" {
		if err := errors.Join(write(dir, "memory.limit_in_bytes", around), optional(write(dir, "memory.memsw.limit_in_bytes", around))); err != nil {
			t.Fatal(err)
		}
	} else if err := errors.Join(write(p.Path, "memory.max", around), optional(write(p.Path, "memory.swap.max", "0"))); err != nil {
		t.Fatal(err)
	}
	l := newLeaf(t, p, Limits{Memory: 512 << 20})
	out, err := act(t, l, "hog").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != -1 {
		t.Fatalf("hog: %v, %s", err, out)
	}
	if own, others := l.OOMKills(), l.KilledAround(); own != 0 || others < 1 {
		t.Errorf("%d kills for the leaf's limit, %d for others", own, others)
	}
}

// Close ends a Wait, and so does the end of the leaf.
func TestWatchEnds(t *testing.T) {
	p := testParent(t)
	for name, end := range map[string]func(*Leaf, *OOMWatch){
		"close":  func(_ *Leaf, w *OOMWatch) { w.Close() },
		"remove": func(l *Leaf, _ *OOMWatch) { endLeaf(t, l) },
	} {
		l := newLeaf(t, p, Limits{Memory: 1 << 26})
		w, err := l.WatchOOM()
		if err != nil {
			t.Fatal(err)
		}
		if w == nil { // v2
			continue
		}
		ended := make(chan error)
		go func() { ended <- w.Wait() }()
		end(l, w)
		if err := <-ended; err == nil {
			t.Errorf("%s: Wait says that something was killed", name)
		}
		w.Close()
	}
}

func TestTaskLimit(t *testing.T) {
	p := testParent(t)
	p.need(t, Pids)
	l := newLeaf(t, p, Limits{Tasks: 5})
	cmd := born(t, l, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait")
	cmd.Stderr = nil // the shell says that it cannot fork
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		endLeaf(t, l)
		_ = cmd.Wait()
	}()
	for deadline := time.Now().Add(2 * time.Minute); l.TaskRefusals() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no fork was refused")
		}
	}
}

// Forks that a cgroup around the leaf refuses are not refused by the leaf's limit.
func TestTaskLimitAround(t *testing.T) {
	p := testParent(t)
	p.need(t, Pids)
	l := newLeaf(t, p, Limits{Tasks: 100})
	around, dir := p.Path, l.Path
	if v1 := p.V1[Pids]; v1 != "" {
		around, dir = v1, l.V1[Pids]
	}
	if _, err := os.Stat(filepath.Join(dir, "pids.peak")); err != nil {
		testenv.Beyond(t, "pids.peak", err.Error())
	}
	if err := write(around, "pids.max", "5"); err != nil {
		t.Fatal(err)
	}
	cmd := born(t, l, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait")
	cmd.Stderr = nil // the shell says that it cannot fork
	if err := cmd.Run(); err == nil {
		t.Fatal("no fork was refused")
	}
	if n := l.TaskRefusals(); n != 0 {
		t.Errorf("%d forks refused by the leaf's own limit", n)
	}
	endLeaf(t, l)
}

func TestCPU(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	if err := act(t, l, "spin").Run(); err != nil {
		t.Fatal(err)
	}
	user, system, err := l.CPU()
	if err != nil || user+system < 50*time.Millisecond {
		t.Errorf("user %v, system %v, %v", user, system, err)
	}
	if err := l.Remove(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.CPU(); err == nil {
		t.Error("a removed leaf has used no CPU")
	}
}

func TestKill(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	// They leave session and parent, ignore signals, and go on forking.
	cmd := born(t, l, "sh", "-c", `trap "" TERM HUP INT; for i in 1 2 3 4 5; do setsid sh -c "while :; do sleep 0.01; done" & done; sleep 600`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Kill(over); err != nil && !errors.Is(err, context.Canceled) { // the order is given all the same
		t.Error(err)
	}
	_ = cmd.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for range 2 {
		if err := l.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		if procs := content(t, l.Path, "cgroup.procs"); procs != "" {
			t.Fatalf("processes are left: %q", procs)
		}
	}
	if err := l.Remove(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := l.Kill(ctx); err != nil {
		t.Errorf("a leaf that is gone: %v", err)
	}
}

// A leaf with a process is not removed, and says so when the time is over.
func TestRemoveBusy(t *testing.T) {
	p := testParent(t)
	l := newLeaf(t, p, Limits{})
	startWaiting(t, act(t, l, "wait"))
	err := l.Remove(5 * time.Millisecond)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), l.Path) {
		t.Errorf("%v", err)
	}
}

func TestSweep(t *testing.T) {
	p := testParent(t)
	dead, alive := newLeaf(t, p, Limits{Tasks: 50}), newLeaf(t, p, Limits{Tasks: 50})
	orphan, survivor := act(t, dead, "wait"), act(t, alive, "wait")
	startWaiting(t, orphan)
	startWaiting(t, survivor)
	if err := dead.lock.Close(); err != nil { // as the kernel does when a process ends
		t.Fatal(err)
	}
	dead.lock = nil
	apart := newLeaf(t, p, Limits{}) // its supervisor lives, and keeps its locks where others do not look
	foreign := filepath.Join(p.Path, "helper.service")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(foreign)
	half := filepath.Join(p.Path, "half"+suffix) // a supervisor died while it made the leaf
	if dir := p.V1[Pids]; dir != "" {
		half = filepath.Join(dir, "half"+suffix)
	}
	if err := os.Mkdir(half, 0o755); err != nil {
		t.Fatal(err)
	}

	// Two starts at a time find the same debris.
	var group sync.WaitGroup
	var mu sync.Mutex
	var swept []string
	for range 2 {
		group.Go(func() {
			ids, err := p.Sweep(context.Background(), func(id string) bool { return id+suffix == filepath.Base(alive.Path) })
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			swept = append(swept, ids...)
		})
	}
	group.Wait()
	for _, path := range []string{dead.Path, half} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", path)
		}
		if !slices.Contains(swept, strings.TrimSuffix(filepath.Base(path), suffix)) {
			t.Errorf("%s is not among those swept: %v", path, swept)
		}
	}
	if err := orphan.Wait(); err == nil {
		t.Error("the orphan ended by itself")
	}
	for _, path := range []string{alive.Path, apart.Path, foreign} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s suffered: %v", path, err)
		}
	}
	if unix.Kill(survivor.Process.Pid, 0) != nil {
		t.Error("the survivor is dead")
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("populated 1\nfrozen 0\nodd\nbad x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v, err := keyed(dir, "f", "frozen", "populated"); err != nil || v[0] != 0 || v[1] != 1 {
		t.Errorf("%v, %v", v, err)
	}
	for _, key := range []string{"frozen2", "odd", "bad", "", "popul"} {
		if _, err := keyed(dir, "f", key); err == nil {
			t.Errorf("key %q has a value", key)
		}
	}
	if _, err := number(dir, "f"); err == nil {
		t.Error("a number of several lines")
	}
	if err := write(dir, "none", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("writing to a file that is not there: %v", err)
	}
}
