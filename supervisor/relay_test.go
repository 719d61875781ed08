package supervisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/terminal"
)

// patience ends a hang; no test waits for it when all is well.
const patience = 2 * time.Minute

// inTime limits how long a part of a test may hang.
func inTime(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s hangs", what)
	}
}

func hexOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// testStdio is a relay whose caller reads from the pipes that it returns.
type testStdio struct {
	*stdio
	out, err *os.File // what the caller sees
	record   map[string]*os.File
	passed   []*os.File // the caller's ends that the relay writes to
	limits   Limits
}

// newTestStdio makes a relay; shared gives stdout and stderr one open file.
func newTestStdio(t *testing.T, shared bool, limits Limits) *testStdio {
	t.Helper()
	s := &testStdio{record: map[string]*os.File{}}
	pipes := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		must(t, err)
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	var w1, w2 *os.File
	s.out, w1 = pipes()
	if s.err, w2 = pipes(); shared {
		w2 = w1
	}
	s.passed = []*os.File{w1, w2}
	var err error
	s.stdio, err = newStdio(false, w1, w2, nil)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	for _, name := range []string{"stdout", "stderr"} {
		f, err := os.CreateTemp(t.TempDir(), name)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		s.record[name] = f
	}
	s.limits = limits
	return s
}

func (s *testStdio) kept(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(s.record[name].Name())
	must(t, err)
	return string(b)
}

// command writes as the command would, then ends.
func (s *testStdio) command(t *testing.T, fn func(stdout, stderr *os.File)) []Stream {
	t.Helper()
	s.start(nil, s.limits, terminal.Colours, s.record)
	fn(s.childOut, s.childErr)
	must(t, s.closeChild())
	var got []Stream
	inTime(t, "the relay", func() { got = s.finish(nil) })
	for _, w := range s.passed {
		w.Close()
	}
	return got
}

var unbounded = Limits{Stdout: -1}

// reader collects what the caller gets, from the start: a full pipe stops a relay.
func reader(f *os.File) func() string {
	var b []byte
	var done sync.WaitGroup
	done.Go(func() { b, _ = io.ReadAll(f) })
	return func() string { done.Wait(); return string(b) }
}

func TestRelayTwoStreams(t *testing.T) {
	s := newTestStdio(t, false, unbounded)
	out, errs := reader(s.out), reader(s.err)
	got := s.command(t, func(stdout, stderr *os.File) {
		_, e1 := stdout.WriteString("out\x00\xff\n")
		_, e2 := stderr.WriteString("err\n")
		must(t, e1, e2)
	})
	want := []Stream{
		{Name: "stdout", Total: 6, Kept: 6, Passed: 6, SHA256: hexOf("out\x00\xff\n")},
		{Name: "stderr", Total: 4, Kept: 4, Passed: 4, SHA256: hexOf("err\n")},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	if o, e := out(), errs(); o != "out\x00\xff\n" || e != "err\n" {
		t.Errorf("the caller got %q, %q", o, e)
	}
	if o, e := s.kept(t, "stdout"), s.kept(t, "stderr"); o != "out\x00\xff\n" || e != "err\n" {
		t.Errorf("the record has %q, %q", o, e)
	}
}

// One open file for both streams is one pipe: the order of writes holds.
func TestRelayKeepsOrder(t *testing.T) {
	s := newTestStdio(t, true, unbounded)
	out := reader(s.out)
	var want strings.Builder
	got := s.command(t, func(stdout, stderr *os.File) {
		for i := range 2000 {
			f, text := stdout, "o"+itoa(i)+"\n"
			if i%3 == 1 {
				f, text = stderr, "e"+itoa(i)+"\n"
			}
			_, err := f.WriteString(text)
			must(t, err)
			want.WriteString(text)
		}
	})
	if len(got) != 1 || got[0].Name != "stdout" || got[0].SHA256 != hexOf(want.String()) {
		t.Errorf("streams %+v", got)
	}
	if o := out(); o != want.String() || s.kept(t, "stdout") != o {
		t.Error("the order is lost")
	}
}

func TestRelayBudgets(t *testing.T) {
	const text = "0123456789"
	for _, c := range []struct {
		name       string
		limits     Limits
		kept, pass [2]int64 // of stdout, then stderr
	}{
		{"none", Limits{Stdout: -1}, [2]int64{10, 10}, [2]int64{10, 10}},
		{"none, asked to cut", Limits{Stdout: -1, CutHere: true}, [2]int64{10, 10}, [2]int64{10, 10}},
		{"the record alone", Limits{Stdout: 15}, [2]int64{10, 5}, [2]int64{10, 10}},
		{"both", Limits{Stdout: 15, CutHere: true}, [2]int64{10, 5}, [2]int64{10, 5}},
		{"exact", Limits{Stdout: 20, CutHere: true}, [2]int64{10, 10}, [2]int64{10, 10}},
		{"in the first", Limits{Stdout: 3, CutHere: true}, [2]int64{3, 0}, [2]int64{3, 0}},
		{"zero", Limits{Stdout: 0, CutHere: true}, [2]int64{0, 0}, [2]int64{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTestStdio(t, false, c.limits)
			out, errs := reader(s.out), reader(s.err)
			got := s.command(t, func(stdout, stderr *os.File) {
				_, err := stdout.WriteString(text)
				must(t, err)
				s.seen(t, 0) // two pipes have no order of their own
				_, err = stderr.WriteString(text)
				must(t, err)
			})
			for i, stream := range got {
				if stream.Total != 10 || stream.Kept != c.kept[i] || stream.Passed != c.pass[i] || stream.SHA256 != hexOf(text) {
					t.Errorf("%+v, want %d kept, %d passed", stream, c.kept[i], c.pass[i])
				}
			}
			if o, e := out(), errs(); o != text[:c.pass[0]] || e != text[:c.pass[1]] {
				t.Errorf("the caller got %q, %q", o, e)
			}
			if o, e := s.kept(t, "stdout"), s.kept(t, "stderr"); o != text[:c.kept[0]] || e != text[:c.kept[1]] {
				t.Errorf("the record has %q, %q", o, e)
			}
		})
	}
}

// seen waits until what the pipe of a stream holds was dealt with: a relay stops only after that.
func (s *testStdio) seen(t *testing.T, stream int) {
	t.Helper()
	s.hold(t, stream)()
}

// hold stops the relay of a stream once it has dealt with all that there is.
func (s *testStdio) hold(t *testing.T, stream int) (release func()) {
	t.Helper()
	release = s.outs[stream].hold() // which waits for a while only
	inTime(t, "the relay's stop", func() { <-s.outs[stream].held.Load().reached })
	return release
}

// More than any pipe or chunk holds, past a caller that reads slowly.
func TestRelayHugeOutputSlowReader(t *testing.T) {
	const size = 9<<20 + 12345
	want := bytes.Repeat([]byte("abcdefghijklm"), size/13+1)[:size]
	s := newTestStdio(t, true, Limits{Stdout: 1 << 20})
	var sum [32]byte
	var total int
	var slow sync.WaitGroup
	slow.Go(func() {
		h := sha256.New()
		buf := make([]byte, 100001)
		for {
			n, err := s.out.Read(buf)
			h.Write(buf[:n])
			if total += n; err != nil {
				break
			}
			if total < 1<<20 {
				time.Sleep(time.Millisecond)
			}
		}
		h.Sum(sum[:0])
	})
	got := s.command(t, func(stdout, _ *os.File) {
		_, err := stdout.Write(want)
		must(t, err)
	})
	slow.Wait()
	if sum != sha256.Sum256(want) || total != size {
		t.Errorf("the caller got %d bytes of %d", total, size)
	}
	if g := got[0]; g.Total != size || g.Passed != size || g.Kept != 1<<20 || g.SHA256 != hexOf(string(want)) || g.Error != "" {
		t.Errorf("%+v", g)
	}
	if s.kept(t, "stdout") != string(want[:1<<20]) || !s.cut() {
		t.Error("the record's copy is not the first MiB")
	}
}

// A disk that is full costs the record's copy, and the stream says so; the
// caller gets everything.
func TestRelayRecordFails(t *testing.T) {
	s := newTestStdio(t, false, unbounded)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	s.record["stdout"] = full
	out, errs := reader(s.out), reader(s.err)
	got := s.command(t, func(stdout, stderr *os.File) {
		_, e1 := stdout.WriteString("out")
		_, e2 := stderr.WriteString("err")
		must(t, e1, e2)
	})
	if g := got[0]; g.Total != 3 || g.Passed != 3 || g.Kept != 0 || !strings.HasPrefix(g.Error, "record: ") || !strings.Contains(g.Error, "no space left") {
		t.Errorf("%+v", g)
	}
	if g := got[1]; g.Error != "" || g.Kept != 3 {
		t.Errorf("the other stream suffers: %+v", g)
	}
	if s.cut() {
		t.Error("the disk is taken for the limit")
	}
	if o, e := out(), errs(); o != "out" || e != "err" {
		t.Errorf("the caller got %q, %q", o, e)
	}
}

// With its own copy cut, the caller's absence stops nothing.
func TestRelayGoneReaderWithABudget(t *testing.T) {
	s := newTestStdio(t, true, Limits{Stdout: 100, CutHere: true})
	must(t, s.out.Close())
	text := strings.Repeat("x", 1<<20)
	got := s.command(t, func(stdout, _ *os.File) {
		_, err := stdout.WriteString(text)
		must(t, err)
	})
	if g := got[0]; g.Total != 1<<20 || g.Kept != 100 || g.Passed != 0 || g.Error != "" || g.SHA256 != hexOf(text) {
		t.Errorf("%+v", g)
	}
}

// blockingPipe is a pipe whose ends Go takes for such as block.
func blockingPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var p [2]int
	must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	r, w = os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// Streams of the caller's that somebody else makes non-blocking lose nothing.
func TestRelayNonBlockingCaller(t *testing.T) {
	out, w := blockingPipe(t)
	in, typed := blockingPipe(t)
	s, err := newStdio(true, w, w, nil)
	must(t, err)
	defer s.Close()
	for _, fd := range []int{int(w.Fd()), int(in.Fd())} {
		must(t, unix.SetNonblock(fd, true))
	}
	record, err := os.CreateTemp(t.TempDir(), "stdout")
	must(t, err)
	defer record.Close()
	must(t, s.start(in, unbounded, terminal.Colours, map[string]*os.File{"stdout": record}))
	inTime(t, "stdin", func() {
		for i := range byte(50) { // each comes after a look at an empty pipe
			_, err := typed.Write([]byte{i})
			must(t, err)
			b := []byte{0xff}
			if _, err := io.ReadFull(s.childIn, b); err != nil || b[0] != i {
				t.Fatalf("byte %d of stdin: %v", i, err)
			}
		}
		must(t, typed.Close())
		if b, err := io.ReadAll(s.childIn); err != nil || len(b) > 0 {
			t.Errorf("%d bytes at the end of stdin, %v", len(b), err)
		}
	})
	const size = 1 << 20
	var got func() string
	inTime(t, "output", func() {
		done := make(chan error, 1)
		go func() { _, err := s.childOut.Write(make([]byte, size)); done <- err }()
		for n := 0; n < 64<<10; { // full: the next write finds no room
			n, err = unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ)
			must(t, err)
			time.Sleep(time.Millisecond)
		}
		got = reader(out)
		must(t, <-done)
	})
	must(t, s.closeChild())
	streams := s.finish(nil)
	must(t, w.Close())
	if n := len(got()); n != size || streams[0].Error != "" || streams[0].Passed != size {
		t.Errorf("%d bytes reach the caller, %+v", n, streams[0])
	}
}
