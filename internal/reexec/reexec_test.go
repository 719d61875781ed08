package reexec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The process of the tests is this binary again, known by its argument.
const testMode = "agentguard-reexec-test"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == testMode {
		os.Exit(Main(serve))
	}
	os.Exit(testenv.Main(m))
}

// serve says what it was given, then repeats each message with the number of its
// descriptors and what they hold, and ends with a word on standard error where it was told "fail".
func serve() error {
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	conn, err := Control()
	if err != nil {
		return err
	}
	extra, _ := io.ReadAll(os.NewFile(ControlFD+1, "extra"))
	say := func(format string, a ...any) { _, err = fmt.Fprintf(conn, format, a...) }
	groups, _ := os.Getgroups()
	dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	say("%s %s %d %q %d %d %v %d", config, extra, len(os.Environ()), os.Args[0], os.Getuid(), os.Getgid(), groups, dumpable)
	fail := false
	rerr := Receive(conn, func(message string, fds []int) error {
		text := ""
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "received")
			b, _ := io.ReadAll(f)
			flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			text += fmt.Sprintf(" %s %d", b, flags)
			f.Close()
		}
		fail = fail || message == "fail"
		say("%s: %d%s", message, len(fds), text)
		return err
	})
	if fail {
		return errors.New(strings.Repeat("x", 2*maxTail) + "\n\ngoroutine 1")
	}
	return rerr
}

// pipeOf is the reading end of a pipe that holds a text.
func pipeOf(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return r
}

func started(t *testing.T, who Identity) *Process {
	t.Helper()
	p, err := Start(&Spec{
		Name: "reexec-test", What: "the test's process", Mode: testMode, Config: []byte("config"), Who: who, Files: []*os.File{pipeOf(t, "extra")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(); _ = p.Close(time.Minute) })
	return p
}

// A process has its configuration, its files, no environment and the identity that it
// was given; messages go both ways, descriptors in; it ends when its supervisor has no more to say.
func TestProcess(t *testing.T) {
	who := Identity{UID: os.Getuid(), GID: os.Getgid()}
	if who.UID == 0 {
		who = Identity{UID: 65534, GID: 65533, Groups: []int{65531, 65532}}
	}
	p := started(t, who)
	first := ""
	if err := p.Ready(time.Minute, 1000, func(b []byte) bool { first = string(b); return true }); err != nil {
		t.Fatal(err)
	}
	groups, dumpable := fmt.Sprint(who.Groups), 0 // with another user's ids nobody of that user could have opened its memory
	if os.Getuid() != 0 {
		own, _ := os.Getgroups()
		groups, dumpable = fmt.Sprint(own), 1
	}
	b, err := os.ReadFile("/proc/sys/fs/suid_dumpable") // proc_sys_fs(5)
	if err != nil {
		t.Fatal(err)
	}
	if mode, _ := strconv.Atoi(strings.TrimSpace(string(b))); dumpable == 0 {
		dumpable = mode
	}
	if want := fmt.Sprintf(`config extra 0 "reexec-test" %d %d %s %d`, who.UID, who.GID, groups, dumpable); first != want {
		t.Errorf("%s, want %s", first, want)
	}
	if err := errors.Join(p.Send("none", nil), p.Send("two", []*os.File{pipeOf(t, "a"), pipeOf(t, "b")}), p.Finish()); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := p.Read(1000, func(b []byte) error { got = append(got, string(b)); return nil }); err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(got, "|"); all != "none: 0|two: 2 a 1 b 1" { // closed on exec
		t.Error(all)
	}
	if err := errors.Join(p.Close(time.Minute), p.Close(time.Minute)); err != nil {
		t.Error(err)
	}
}

// What a process says when it fails is told, in bounds and without the stacks of a crash.
func TestProcessFails(t *testing.T) {
	p := started(t, Identity{UID: os.Getuid(), GID: os.Getgid()})
	if err := errors.Join(p.Send("fail", nil), p.Finish()); err != nil {
		t.Fatal(err)
	}
	if err := p.Read(1000, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := p.Close(time.Minute)
	if err == nil || !strings.HasPrefix(err.Error(), "the test's process: exit status 1: xxx") || strings.Contains(err.Error(), "goroutine") || len(err.Error()) > 2*maxTail {
		t.Error(err)
	}
}

// One that does not say the right word first is ended.
func TestProcessNotReady(t *testing.T) {
	p := started(t, Identity{UID: os.Getuid(), GID: os.Getgid()})
	if err := p.Ready(time.Minute, 1000, func([]byte) bool { return false }); err == nil {
		t.Error("it serves")
	}
}

// A program that its user may not execute is started from a copy, and only such a one.
func TestExecutable(t *testing.T) {
	var paths []string
	refusing := func(path string) error {
		paths = append(paths, path)
		if len(paths) == 1 {
			return fmt.Errorf("fork/exec: %w", unix.EACCES)
		}
		have, err := os.ReadFile(path)
		if want, _ := os.ReadFile("/proc/self/exe"); err == nil && string(have) != string(want) {
			err = errors.New("the copy is another")
		}
		return err
	}
	if err := Executable(nil, refusing); err != nil || len(paths) != 2 || paths[0] != "/proc/self/exe" {
		t.Error(paths, err)
	}
	calls := 0
	if err := Executable(nil, func(string) error { calls++; return unix.ENOENT }); !errors.Is(err, unix.ENOENT) || calls != 1 {
		t.Error(calls, err)
	}
}
