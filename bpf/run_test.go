package bpf

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

func denyDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "closed")
}

// A ring that nobody reads: what is kept and what is dropped is what happened,
// the gaps are exactly what was dropped, and control events have room to the end.
func TestLossIsExact(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.Start(RunConfig{CgroupID: id, RingBytes: minRing})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	const n = 20000
	cmds := []*sync.WaitGroup{}
	for range 2 {
		wg := &sync.WaitGroup{}
		cmds = append(cmds, wg)
		wg.Go(func() {
			if out, err := act(leaf, "deny-flood", denyDir(t), strconv.Itoa(n)).CombinedOutput(); err != nil {
				t.Errorf("%v %s", err, out)
			}
		})
	}
	for _, wg := range cmds {
		wg.Wait()
	}
	var kept [classes]uint64
	var exits, told uint64
	run.Stop()
	if err := run.Read(func(ev *Event) error {
		if ev.Type == Lost { // where the acts took longer than a gap is held
			told += ev.Lost.Count
			return nil
		}
		kept[ev.Class]++
		if ev.Type == Exit {
			exits++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	stats, err := run.Stats()
	if err != nil {
		t.Fatal(err)
	}
	checkLoss(t, stats, kept, told)
	refused := stats.Classes[Verdict]
	if all := refused.Sent + refused.Dropped; all+stats.Missed < 2*n || refused.Dropped < refused.Sent {
		t.Errorf("verdicts %+v, %d missed, want %d in all", refused, stats.Missed, 2*n)
	}
	var byType uint64
	for _, d := range stats.Dropped {
		byType += d.N
	}
	if want := (TypeCount{Deny, refused.Dropped}); !slices.Contains(stats.Dropped, want) || byType != refused.Dropped+stats.Classes[Bulk].Dropped {
		t.Errorf("dropped by type %v, want %d, by class %+v", stats.Dropped, refused.Dropped, stats.Classes)
	}
	checkCount(t, stats, exits, 2)
	if c := stats.Classes[Control]; c.Dropped != 0 {
		t.Errorf("control %+v", c)
	}
	if c := calls(stats, unix.SYS_OPENAT); c.Errors+stats.Missed < 2*n {
		t.Errorf("counted %+v, want %d errors", c, 2*n)
	}
}

// checkLoss compares what was read, and told to be lost, with what the kernel counted.
func checkLoss(t *testing.T, stats Stats, kept [classes]uint64, told uint64) {
	t.Helper()
	missing := told
	var dropped, all, numbered uint64
	for class, c := range stats.Classes {
		dropped += c.Dropped
		if kept[class] != c.Sent {
			t.Errorf("class %d: read %d of %d", class, kept[class], c.Sent)
		}
		if c.Dropped > 0 && c.DroppedBytes < c.Dropped*headerSize {
			t.Errorf("class %d: %+v", class, c)
		}
	}
	for _, g := range stats.Gaps {
		missing += g.Count
	}
	for _, n := range kept {
		all += n
	}
	for _, n := range stats.Numbered {
		numbered += n
	}
	if missing != dropped || stats.Read != all || numbered != all+missing || stats.Late != 0 {
		t.Errorf("gaps of %d, dropped %d; read %d, %d late, kept %v, numbered %d", missing, dropped, stats.Read, stats.Late, kept, numbered)
	}
}

// The reader's path from the ring to the callback allocates nothing an event.
func TestReadAllocatesNothing(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	leaf := h.leaf()
	id, err := cgroupID(leaf)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.Start(RunConfig{CgroupID: id, RingBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if out, err := act(leaf, "deny-flood", denyDir(t), "10000").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := run.Stop(); err != nil {
		t.Fatal(err)
	}
	n := 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	err = run.Read(func(*Event) error { n++; return nil })
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil || n < 5000 {
		t.Fatalf("%d events, %v", n, err)
	}
	t.Logf("%d events, %v each", n, took/time.Duration(n))
	if allocs := after.Mallocs - before.Mallocs; allocs > 100 {
		t.Errorf("%d allocations for %d events", allocs, n)
	}
}

// In a ring that has room nothing is lost, and each record is whole.
func TestFloodIsKept(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	rec := h.start(p, RunConfig{RingBytes: 8 << 20})
	const n = 20000
	if out, err := act(rec.leaf, "deny-flood", denyDir(t), strconv.Itoa(n)).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	events, stats := rec.finish(t)
	got := uint64(0)
	for _, ev := range ofType(events, Deny) {
		if ev.NR == unix.SYS_OPENAT && strings.HasSuffix(string(ev.Call.Path), "/closed/x") {
			got++
		}
	}
	checkCount(t, stats, got, n)
	if stats.Classes[Verdict].Dropped != 0 || len(stats.Gaps) != 0 {
		t.Errorf("%+v, %d gaps", stats.Classes, len(stats.Gaps))
	}
}

func TestRunsAreApart(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	var wg sync.WaitGroup
	for i := 1; i <= 8; i++ {
		rec := h.start(p, RunConfig{})
		wg.Go(func() {
			n := 1000 * i
			if err := act(rec.leaf, "getppid", strconv.Itoa(n)).Run(); err != nil {
				t.Error(err)
			}
			events, stats := rec.finish(t)
			checkCount(t, stats, calls(stats, unix.SYS_GETPPID).Calls, uint64(n))
			checkCount(t, stats, uint64(len(ofType(events, Exit))), 1)
		})
	}
	wg.Wait()
	checkIdle(t, p)
}

// A slot that was used before starts empty.
func TestSlotsAreReused(t *testing.T) {
	h := newHost(t)
	p := h.open()
	for i := range 10 {
		events, stats := h.observe(p, RunConfig{}, "getppid", "10")
		checkCount(t, stats, calls(stats, unix.SYS_GETPPID).Calls, 10)
		if len(ofType(events, Exec)) != 1 || stats.Classes[Control].Sent+stats.Classes[Bulk].Sent != stats.Read {
			t.Fatalf("round %d: %d events, %+v", i, len(events), stats.Classes)
		}
	}
	if ring, err := innerMap(p.rings, 1); err != nil || ring != nil {
		t.Errorf("a second slot was made: %v %v", ring, err)
	}
}

// checkIdle says that no run is left: no entry, nothing that is called on every system call.
func checkIdle(t *testing.T, p *Programs) {
	t.Helper()
	var id uint64
	var value runValue
	for it := p.runs.Iterate(); it.Next(&id, &value); {
		t.Errorf("entry of cgroup %d is left", id)
	}
	l, err := p.joinLink()
	if err != nil {
		t.Error(err)
	}
	if l != nil {
		t.Errorf("%s is attached", tracingNames[perCall])
		l.Close()
	}
}

func TestStartRefusesBadConfig(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for _, size := range []int{1, 4096, minRing + 4096, -65536} {
		if _, err := p.Start(RunConfig{CgroupID: 1, RingBytes: size}); err == nil {
			t.Errorf("a ring of %d bytes was taken", size)
		}
	}
	rec := h.start(p, RunConfig{})
	if _, err := p.Start(RunConfig{CgroupID: rec.run.id}); !errors.Is(err, ebpf.ErrKeyExist) {
		t.Errorf("second run in one cgroup: %v", err)
	}
	if got := rec.lines(t, "egress"); got["lo-udp4"] != 0 || got["tcp4"] != int(unix.EPERM) {
		t.Errorf("the first run was ended by it: %v", got)
	}
}

// A killed supervisor's run stays bound and observed by nobody; when it is
// empty the next Start or Sweep forgets it. sys_exit goes with the supervisor.
func TestSweepAfterKill(t *testing.T) {
	h := newHost(t)
	p := h.open()
	leaf := h.leaf()
	cmd := act(h.outside(), "supervisor", h.cfg.PinDir, h.cfg.Parent, strconv.Itoa(h.cfg.Level), leaf.Name())
	cmd.SysProcAttr.Cloneflags = 0
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	sleeper, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()

	if err := Sweep(h.cfg); err != nil {
		t.Fatal(err)
	}
	if n := entries(p); n != 1 {
		t.Errorf("%d entries while the run has a process, want 1", n)
	}
	other := h.start(p, RunConfig{})
	if other.run.slot.index != 1 {
		t.Errorf("slot %d was lent twice", other.run.slot.index)
	}
	other.finish(t)
	unix.Kill(sleeper, unix.SIGKILL)
	h.waitEmpty(leaf)
	if err := Sweep(h.cfg); err != nil {
		t.Fatal(err)
	}
	checkIdle(t, p)
	if !attached(t, h.cfg) {
		t.Error("the cgroup programs are gone")
	}
}

// outside is a cgroup that is not below the parent.
func (h *host) outside() *os.File {
	h.t.Helper()
	f, err := os.Open(filepath.Dir(h.cfg.Parent))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

func (h *host) waitEmpty(leaf *os.File) {
	h.t.Helper()
	for range 1000 {
		if busy, err := populated(int(leaf.Fd())); err != nil || !busy {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	h.t.Fatal("leaf is still populated")
}

func entries(p *Programs) int {
	n := 0
	var id uint64
	var value runValue
	for it := p.runs.Iterate(); it.Next(&id, &value); {
		n++
	}
	return n
}

func attached(t *testing.T, cfg Config) bool {
	t.Helper()
	links, err := filepath.Glob(filepath.Join(cfg.PinDir, setPrefix+"*", "l_*"))
	links = slices.DeleteFunc(links, func(l string) bool { // those are no cgroup's
		name := strings.TrimPrefix(filepath.Base(l), "l_")
		return slices.Contains(standingNames[:], name) || slices.Contains(tracingNames[:], name)
	})
	if err != nil || len(links) < optionalFrom {
		return false
	}
	for _, path := range links {
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			t.Error(err)
			return false
		}
		info, err := l.Info()
		l.Close()
		if err != nil || info.Cgroup().CgroupId == 0 {
			return false
		}
	}
	return true
}
