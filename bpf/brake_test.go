package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// freezer writes cgroup.freeze of a leaf.
func freezer(t *testing.T, leaf string) func(bool) error {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(leaf, "cgroup.freeze"), os.O_WRONLY, 0)
	if err != nil {
		testenv.Missing(t, "cgroup", err.Error())
	}
	t.Cleanup(func() { f.Close() })
	return func(on bool) error {
		_, err := f.WriteAt([]byte{'0' + map[bool]byte{true: 1}[on]}, 0)
		return err
	}
}

// With a brake a slow reader of a small ring loses nothing, whoever is faster.
func TestBrakeLosesNothing(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.Start(RunConfig{CgroupID: id, RingBytes: 4 * minRing, Freeze: freezer(t, leaf.Name())})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	const n, producers = 5000, 4
	var kept [classes]uint64
	read := make(chan error, 1)
	go func() {
		read <- run.Read(func(ev *Event) error {
			if kept[ev.Class]++; kept[ev.Class]%1000 == 0 {
				time.Sleep(3 * time.Millisecond) // a write to a busy disk
			}
			return nil
		})
	}()
	// None begins before all are born: a fork into a frozen cgroup waits, and with it
	// this process, which is the one to let go (syscall.ForkExec waits for the child's exec, out of the collector's reach).
	var floods []*exec.Cmd
	hold, begin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for range producers {
		cmd := act(leaf, "deny-flood", denyDir(t), strconv.Itoa(n))
		cmd.Stdin = hold
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		floods = append(floods, cmd)
	}
	if err := errors.Join(hold.Close(), begin.Close()); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range floods {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if err := run.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	stats, err := run.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("frozen %d times for %v, %d waits for %v", stats.Freezes, stats.FrozenTime, stats.Waits, stats.WaitTime)
	checkLoss(t, stats, kept, 0)
	if c := stats.Classes[Verdict]; c.Dropped != 0 || c.Sent+stats.Missed < n*producers {
		t.Errorf("%+v and %d missed, want %d and none lost", c, stats.Missed, n*producers)
	}
	if stats.Freezes == 0 || stats.BrakeErr != nil {
		t.Errorf("frozen %d times, %v", stats.Freezes, stats.BrakeErr)
	}
	if frozen, err := os.ReadFile(filepath.Join(leaf.Name(), "cgroup.freeze")); err != nil || string(frozen) != "0\n" {
		t.Errorf("cgroup.freeze is %q at the end, %v", frozen, err)
	}
}

// Nor does it where nobody gets a CPU for longer than freezing ever took, neither
// to read nor to freeze: the waits alone hold the writer back.
func TestBrakeHoldsAlone(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.Start(RunConfig{CgroupID: id, RingBytes: 8 * minRing, Freeze: func(bool) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	awake := make(chan struct{})
	var kept [classes]uint64
	read := make(chan error, 1)
	go func() {
		read <- run.Read(func(ev *Event) error {
			<-awake
			kept[ev.Class]++
			return nil
		})
	}()
	flood := act(leaf, "deny-flood", denyDir(t), "8000")
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	waited(t, run, time.Second/2)
	close(awake)
	if err := errors.Join(flood.Wait(), run.Stop(), <-read); err != nil {
		t.Fatal(err)
	}
	stats, err := run.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d waits for %v", stats.Waits, stats.WaitTime)
	checkLoss(t, stats, kept, 0)
	if c := stats.Classes[Verdict]; c.Dropped != 0 || c.Sent+stats.Missed < 8000 {
		t.Errorf("%+v and %d missed, want 8000 and none lost", c, stats.Missed)
	}
}

// waited waits until the run's tasks have waited so long for their reader.
func waited(t *testing.T, run *Run, long time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		stats, err := run.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if stats.WaitTime >= long || stats.Classes[Verdict].Dropped > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %v only", stats.WaitTime)
		}
	}
}

// A freeze that fails is reported, and the run goes on without.
func TestBrakeFails(t *testing.T) {
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{RingBytes: minRing, Freeze: func(bool) error { return unix.EIO }})
	if out, err := act(rec.leaf, "deny-flood", denyDir(t), "20000").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	_, stats := rec.finish(t)
	if stats.BrakeErr == nil || stats.Freezes != 0 {
		t.Errorf("%v, frozen %d times", stats.BrakeErr, stats.Freezes)
	}
}

// What is reserved for a class, an eighth, holds about the longest event of every CPU.
func TestRingSize(t *testing.T) {
	longest := headerSize + bodies[Call].size + 2*4097 + 2*4096 + 128
	for cpus, want := range map[int]int{1: 1 << 20, 8: 1 << 20, 9: 2 << 20, 256: 32 << 20, 8192: maxRing} {
		size := ringSize(false, cpus)
		if size != want || cpus <= 256 && size/8 < cpus*longest*9/10 {
			t.Errorf("%d bytes for %d CPUs, want %d", size, cpus, want)
		}
	}
	if size := ringSize(true, 2); size != brakedRing {
		t.Errorf("%d bytes with a brake", size)
	}
}
