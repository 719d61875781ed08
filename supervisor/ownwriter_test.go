package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/terminal"
	"github.com/agentguard/agentguard/internal/testenv"
)

// A plain file of another user's is written with that user's file-system ids, and so with no
// right to what is kept for root; a pipe is nobody's. The thread ends with the stream.
func TestStreamsOfAnother(t *testing.T) {
	testenv.Root(t)
	const uid, gid = 54321, 54322
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer f.Close()
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	s, err := newStdio(false, f, w, nil)
	must(t, err)
	must(t, s.writeAs(&Caller{UID: os.Getuid()}))
	if s.outs[0].own != nil {
		t.Error("the caller's own file has a writer of its own")
	}
	must(t, s.writeAs(&Caller{UID: uid, GID: gid, Groups: []int{gid}}))
	if s.outs[0].own == nil || s.outs[1].own != nil {
		t.Fatalf("of a file: %v, of a pipe: %v", s.outs[0].own, s.outs[1].own)
	}
	if n := threadsAs(t, uid, gid); n != 1 {
		t.Errorf("%d threads are user %d in the file system, want 1", n, uid)
	}
	must(t, s.start(nil, unbounded, terminal.Colours, map[string]*os.File{"stdout": discard(t), "stderr": discard(t)}))
	text := strings.Repeat("x", 300_000)
	_, err = io.WriteString(s.childOut, text)
	must(t, err)
	must(t, s.closeChild())
	var got []Stream
	inTime(t, "the relay", func() { got = s.finish(nil) })
	b, err := os.ReadFile(f.Name())
	must(t, err)
	if string(b) != text || got[0].Passed != int64(len(text)) || got[0].Error != "" {
		t.Errorf("%d bytes, %+v", len(b), got[0])
	}
	must(t, s.Close())
	for end := time.Now().Add(time.Minute); threadsAs(t, uid, gid) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the thread is still there")
		}
	}
}

// What was never started is given back too.
func TestStreamsOfAnotherNeverStarted(t *testing.T) {
	testenv.Root(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer f.Close()
	s, err := newStdio(false, f, f, nil)
	must(t, err)
	must(t, s.writeAs(&Caller{UID: 54323, GID: 54323}), s.Close())
	for end := time.Now().Add(time.Minute); threadsAs(t, 54323, 54323) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the thread is still there")
		}
	}
}

func discard(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// threadsAs counts the threads of this process with these file-system ids.
func threadsAs(t *testing.T, uid, gid int) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/task/*/status")
	must(t, err)
	for _, name := range list {
		b, err := os.ReadFile(name)
		if err != nil { // it has ended
			continue
		}
		if s := string(b); strings.Contains(s, fmt.Sprintf("Uid:\t0\t0\t0\t%d\n", uid)) && strings.Contains(s, fmt.Sprintf("Gid:\t0\t0\t0\t%d\n", gid)) {
			n++
		}
	}
	return n
}
