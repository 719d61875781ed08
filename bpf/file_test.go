package bpf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// fileDir makes a directory with n files in it.
func fileDir(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// opened counts the opens of each path: the events of their own, and the counts that follow them.
func opened(t testing.TB, events []Event, dir string) map[string]uint64 {
	t.Helper()
	type slot struct {
		tid uint32
		n   uint8
	}
	seen := map[slot]string{}
	sum := map[string]uint64{}
	for i := range events {
		ev := &events[i]
		at := slot{ev.TID, ev.File.Slot}
		switch ev.Type {
		case File:
			seen[at] = string(ev.File.Path.Text)
			sum[seen[at]]++
		case Repeat:
			if seen[at] == "" {
				t.Errorf("a count of nothing: %s", describe(ev))
			}
			sum[seen[at]] += ev.File.Count
		}
	}
	for p := range sum {
		if !strings.HasPrefix(p, dir+"/") {
			delete(sum, p)
		}
	}
	return sum
}

// Every open is an event or in the count of one, however the threads and files mix.
func TestOpensAreCountedExactly(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for _, test := range []struct{ files, rounds, threads int }{{1, 5000, 1}, {3, 500, 4}, {100, 20, 2}, {40, 3, 30}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			dir := fileDir(t, test.files)
			events, stats := h.observe(p, RunConfig{RingBytes: 16 << 20}, "opens", dir, strconv.Itoa(test.files), strconv.Itoa(test.rounds), strconv.Itoa(test.threads))
			got := opened(t, events, dir)
			if len(got) != test.files || stats.Classes[Bulk].Dropped != 0 {
				t.Errorf("%d paths, %+v", len(got), stats.Classes)
			}
			for path, n := range got {
				checkCount(t, stats, n, uint64(test.rounds*test.threads))
				if t.Failed() {
					t.Fatal(path)
				}
			}
			if test.files == 1 && len(ofType(events, Repeat)) > 50 {
				t.Errorf("%d counts of one file", len(ofType(events, Repeat)))
			}
		})
	}
}

// With a ring that is too small, what was kept and what was lost is all there was.
func TestLostOpensAreCounted(t *testing.T) {
	h := sharedHost(t)
	const files, rounds = 64, 400
	dir := fileDir(t, files)
	rec := h.start(h.open(), RunConfig{RingBytes: minRing})
	rec.mu.Lock() // the reader stands still
	out, err := act(rec.leaf, "opens", dir, strconv.Itoa(files), strconv.Itoa(rounds), "1").CombinedOutput()
	rec.mu.Unlock()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	events, stats := rec.finish(t)
	var kept, repeats, others uint64
	for _, n := range opened(t, events, dir) {
		kept += n
	}
	for _, d := range stats.Dropped {
		switch d.Type {
		case File:
			others = d.N
		case Repeat:
			repeats = d.N
		}
	}
	lost := others + repeats + stats.LostRepeats
	if others == 0 || kept+lost+stats.Missed < files*rounds || kept+lost > files*rounds+200 { // the Go run-time of the act opens a few too
		t.Errorf("kept %d, lost %d + %d + %d, of %d", kept, others, repeats, stats.LostRepeats, files*rounds)
	}
}

// short names an event of the act without what differs from run to run.
func short(ev *Event, dir string) string {
	name := map[int]string{
		unix.SYS_FCHMOD: "fchmod", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_LINKAT: "linkat",
		unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_SETXATTR: "setxattr",
		unix.SYS_TRUNCATE: "truncate", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_MKNODAT: "mknodat",
		unix.SYS_RENAMEAT: "renameat", unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2",
	}[ev.NR]
	if name == "" {
		name = archCallNames[ev.NR]
	}
	if ev.Type == File {
		s := fmt.Sprintf("%s %s (%s) mode=%o resolve=%d", name, ev.File.Path.Text, ev.File.Given, ev.File.Args[3], ev.File.Resolve)
		if ev.File.FMode&FModeCreated != 0 {
			s += " created"
		}
		return strings.ReplaceAll(s, dir, "DIR")
	}
	c := &ev.Call
	s := fmt.Sprintf("%s %s %s [%s] [%s] %d", name, c.Path, c.Path2, c.Dir.Text, c.Dir2.Text, ev.Ret)
	if c.Dir.Deleted {
		s += " deleted"
	}
	if c.Inode != 0 {
		s += " inode"
	}
	return strings.ReplaceAll(s, dir, "DIR")
}

func TestChangesAreRecorded(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 1)
	events, _ := h.observe(h.open(), RunConfig{}, "changes", dir)
	var got []string
	for i := range events {
		if bytes.HasPrefix(events[i].Call.Path, []byte("/sys/")) {
			continue // the Go run-time looks for limits of its cgroup
		}
		if ev := &events[i]; (ev.Type == Call && ev.Phase == Command) || ev.Type == File && bytes.HasPrefix(ev.File.Path.Text, []byte(dir+"/")) {
			if ev.Class != Bulk || ev.Flags != 0 {
				t.Errorf("class %d, flags %d: %s", ev.Class, ev.Flags, short(ev, dir))
			}
			got = append(got, short(ev, dir))
		}
	}
	want := []string{
		"openat2 DIR/new (new) mode=640 resolve=4 created",
		"openat DIR/new (new) mode=600 resolve=0",
		"fchmod   [DIR/new] [] 0 inode",
		"ftruncate   [DIR/new] [] 0 inode",
		"renameat2 new DIR/moved [DIR] [] 0",
		"fchmod   [DIR/moved] [] 0 inode",
		"linkat moved name [DIR] [DIR] 0",
		"symlinkat some text sym [] [DIR] 0",
		"unlinkat name  [DIR] [] 0",
		"mkdirat sub  [DIR] [] 0",
		"unlinkat sub  [DIR] [] 0",
		"chmod DIR/f0  [] [] 0",
		"lchown f0  [DIR] [] 0",
		"setxattr f0 trusted.a [DIR] [] 0",
		"truncate f0  [DIR] [] 0",
		"unlinkat moved  [DIR] [] 0",
		"fchmod   [DIR/moved] [] 0 deleted inode",
		"mknodat DIR/pipe  [] [] 0",
		"unlinkat nothing  [DIR] [] -2",
		"renameat DIR/nothing x [] [DIR] -2",
	}
	for i, s := range got { // x/sys uses the older calls where an architecture has them
		for _, old := range []string{"unlink", "rename", "mknod", "chmod", "lchown"} {
			got[i] = strings.TrimPrefix(strings.Replace(s, old+" ", old+"# ", 1), "")
			if got[i] != s {
				break
			}
		}
	}
	if !slices.Equal(plainNames(got), plainNames(want)) {
		t.Errorf("recorded:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// plainNames takes off what tells the forms of a call apart.
func plainNames(list []string) []string {
	r := strings.NewReplacer("#", "", "unlinkat ", "unlink ", "renameat2 ", "rename ", "renameat ", "rename ", "mknodat ", "mknod ", "fchmodat ", "chmod ", "fchownat ", "lchown ")
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = r.Replace(s)
	}
	return out
}

// Kernels whose verifier does not follow typed reads get the same record.
func TestReadsByHelper(t *testing.T) {
	h := newHost(t)
	h.cfg.untyped = true
	dir := fileDir(t, 3)
	events, stats := h.observe(h.open(), RunConfig{}, "opens", dir, "3", "5", "1")
	got := opened(t, events, dir)
	if len(got) != 3 {
		t.Errorf("opens of %d files: %v", len(got), got)
	}
	for path, n := range got {
		if checkCount(t, stats, n, 5); filepath.Dir(path) != dir {
			t.Errorf("%s: %d opens", path, n)
		}
	}
}

// Where the verifier follows typed reads, they are what is used.
func TestTypedReads(t *testing.T) {
	h := sharedHost(t)
	c, err := load(func() (*ebpf.CollectionSpec, error) { return sensorSpec(false) }, h.cfg, 1, nil)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	c.Close()
}

// What is only read is left out on demand, and nothing else.
func TestChangesOnly(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	dir := fileDir(t, 3)
	events, _ := h.observe(p, RunConfig{ChangesOnly: true}, "opens", dir, "3", "10", "1")
	if got := opened(t, events, dir); len(got) != 0 {
		t.Errorf("%v", got)
	}
	all, _ := h.observe(p, RunConfig{}, "changes", fileDir(t, 1))
	events, _ = h.observe(p, RunConfig{ChangesOnly: true}, "changes", fileDir(t, 1))
	if a, b := len(ofType(all, Call)), len(ofType(events, Call)); a != b || a < 18 {
		t.Errorf("%d changes, %d with reads left out", a, b)
	}
	for _, ev := range ofType(events, File) {
		if f := &ev.File; f.How == Opened && f.FMode&(FModeWrite|FModeCreated) == 0 {
			t.Errorf("opened to be read: %s", f.Path.Text)
		}
	}
}

// The descriptors that a command is started with, and its environment.
func TestStart(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 1)
	f, err := os.Open(dir + "/f0")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := h.open()
	var given []string
	events, _ := h.complete(func() ([]Event, Stats) {
		rec := h.start(p, RunConfig{})
		cmd := act(rec.leaf, "exit", "0") // may also have what the test itself was started with
		cmd.ExtraFiles = []*os.File{f}
		cmd.Env = append(cmd.Env, "SECRET=value", "LONG="+strings.Repeat("x", 40000))
		given = cmd.Env
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return rec.finish(t)
	})
	fds := map[int64]string{}
	for _, ev := range ofType(events, FD) {
		fds[ev.Ret] = string(ev.File.Path.Text)
	}
	if fds[0] != "/dev/null" || fds[3] != dir+"/f0" {
		t.Errorf("descriptors %v", fds)
	}
	var env []byte
	for _, ev := range ofType(events, ExecEnv) {
		if int(ev.Exec.Offset) != len(env) {
			t.Errorf("part at %d, want %d", ev.Exec.Offset, len(env))
		}
		env = append(env, ev.Exec.Env...)
	}
	if want := strings.Join(given, "\x00") + "\x00"; len(env) != len(want) || !bytes.Contains(env, []byte("\x00SECRET=value\x00")) {
		t.Errorf("%d bytes of environment, want %d", len(env), len(want))
	}
}

// A path may be longer than the record holds: then its beginning is missing.
func TestDeepPath(t *testing.T) {
	h := sharedHost(t)
	dir := t.TempDir()
	events, _ := h.observe(h.open(), RunConfig{}, "deep", dir)
	for _, ev := range ofType(events, File) {
		if !bytes.HasSuffix(ev.File.Path.Text, []byte("/bottom")) {
			continue
		}
		p := ev.File.Path
		if want := len(dir) + 40*251 + len("/bottom"); int(p.Full) != want || len(p.Text) > 4096 || len(p.Text) < 3800 || p.Text[0] == '/' || !p.Rooted {
			t.Errorf("%d of %d bytes, want %d, begins %.20q", len(p.Text), p.Full, want, p.Text)
		}
		return
	}
	t.Error("the open is not recorded")
}

// Ratios of one run: an open and close beside the same without a sensor.
func BenchmarkOpenClose(b *testing.B) {
	h := newHost(b)
	p := h.open()
	dir := fileDir(b, 256)
	measure := func(leaf *os.File) map[string]float64 {
		out, err := act(leaf, "opentime", dir).Output()
		got := map[string]float64{}
		for line := range strings.Lines(string(out)) {
			var name string
			var ns float64
			if _, err := fmt.Sscan(line, &name, &ns); err == nil {
				got[name] = ns
			}
		}
		if err != nil || len(got) != 2 {
			b.Fatal(err, got)
		}
		return got
	}
	for b.Loop() {
		native := measure(h.outside())
		rec := h.start(p, RunConfig{RingBytes: 4 << 20})
		observed := measure(rec.leaf)
		rec.finish(b)
		for name := range native {
			b.ReportMetric(native[name], name+"-native-ns")
			b.ReportMetric(observed[name]/native[name], name+"-ratio")
		}
	}
}
