package scope

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// hang only ends a test that waits for ever.
const hang = time.Minute

// message encodes a message with a number.
func message(t testing.TB, m dbus.Message) []byte {
	t.Helper()
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	var b bytes.Buffer
	if err := m.EncodeTo(&b, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b.Bytes()[8:], 7)
	return b.Bytes()
}

func reply(t testing.TB, to uint32, body ...any) []byte {
	return message(t, dbus.Message{Type: dbus.TypeMethodReply, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(to)}})
}

func refusal(t testing.TB, to uint32, name string, body ...any) []byte {
	return message(t, dbus.Message{Type: dbus.TypeError, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(to), dbus.FieldErrorName: dbus.MakeVariant(name),
	}})
}

func jobRemoved(t testing.TB, body ...any) []byte {
	return message(t, dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")), dbus.FieldInterface: dbus.MakeVariant(manager + ".Manager"), dbus.FieldMember: dbus.MakeVariant("JobRemoved"),
	}})
}

const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/5")

// fake is a manager that says "OK", reads what it is asked and answers; the calls come back.
func fake(t *testing.T, name, ok string, answer []byte, hangUp bool) (dir string, calls func() []*dbus.Message) {
	t.Helper()
	dir = t.TempDir()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []*dbus.Message, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- nil
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		first, _ := in.ReadString('\n')
		begin, _ := in.ReadString('\n')
		if !strings.HasPrefix(first, "\x00AUTH EXTERNAL ") || begin != "BEGIN\r\n" {
			t.Errorf("%q %q", first, begin)
		}
		_, _ = io.WriteString(c, ok)
		var list []*dbus.Message
		for {
			m, err := dbus.DecodeMessage(in)
			if err != nil {
				break
			}
			list = append(list, m)
			if m.Serial() == startSerial {
				_, _ = c.Write(answer)
				if hangUp {
					break
				}
			}
		}
		got <- list
	}()
	t.Cleanup(func() { _ = l.Close() })
	return dir, func() []*dbus.Message { _ = l.Close(); return <-got }
}

const ok = "OK 0123456789abcdef0123456789abcdef\r\n"

// What is asked for, by the manager's own socket and by a bus.
func TestAsk(t *testing.T) {
	for name, want := range map[string]string{"systemd/private": "StartTransientUnit", "bus": "Hello AddMatch StartTransientUnit"} {
		good := bytes.Join([][]byte{
			reply(t, startSerial, job),
			jobRemoved(t, uint32(4), job, "other.scope", "failed"),
			jobRemoved(t, "x"),
			jobRemoved(t, uint32(5), job, "a-1.scope", "done"),
		}, nil)
		dir, calls := fake(t, name, ok, good, false)
		if err := Ask(dir, "a-1", []int{11, 12}, time.Now().Add(hang)); err != nil {
			t.Fatal(name, err)
		}
		var members []string
		list := calls()
		for _, m := range list {
			members = append(members, m.Headers[dbus.FieldMember].Value().(string))
		}
		if got := strings.Join(members, " "); got != want {
			t.Fatalf("%s: %s", name, got)
		}
		body := list[len(list)-1].Body
		if body[0] != "a-1.scope" || body[1] != "fail" {
			t.Error(body)
		}
		got := map[string]any{}
		for _, p := range body[2].([][]any) {
			got[p[0].(string)] = p[1].(dbus.Variant).Value()
		}
		pids, _ := got["PIDs"].([]uint32)
		if got["Delegate"] != true || len(pids) != 2 || pids[0] != 11 || pids[1] != 12 {
			t.Error(got)
		}
	}
}

// No answer is taken for a yes but a yes, and none is waited for beyond the deadline.
func TestAskInVain(t *testing.T) {
	for _, c := range []struct {
		name, ok string
		answer   []byte
		hangUp   bool
		want     string
	}{
		{"refused", ok, refusal(t, startSerial, "org.freedesktop.DBus.Error.AccessDenied", "no\x1b[2J"), false, `refuses a scope: "org.freedesktop.DBus.Error.AccessDenied" "no\x1b[2J"`},
		{"no words", ok, refusal(t, startSerial, "a.B"), false, `refuses a scope: "a.B" ""`},
		{"failed", ok, jobRemoved(t, uint32(5), job, "a.scope", "failed"), false, `could not make a.scope: "failed"`},
		{"hangs up", ok, reply(t, startSerial, job), true, "EOF"},
		{"not let in", "REJECTED EXTERNAL\r\n", nil, false, `AUTH was answered by "REJECTED EXTERNAL\r\n"`},
		{"no line", strings.Repeat("x", 1<<16), nil, false, "no answer to AUTH"},
		{"noise", ok, bytes.Repeat([]byte("l\xff"), 4096), false, "the service manager's answer"},
		{"cut", ok, jobRemoved(t, uint32(5), job, "a.scope", "done")[:60], true, "the service manager's answer"},
		{"endless", ok, bytes.Repeat(jobRemoved(t, uint32(5), job, strings.Repeat("b", 5000), "done"), 300), false, "EOF"},
	} {
		dir, calls := fake(t, "systemd/private", c.ok, c.answer, c.hangUp)
		err := Ask(dir, "a", []int{1}, time.Now().Add(hang))
		calls()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	dir, calls := fake(t, "bus", ok, reply(t, startSerial, job), false)
	if err := Ask(dir, "a", []int{1}, time.Now().Add(50*time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silent: %v", err)
	}
	calls()
}

// otherNumbers is the directory of a manager that the process with it in its environment asks.
const otherNumbers = "AGENTGUARD_SCOPE_OTHER"

// A manager of another PID namespace would move whoever has our number there.
func TestAskOtherNumbers(t *testing.T) {
	if dir := os.Getenv(otherNumbers); dir != "" {
		if err := Ask(dir, "a", []int{os.Getpid()}, time.Now().Add(hang)); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "another PID namespace") {
			t.Error(err)
		}
		return
	}
	testenv.Root(t)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAskOtherNumbers$")
	cmd.Env = append(os.Environ(), otherNumbers+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Where nobody is to be asked, that is known at once.
func TestAskNobody(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "systemd"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "bus")) // its file stays, and nobody listens
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	for _, d := range []string{dir, "", "relative", filepath.Join(dir, "missing")} {
		if err := Ask(d, "a", []int{1}, time.Time{}); !errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", d, err)
		}
	}
}

// A socket where another user listens is told nothing.
func TestAskStranger(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "bus")}); err != nil {
		t.Fatal(err)
	}
	err = lostthread.Run(func() error {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 64379, 64379, 64379); errno != 0 {
			return errno
		}
		return unix.Listen(fd, 1) // whose it is from here on: unix(7), SO_PEERCRED
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Ask(dir, "a", []int{1}, time.Now().Add(hang)); err == nil || !strings.Contains(err.Error(), "user 64379 answers") {
		t.Error(err)
	}
}

// FuzzAnswer: whatever a manager says, it is read to an end.
func FuzzAnswer(f *testing.F) {
	f.Add(jobRemoved(f, uint32(5), job, "a.scope", "done"))
	f.Add(refusal(f, startSerial, "a.B", "why"))
	f.Add(reply(f, startSerial, job))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := answer(bufio.NewReader(bytes.NewReader(b)), "a.scope")
		if err == nil && !bytes.Contains(b, []byte("done")) {
			t.Error("a yes from nowhere")
		}
	})
}
