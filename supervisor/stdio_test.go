package supervisor

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/terminal"
)

// The command reads what the caller's stdin holds, then its end.
func TestStdin(t *testing.T) {
	for _, pass := range []bool{true, false} {
		r, w, err := os.Pipe()
		must(t, err)
		s, err := newStdio(pass, os.Stdout, os.Stdout, nil)
		must(t, err)
		childIn := s.childIn
		s.childIn = nil
		text := strings.Repeat("line\n", 50000)
		go func() { _, _ = w.WriteString(text); w.Close() }()
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		must(t, err)
		s.start(r, unbounded, terminal.Colours, map[string]*os.File{"stdout": null, "stderr": null})
		var got []byte
		inTime(t, "stdin", func() { got, err = io.ReadAll(childIn) })
		must(t, err)
		if want := map[bool]string{true: text}[pass]; string(got) != want {
			t.Errorf("pass %v: %d bytes, want %d", pass, len(got), len(want))
		}
		must(t, s.closeChild())
		s.finish(nil)
		must(t, s.Close(), childIn.Close(), r.Close(), null.Close())
		w.Close()
	}
}

// The pipes belong to the command's user, who may reopen /dev/stdout.
func TestPipesBelongToTheCommand(t *testing.T) {
	s, err := newStdio(true, os.Stdout, os.Stderr, nil)
	must(t, err)
	for _, f := range []*os.File{s.childIn, s.childOut, s.childErr} {
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		if int(st.Uid) != os.Getuid() || st.Mode&unix.S_IFMT != unix.S_IFIFO || st.Mode&0o077 != 0 {
			t.Errorf("%+v", st)
		}
	}
	must(t, s.Close())
	if err := s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing twice: %v", err)
	}
}

func TestSameFile(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	fd, err := unix.Dup(int(w.Fd()))
	must(t, err)
	dup := os.NewFile(uintptr(fd), "dup")
	again, err := os.OpenFile("/proc/self/fd/"+itoa(fd), os.O_WRONLY, 0)
	must(t, err)
	for _, c := range []struct {
		name string
		a, b *os.File
		want bool
	}{{"itself", w, w, true}, {"dup", w, dup, true}, {"opened again", w, again, false}, {"the other end", w, r, false}, {"nothing", w, nil, false}} {
		if got := sameFile(c.a, c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	must(t, r.Close(), w.Close(), dup.Close(), again.Close())
}
