//go:build linux

package initproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raw sends a message of any shape to the command's control socket.
func raw(t *testing.T, p *Process, hello []byte, plan []byte, fds ...int) {
	t.Helper()
	var rights []byte
	if plan != nil {
		mem, err := sealedMemfd("plan", plan, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		fds = append([]int{int(mem.Fd())}, fds...)
	}
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	rc, err := p.control.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var serr error
	if err := rc.Write(func(fd uintptr) bool { serr = unix.Sendmsg(int(fd), hello, rights, nil, 0); return true }); err != nil || serr != nil {
		t.Fatal(err, serr)
	}
}

func hello(magic, size uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, magic), size)
}

// A message that is not exactly a plan ends the command before any call of it
// is made, and PID 1 with it: nothing half-understood is run.
func TestInitRefusesWhatIsNoPlan(t *testing.T) {
	marker := func() *Program { // would write if it ran
		p := &Program{}
		p.Call("x", "write", unix.SYS_WRITE, Value(1), p.String("RAN"), Value(3))
		p.Exec("true", unix.SYS_EXECVE, true, p.String("/bin/true"), p.Strings([]string{"true"}), p.Strings(nil))
		return p
	}
	good := marker().encode()
	changed := func(off int, v uint32) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[off:], v)
		return b
	}
	size := uint32(len(good))
	for _, c := range []struct {
		name  string
		hello []byte
		plan  []byte
		fds   []int
	}{
		{"another magic", hello(planMagic+1, size), good, nil},
		{"a short message", hello(planMagic, size)[:7], good, nil},
		{"a long message", append(hello(planMagic, size), 0), good, nil},
		{"an empty plan", hello(planMagic, 0), good, nil},
		{"no descriptor", hello(planMagic, size), nil, nil},
		{"no memfd but a directory", hello(planMagic, size), nil, []int{unix.AT_FDCWD + 100 /* 0 */}},
		{"another magic inside", hello(planMagic, size), changed(0, 1), nil},
		{"larger than it says", hello(planMagic, size), changed(28, size+1), nil},
		{"a descriptor too few", hello(planMagic, size), changed(12, 1), nil},
		{"a descriptor too many", hello(planMagic, size), good, []int{0}},
		{"an empty memfd", hello(planMagic, 4096), []byte{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, out := born(t, &Program{})
			if err := p.Locked(limit); err != nil {
				t.Fatal(err)
			}
			raw(t, p, c.hello, c.plan, c.fds...)
			// The control socket carries nothing more: Exec would send a second plan.
			if err := p.control.Close(); err != nil {
				t.Fatal(err)
			}
			p.control = nil
			if b, _ := io.ReadAll(p.errors); len(b) != 0 {
				t.Errorf("a report came: % x", b)
			}
			if b, _ := io.ReadAll(out); len(b) != 0 {
				t.Errorf("it ran: %q", b)
			}
			if exit, err := p.Wait(); err == nil && exit.Status.ExitStatus() == 0 {
				t.Errorf("exit %+v", exit)
			}
		})
	}
}

// A plan that never comes: when the supervisor's socket closes, both end.
func TestInitEndsWithoutAPlan(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	if err := p.control.Close(); err != nil {
		t.Fatal(err)
	}
	p.control = nil
	if _, err := io.ReadAll(out); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || exit.Status.ExitStatus() != 1 {
		t.Errorf("%+v, %v", exit, err)
	}
}

// As many descriptors as a plan may carry arrive in their order, none is lost.
func TestInitTakesManyDescriptors(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	plan := &Program{}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i := range maxFiles {
		f, err := sealedMemfd("m", []byte(fmt.Sprintf("%03d ", i)), 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		plan.Call("x", "sendfile", unix.SYS_SENDFILE, Value(1), plan.File(int(f.Fd())), plan.Bytes(make([]byte, 8)), Value(4))
	}
	plan.Call("fds", "close_range", unix.SYS_CLOSE_RANGE, Value(3), Value(uint32(0xffffffff)), Value(unix.CLOSE_RANGE_CLOEXEC))
	plan.Exec("true", unix.SYS_EXECVE, true, plan.String("/bin/sh"), plan.Strings([]string{"sh", "-c", "ls /proc/self/fd | wc -l"}), plan.Strings(nil))
	read := make(chan []byte, 1)
	go func() { b, _ := io.ReadAll(out); read <- b }() // meanwhile: each sendfile takes a slot of the pipe
	if err := p.Exec(plan, limit); err != nil {
		t.Fatal(err)
	}
	got := <-read
	var want strings.Builder
	for i := range maxFiles {
		fmt.Fprintf(&want, "%03d ", i)
	}
	if string(got) != want.String()+"4\n" {
		t.Errorf("got %d bytes, ending in %q", len(got), got[max(0, len(got)-30):])
	}
}

// More than fit are refused before any call is made.
func TestInitRefusesTooManyDescriptors(t *testing.T) {
	for _, n := range []int{maxFiles + 2, 253, 400} {
		p, _ := born(t, &Program{})
		if err := p.Locked(limit); err != nil {
			t.Fatal(err)
		}
		plan := &Program{}
		var files []*os.File
		for range n {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			plan.File(int(f.Fd()))
		}
		plan.Exec("true", unix.SYS_EXECVE, true, plan.String("/bin/true"), plan.Strings(nil), plan.Strings(nil))
		if err := p.Exec(plan, limit); err == nil {
			t.Errorf("%d descriptors were taken", n)
		}
		for _, f := range files {
			f.Close()
		}
	}
}

// Arguments and environment up to the kernel's own bounds pass unchanged.
func TestInitLargeArguments(t *testing.T) {
	word := strings.Repeat("w", 100<<10) // below MAX_ARG_STRLEN, 128 KiB
	for _, c := range []struct {
		name      string
		args, env int // 100 KiB each
		want      error
	}{
		{"1.9 MB", 10, 9, nil},
		{"over the stack's quarter", 25, 25, unix.E2BIG},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, out := born(t, &Program{})
			if err := p.Locked(limit); err != nil {
				t.Fatal(err)
			}
			argv := []string{"sh", "-c", "echo $# ${#1}; env | wc -l", "x"}
			var env []string
			for range c.args {
				argv = append(argv, word)
			}
			for i := range c.env {
				env = append(env, fmt.Sprintf("X%d=%s", i, word))
			}
			plan := &Program{}
			plan.Call("fds", "close_range", unix.SYS_CLOSE_RANGE, Value(3), Value(uint32(0xffffffff)), Value(unix.CLOSE_RANGE_CLOEXEC))
			plan.Exec("sh", unix.SYS_EXECVE, true, plan.String("/bin/sh"), plan.Strings(argv), plan.Strings(env))
			err := p.Exec(plan, limit)
			if c.want != nil {
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(out)
			var n, length, lines int
			if _, err := fmt.Sscan(string(got), &n, &length, &lines); err != nil || n != c.args || length != len(word) || lines < c.env {
				t.Errorf("the command saw %q", got)
			}
		})
	}
}

// A long list of steps is no harder than a short one.
func TestInitManySteps(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	plan := &Program{}
	for range 20000 {
		plan.Call("x", "getppid", unix.SYS_GETPPID)
	}
	plan.Call("x", "the last", unix.SYS_MOUNT, Value(0), Value(0), Value(0))
	err := p.Exec(plan, limit)
	var se *StepError
	if !errors.As(err, &se) || se.Step.Label != "the last" {
		t.Errorf("%v", err)
	}
}

// PID 1 is deaf to whatever the command or the host's users send, but to what
// the kernel itself cannot refuse.
func TestPID1RefusesSignals(t *testing.T) {
	p, out := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	const script = `for s in HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU KILL STOP TSTP CONT; do kill -$s 1; done; echo alive; read line; echo $line`
	if err := p.Exec(commandPlan("/bin/sh", "-c", script), limit); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(out, buf); err != nil || string(buf) != "alive\n" {
		t.Fatalf("%q, %v", buf, err)
	}
	for s := unix.Signal(1); s < 65; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP {
			continue // from the parent namespace these two work
		}
		if err := unix.PidfdSendSignal(int(p.PidFD.Fd()), s, nil, 0); err != nil {
			t.Errorf("signal %d: %v", s, err)
		}
	}
	time.Sleep(10 * time.Millisecond)
	if err := unix.PidfdSendSignal(int(p.PidFD.Fd()), 0, nil, 0); err != nil {
		t.Errorf("PID 1 is gone: %v", err)
	}
	if exit, err := p.Wait(); err != nil || exit.Status.ExitStatus() != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
}
