//go:build linux

package initproc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A list is tried in a child, up to the first call that fails; this process stays as it is.
func TestTryEnter(t *testing.T) {
	good := func(p *Program) { p.Call("test", "getpid()", unix.SYS_GETPID) }
	bad := func(p *Program) { p.Call("test", "close(-1)", unix.SYS_CLOSE, Value(-1)) }
	for _, tt := range []struct {
		list  []func(*Program)
		step  int
		errno unix.Errno
	}{
		{list: []func(*Program){good, good}},
		{[]func(*Program){bad}, 0, unix.EBADF},
		{[]func(*Program){good, good, bad, good}, 2, unix.EBADF},
	} {
		p := &Program{}
		for _, add := range tt.list {
			add(p)
		}
		step, errno, err := TryEnter(p, nil, "")
		if err != nil || errno != tt.errno || errno != 0 && step != tt.step {
			t.Errorf("step %d, %v, %v, want %d, %v", step, errno, err, tt.step, tt.errno)
		}
		if len(p.Steps) != len(tt.list) {
			t.Error("the caller's list has changed")
		}
	}
}

// What the environment claims is taken only in the form that Enter writes, with a socket of the kind that
// it makes; and once.
func TestTakeEntered(t *testing.T) {
	ours, theirs, err := inherited("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	number, err := unix.Dup(int(theirs.Fd())) // whoever takes it closes it
	if err != nil {
		t.Fatal(err)
	}
	good := fmt.Sprintf("0003000d00000007-%d", number)
	for _, text := range []string{
		"", "x", "0000000000000000", "0000000000000000-", "0000000000000000-1", "0000000000000000-9999",
		"0000000000000000-x", "g000000000000000-%d", "000000000000000-%d", "00000000000000000-%d", "0000000000000000-+%d", good, // the last, since it is closed
	} {
		ok := text == good
		text = strings.ReplaceAll(text, "%d", strconv.Itoa(number))
		t.Setenv(marker, text)
		e := TakeEntered()
		if (e != nil) != ok {
			t.Errorf("%q: %+v", text, e)
		}
		if ok && (e.Step != 3 || e.Errno != unix.EACCES || e.Pid != 7 || int(e.Outside.Fd()) != number) {
			t.Errorf("%q: %+v", text, e)
		}
		if _, left := os.LookupEnv(marker); left {
			t.Errorf("%q is still in the environment", text)
		}
		if e != nil {
			if err := e.Outside.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
