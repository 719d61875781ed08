//go:build linux

package initproc

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// willing leaves the will to write to a pipe, with a comparison of two words before.
func willing(t *testing.T, same bool) (*Will, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	defer w.Close()
	p := &Program{}
	words := []byte{1, 2, 3, 4, 1, 2, 3, 4}
	if !same {
		words[4]++
	}
	data := p.Bytes(words)
	p.Call("will", "futex", unix.SYS_FUTEX, data, Value(128), p.Saved(p.Slot(data, 4)), p.Bytes(make([]byte, 16))).Refused(int(unix.ETIMEDOUT), 0)
	p.Call("will", "write", unix.SYS_WRITE, p.File(int(w.Fd())), p.String("done"), Value(4))
	will, err := LeaveWill(p, "")
	if err != nil {
		t.Fatal(err)
	}
	return will, r
}

// What was left to be done is done when we are gone, and not before.
func TestWill(t *testing.T) {
	for same, want := range map[bool]string{true: "done", false: ""} {
		will, r := willing(t, same)
		if session, err := unix.Getsid(will.pid); err != nil || session != will.pid {
			t.Errorf("it is in session %d: %v", session, err)
		}
		if err := will.sock.Close(); err != nil { // as our death closes it
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != want {
			t.Errorf("equal %v: %q, %v; want %q", same, got, err, want)
		}
		if err := will.Revoke(); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
}

func TestRevokedWill(t *testing.T) {
	will, r := willing(t, true)
	if err := errors.Join(will.Revoke(), will.Revoke(), (*Will)(nil).Revoke()); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(r); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}

// A command that is stopped is told of each time; a stop of another process is not.
func TestStopIsTold(t *testing.T) {
	p, out := born(t, &Program{})
	var told []syscall.Signal
	p.stopped = func(s syscall.Signal) {
		told = append(told, s)
		if err := unix.PidfdSendSignal(int(p.Command.Fd()), unix.SIGCONT, nil, 0); err != nil {
			t.Error(err)
		}
	}
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	const script = "kill -STOP $$; sh -c 'kill -STOP $$' & kill -TSTP $$; kill -STOP $$; echo on"
	if err := p.Exec(commandPlan("/bin/sh", "-c", script), limit); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.Status.ExitStatus() != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if got, _ := io.ReadAll(out); string(got) != "on\n" {
		t.Errorf("output %q", got)
	}
	// SIGTSTP is dropped: without a terminal the command is an orphaned process group.
	if len(told) != 2 || told[0] != syscall.SIGSTOP || told[1] != syscall.SIGSTOP {
		t.Errorf("told of %v", told)
	}
}
