package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

func rooted(p string) bpf.Path { return bpf.Path{Text: []byte(p), Full: uint32(len(p)), Rooted: true} }

// fileEvent is an open of p by the first thread of process pid, as the sensor tells it.
func fileEvent(pid uint32, p string, slot uint8) bpf.Event {
	return bpf.Event{
		Type: bpf.File, Phase: bpf.Command, TGID: pid, TID: pid, Start: 77, NR: unix.SYS_OPENAT, Ret: 3,
		File: bpf.FileInfo{
			Path: rooted(p), Given: []byte(p), How: bpf.Opened, Dev: unix.Mkdev(8, 1), Inode: uint64(len(p)),
			Mode: unix.S_IFREG | 0o644, FMode: bpf.FModeRead, Slot: slot,
		},
	}
}

func callEvent(nr int, errno unix.Errno, path string, dir bpf.Path) bpf.Event {
	return bpf.Event{
		Type: bpf.Call, Phase: bpf.Command, TGID: 1, TID: 1, Start: 77, NR: nr, Ret: -int64(errno),
		Call: bpf.CallInfo{Path: []byte(path), Dir: dir},
	}
}

func TestRecordFile(t *testing.T) {
	open := fileEvent(1, "/srv/ws/a", 0)
	made := fileEvent(1, "/srv/ws/b", bpfNoSlot)
	made.File.FMode = bpf.FModeRead | bpf.FModeWrite | bpf.FModeCreated
	made.File.Given, made.File.Args = []byte("b"), [6]uint64{0, 0, unix.O_CREAT | unix.O_RDWR, 0o640}
	linked := fileEvent(1, "/srv/ws/a", 1)
	linked.File.Given = []byte("link")
	linked.File.FMode = bpf.FModePath
	mem := fileEvent(1, "memfd:/srv/ws/a", 2)
	mem.File.Path.Rooted, mem.File.How, mem.File.Object = false, bpf.MappedExec, true
	mem.File.Given, mem.NR = nil, unix.SYS_MMAP
	gone := fileEvent(1, "/srv/ws/x", 3)
	gone.File.How, gone.File.Path.Deleted = bpf.MappedWrite, true
	gone.NR = unix.SYS_MMAP
	named := fileEvent(1, "/srv/memfd:x", 4)
	pipe := fileEvent(1, "", bpfNoSlot)
	pipe.Type, pipe.Ret, pipe.NR, pipe.File.Path, pipe.File.Given = bpf.FD, 0, -1, bpf.Path{}, nil
	pipe.File.Mode, pipe.File.Inode = unix.S_IFIFO, 99
	cut := fileEvent(1, "aa/b", 5)
	cut.File.Path.Full = 5000
	var got []string
	list, _ := record(t, recordPlan(), open, made, linked, mem, gone, named, pipe, cut)
	for _, e := range list {
		got = append(got, fmt.Sprintf("%s %s (%s) %s %s flags=%o mode=%o memfd=%v deleted=%v ino=%d ret=%d len=%d", e.Kind, e.Path, e.PathGiven,
			e.PathSource, e.Access, e.Flags, e.Mode, e.Memfd, e.Deleted, e.Ino, e.Ret, e.PathLen))
	}
	want := []string{
		"open /srv/ws/a () fd-exit r flags=0 mode=0 memfd=false deleted=false ino=9 ret=3 len=0",
		"create /srv/ws/b (b) fd-exit rw flags=102 mode=640 memfd=false deleted=false ino=9 ret=3 len=0",
		"open /srv/ws/a (link) fd-exit path flags=0 mode=0 memfd=false deleted=false ino=9 ret=3 len=0",
		"mmap_exec memfd:/srv/ws/a () kernel  flags=0 mode=0 memfd=true deleted=false ino=15 ret=0 len=0",
		"mmap_write /srv/ws/x () fd-exit  flags=0 mode=0 memfd=false deleted=true ino=9 ret=0 len=0",
		"open /srv/memfd:x () fd-exit r flags=0 mode=0 memfd=false deleted=false ino=12 ret=3 len=0",
		"inherit pipe:[99] () kernel r flags=0 mode=0 memfd=false deleted=false ino=99 ret=0 len=0",
		"open aa/b () fd-exit r flags=0 mode=0 memfd=false deleted=false ino=4 ret=3 len=5000",
	}
	if s := strings.Join(got, "\n"); s != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", s, strings.Join(want, "\n"))
	}
}

const bpfNoSlot = 255

// A count says what the act says that it counts. A thread that was interrupted on
// its way out tells its counts after the end of its process.
func TestRecordRepeats(t *testing.T) {
	again := func(pid uint32, p string, slot uint8, n uint64) bpf.Event {
		b := fileEvent(pid, p, slot)
		b.Type, b.File.Count, b.File.Path, b.File.Given, b.NR = bpf.Repeat, n, bpf.Path{}, nil, -1
		return b
	}
	exit := bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: 1, TID: 1}
	list, r := record(t, recordPlan(),
		fileEvent(1, "/srv/ws/a", 0), fileEvent(2, "/srv/ws/other", 0), fileEvent(1, "/srv/ws/bb", 1),
		again(1, "/srv/ws/a", 0, 7), fileEvent(1, "/srv/ws/ccc", 0), again(1, "/srv/ws/ccc", 0, 1), again(1, "/srv/ws/bb", 1, 2),
		exit, again(1, "/srv/ws/ccc", 0, 3), again(1, "/srv/ws/unknown", 5, 6), again(2, "/srv/ws/other", 0, 4))
	var got []string
	for _, e := range list {
		if e.Count > 0 {
			got = append(got, fmt.Sprint(string(e.Path), " ", e.Count, " ", e.Kind, " ", e.Syscall, " ", e.Access, " ", e.Ino))
		}
	}
	want := []string{"/srv/ws/a 7 open openat r 9", "/srv/ws/ccc 1 open openat r 11", "/srv/ws/bb 2 open openat r 10", "/srv/ws/ccc 3 open openat r 11", " 6 open  r 15", "/srv/ws/other 4 open openat r 13"}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if len(r.repeats.at) != 0 || len(r.repeats.first) != 0 {
		t.Errorf("%d acts are remembered at the end", len(r.repeats.at))
	}
}

// Failures are counted by process; what differs has a record of its own.
func TestRecordFailures(t *testing.T) {
	var events []bpf.Event
	for range 5 {
		events = append(events, callEvent(unix.SYS_OPENAT, unix.ENOENT, "lib.so", rooted("/srv/ws")),
			callEvent(unix.SYS_OPENAT, unix.EMFILE, "lib.so", rooted("/srv/ws")), callEvent(unix.SYS_UNLINKAT, unix.ENOENT, "/root/.ssh/id", bpf.Path{}))
	}
	other := callEvent(unix.SYS_OPENAT, unix.ENOENT, "lib.so", rooted("/srv/ws"))
	other.TGID = 2
	list, r := record(t, recordPlan(), append(events, other)...)
	sums := map[string]uint64{}
	for _, e := range list {
		sums[fmt.Sprint(e.Proc.Pid, e.Kind, e.Errno, string(e.Path), string(e.PathGiven), e.Verdict, e.Layer)] += e.Times()
	}
	want := map[string]uint64{
		"1 open 2 /srv/ws/lib.so lib.so  ": 1, "1 open 2 /srv/ws/lib.so   ": 4, "2 open 2 /srv/ws/lib.so lib.so  ": 1,
		"1 open 24 /srv/ws/lib.so lib.so  ": 1, "1 open 24 /srv/ws/lib.so   ": 4, "1 unlink 2 /root/.ssh/id  deny mount": 5,
	}
	for k, n := range want {
		if sums[strings.ReplaceAll(k, " ", "")] != n && sums[k] != n {
			t.Errorf("%s: want %d; %v", k, n, sums)
			break
		}
	}
	if len(list) != 7 || r.denied.total != 5 {
		t.Errorf("%d records, %d denials", len(list), r.denied.total)
	}
}

// A thread's number may be given to another process while the first one lives.
func TestRepeatsOfReusedThread(t *testing.T) {
	var b bytes.Buffer
	r := &recorder{plan: recordPlan(), w: trace.NewWriter(&b, trace.Options{})}
	open := func(pid, tid uint32, slot uint8) {
		ev := fileEvent(pid, "/srv/ws/a", slot)
		ev.TID = tid
		must(t, r.event(&ev))
	}
	open(1, 7, 0)
	open(1, 7, 1)
	open(1, 1, 0)
	open(2, 7, 1)
	open(2, 7, 2)
	for _, left := range []struct {
		pid  uint32
		acts int
	}{{1, 2}, {3, 2}, {2, 0}} {
		must(t, r.event(&bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: left.pid, TID: left.pid, Start: fileEvent(left.pid, "/", 0).Start}))
		for len(r.repeats.ended) > 0 {
			r.repeats.forgetEnded(r.writeRepeat)
		}
		if len(r.repeats.at) != left.acts {
			t.Errorf("%d acts are left after process %d, want %d", len(r.repeats.at), left.pid, left.acts)
		}
	}
	if len(r.repeats.first) != 0 || len(r.repeats.free) != len(r.repeats.list) {
		t.Errorf("%d heads, %d of %d free", len(r.repeats.first), len(r.repeats.free), len(r.repeats.list))
	}
}

// The table of repeats stays bounded, and no count is lost when it is full.
func TestRepeatsAreBounded(t *testing.T) {
	var events []bpf.Event
	const n = maxRepeats + 500
	for i := range n {
		for range 1 + i%2 {
			events = append(events, callEvent(unix.SYS_OPENAT, unix.ENOENT, fmt.Sprint("/srv/ws/", i), bpf.Path{}))
		}
	}
	list, r := record(t, recordPlan(), events...)
	var acts uint64
	for _, e := range list {
		acts += e.Times()
	}
	if acts != n+n/2 || len(r.repeats.list) != maxRepeats || len(r.repeats.at) != 0 {
		t.Errorf("%d acts of %d, table of %d", acts, n+n/2, len(r.repeats.list))
	}
}

// Of processes that have ended, what their threads had is kept for a while: of
// some, and never in the way of those that live or have their numbers now.
func TestRepeatsOfEndedProcesses(t *testing.T) {
	r := &recorder{plan: recordPlan(), w: trace.NewWriter(io.Discard, trace.Options{})}
	open := func(pid uint32, start uint64, slot uint8) {
		ev := fileEvent(pid, "/srv/ws/a", slot)
		ev.Start = start
		must(t, r.event(&ev))
	}
	end := func(pid uint32, start uint64) {
		must(t, r.event(&bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: pid, TID: pid, Start: start}))
	}
	known := func(pid uint32, slot uint8) bool {
		ev := fileEvent(pid, "/srv/ws/a", slot)
		return r.repeats.find(r.slotKey(&ev)) != nil
	}
	open(1, 1, 0)
	open(1, 1, 1)
	end(1, 1)
	open(1, 2, 1) // the number is another process's now
	for pid := uint32(10); pid < 10+maxEnded; pid++ {
		if !known(1, 0) {
			t.Fatalf("forgotten when process %d ended", pid)
		}
		open(pid, 5, 0)
		end(pid, 5)
	}
	if known(1, 0) || !known(1, 1) || !known(11, 0) {
		t.Errorf("known: %v %v %v, want that of the ended one forgotten alone", known(1, 0), known(1, 1), known(11, 0))
	}
	end(11, 6) // nothing of it is there: no place is taken
	if n := len(r.repeats.ended); n != maxEnded {
		t.Errorf("%d processes are remembered, want %d", n, maxEnded)
	}
	for slot := range maxRepeats {
		open(uint32(1000+slot), 7, 0)
	}
	if len(r.repeats.ended) != 0 || len(r.repeats.list) != maxRepeats {
		t.Errorf("%d ended processes kept in a full table of %d", len(r.repeats.ended), len(r.repeats.list))
	}
}

func TestChangesLeaveOutReads(t *testing.T) {
	var b bytes.Buffer
	r := &recorder{plan: recordPlan(), w: trace.NewWriter(&b, trace.Options{}), changes: true}
	for _, ev := range []bpf.Event{
		callEvent(unix.SYS_OPENAT, unix.ENOENT, "/usr/lib/x", bpf.Path{}), callEvent(unix.SYS_OPENAT, unix.ENOENT, "/home/u/x", bpf.Path{}),
		callEvent(unix.SYS_UNLINKAT, unix.ENOENT, "/usr/lib/x", bpf.Path{}),
	} {
		must(t, r.event(&ev))
	}
	r.flushAll()
	must(t, r.w.Flush())
	list := readBack(t, &b)
	if len(list) != 2 || list[0].Verdict != trace.VerdictDeny || list[1].Kind != trace.KindUnlink {
		t.Errorf("%+v", list)
	}
}

// Scripts are told apart from what interprets them, and names of the environment from their values.
func TestRecordScript(t *testing.T) {
	x := execEvent(1, "./run.sh", "sh\x00./run.sh\x00", 12)
	x.Exec.Interp, x.Exec.Image, x.Exec.EnvLen = []byte("/bin/sh"), rooted("/usr/bin/dash"), 31
	env := bpf.Event{Type: bpf.ExecEnv, TGID: 1, TID: 1, Phase: bpf.Command, Exec: bpf.ExecInfo{Env: []byte("A=secret\x00B=\x00none\x00=odd\x00LAST=val\x00")[:31]}}
	list, r := record(t, recordPlan(), x, env)
	e := only(t, list)
	if string(e.Path) != "/usr/bin/dash" || string(e.Script) != "./run.sh" || string(e.Interp) != "/bin/sh" || len(e.PathGiven) != 0 {
		t.Errorf("%+v", e)
	}
	if fmt.Sprintf("%q", e.Env) != `["A" "B" "" "LAST"]` || e.EnvLen != 0 {
		t.Errorf("environment %q, %d", e.Env, e.EnvLen)
	}
	x.Exec.Interp = nil
	list, _ = record(t, recordPlan(), x)
	if e := only(t, list); string(e.PathGiven) != "./run.sh" || e.EnvLen != 31 || len(r.execs.pending) != 0 {
		t.Errorf("%+v", e)
	}
}

func TestNothingOfIt(t *testing.T) {
	r := &recorder{plan: recordPlan()}
	for p, want := range map[string]bool{
		"/home/u/notes": true, "/root/.ssh/id_rsa": true, "/opt/x/y": true, "/srv/other/x": true,
		"/srv/ws/missing": false, "/srv/ro/missing": false, "/srv/missing": false, "/missing": false, "relative/x": false,
		"/etc/missing": false, "/etc/shadow": true, "/sys/kernel/x": false, "/srv/ws/../../home/u/x": true,
		"/srv/ws/x/..": false, "/srv/ws/..": false, "/srv/ws/../..": false, "/srv/ws/../x/y": true,
	} {
		for range 2 { // what is remembered of the first changes nothing
			if got := !r.isShown([]byte(p)) && r.outside(p); got != want {
				t.Errorf("%s: %v", p, got)
			}
		}
	}
}

// steadyEvents are what a run is full of, by name.
func steadyEvents() map[string][]bpf.Event {
	exit := bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: 1, TID: 1, Start: 77}
	exec := execEvent(1, "/usr/bin/cc", "cc\x00-c\x00x.c\x00", 10)
	exec.Exec.EnvLen = 12
	env := bpf.Event{Type: bpf.ExecEnv, Phase: bpf.Command, TGID: 1, TID: 1, Exec: bpf.ExecInfo{Env: []byte("PATH=/a\x00B=c\x00")}}
	return map[string][]bpf.Event{
		"open":   {fileEvent(1, "/usr/lib/x86_64-linux-gnu/libc.so.6", 3)},
		"failed": {callEvent(unix.SYS_OPENAT, unix.ENOENT, "lib.so", rooted("/srv/ws"))},
		"change": {callEvent(unix.SYS_UNLINKAT, 0, "lib.so", rooted("/srv/ws"))},
		"missing": {
			callEvent(unix.SYS_OPENAT, unix.ENOENT, "/srv/ws/some/directories/below/it/lib.so", bpf.Path{}),
			callEvent(unix.SYS_OPENAT, unix.ENOENT, "/srv/ws/some/directories/below/it/lib.so.1", bpf.Path{}), exit,
		},
		"life": {exec, env, fileEvent(1, "/usr/lib/x", 1), callEvent(unix.SYS_OPENAT, unix.ENOENT, "x", rooted("/srv/ws")), exit},
	}
}

// replay gives a recorder the events again and again.
func replay(t testing.TB, events []bpf.Event) func() {
	r := &recorder{plan: recordPlan(), w: trace.NewWriter(io.Discard, trace.Options{})}
	return func() {
		for i := range events {
			if err := r.event(&events[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// In the steady state an event costs no allocation.
func TestEventAllocatesNothing(t *testing.T) {
	for name, events := range steadyEvents() {
		if n := testing.AllocsPerRun(1000, replay(t, events)); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for name, events := range steadyEvents() {
		b.Run(name, func(b *testing.B) {
			again := replay(b, events)
			b.ReportAllocs()
			for b.Loop() {
				again()
			}
		})
	}
}

// Memory of no file has no path, and how often it was made executable is counted.
func TestRecordAnonymousMemory(t *testing.T) {
	first := bpf.Event{Type: bpf.File, Phase: bpf.Command, TGID: 1, TID: 1, NR: unix.SYS_MMAP, File: bpf.FileInfo{How: bpf.MappedAnon, Object: true, Slot: 4}}
	first.File.Args[2] = unix.PROT_READ | unix.PROT_EXEC
	again := bpf.Event{Type: bpf.Repeat, Phase: bpf.Command, TGID: 1, TID: 1, File: bpf.FileInfo{How: bpf.MappedAnon, Slot: 4, Count: 6}}
	list, _ := record(t, recordPlan(), first, again)
	if len(list) != 2 || list[1].Count != 6 {
		t.Fatalf("%+v", list)
	}
	for _, e := range list {
		if e.Kind != trace.KindMmapExec || !e.Anon || len(e.Path) > 0 || e.Flags != unix.PROT_READ|unix.PROT_EXEC || e.SyscallNr != unix.SYS_MMAP {
			t.Errorf("%+v", e)
		}
	}
}
