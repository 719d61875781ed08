// Package scope asks the service manager of a user (systemd --user) for a scope: a cgroup
// of their own for processes that run already, which the user may divide (Delegate=yes).
// The manager removes it when no process is in it any more, however they ended.
//
// It is one call of the manager, StartTransientUnit (org.freedesktop.systemd1(5)), by the
// manager's own socket, as systemctl(1) does it, or by the user's bus where only that is
// there. Both speak D-Bus.
//
// Nothing of an answer is believed: whoever asks has to look in /proc/self/cgroup.
package scope

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// ErrNone says that no service manager of this user is there to be asked.
var ErrNone = errors.New("no service manager of this user answers")

// answerBytes bounds all that is read of an answer.
const answerBytes = 1 << 20

// Ask moves processes of the caller's user into a new scope NAME.scope, and returns when the
// manager says that they are there. runtimeDir is XDG_RUNTIME_DIR. The error wraps
// [ErrNone] where there is no manager, which takes no time; after the deadline it wraps
// [os.ErrDeadlineExceeded], and the manager may still do it.
func Ask(runtimeDir, name string, pids []int, deadline time.Time) error {
	conn, bus, err := dial(runtimeDir, deadline)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	in := bufio.NewReader(io.LimitReader(conn, answerBytes))
	if err := authenticate(conn, in); err != nil {
		return err
	}
	unit := name + ".scope"
	calls, err := request(unit, pids, bus)
	if err != nil {
		return err
	}
	if _, err := conn.Write(calls); err != nil {
		return err
	}
	return answer(in, unit)
}

// dial connects to the user's bus, or to its manager.
func dial(runtimeDir string, deadline time.Time) (conn *net.UnixConn, bus bool, err error) {
	if !filepath.IsAbs(runtimeDir) {
		return nil, false, fmt.Errorf("XDG_RUNTIME_DIR is %q: %w", runtimeDir, ErrNone)
	}
	for _, name := range []string{"systemd/private", "bus"} {
		d := net.Dialer{Deadline: deadline}
		c, err := d.Dial("unix", filepath.Join(runtimeDir, name))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		conn := c.(*net.UnixConn)
		if err := ours(conn); err != nil {
			return nil, false, errors.Join(err, conn.Close())
		}
		return conn, name == "bus", nil
	}
	return nil, false, fmt.Errorf("%s has neither systemd/private nor bus: %w", runtimeDir, ErrNone)
}

// ours is an error unless the socket was bound by a process of the caller's user, which
// numbers processes as we do.
func ours(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cerr != nil {
		return errors.Join(err, cerr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: user %d answers there, not this one", conn.RemoteAddr(), cred.Uid)
	}
	if cred.Pid == 0 { // of another PID namespace (unix(7)): our numbers are somebody else's there
		return fmt.Errorf("%s belongs to another PID namespace: %w", conn.RemoteAddr(), ErrNone)
	}
	return nil
}

// authenticate is the line protocol before the first message: the other end knows by the
// socket who we are (D-Bus specification, "Authentication Mechanisms").
func authenticate(out io.Writer, in *bufio.Reader) error {
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	if _, err := io.WriteString(out, "\x00AUTH EXTERNAL "+uid+"\r\nBEGIN\r\n"); err != nil {
		return err
	}
	line, err := in.ReadSlice('\n') // at most what in holds
	if err != nil {
		return fmt.Errorf("no answer to AUTH: %w", err)
	}
	if !bytes.HasPrefix(line, []byte("OK ")) {
		return fmt.Errorf("AUTH was answered by %.80q", line)
	}
	return nil
}

// The numbers of our messages.
const (
	helloSerial = iota + 1
	matchSerial
	startSerial
)

const (
	busName = "org.freedesktop.DBus"
	manager = "org.freedesktop.systemd1"
	removed = "type='signal',interface='" + manager + ".Manager',member='JobRemoved'"
)

// property and auxiliary are the (sv) and (sa(sv)) of StartTransientUnit.
type property struct {
	Name  string
	Value dbus.Variant
}

type auxiliary struct {
	Name       string
	Properties []property
}

// request is all that is sent. With a bus it takes a name first, and a subscription to
// the signal that says that the unit has been started.
func request(unit string, pids []int, bus bool) ([]byte, error) {
	var list []uint32
	for _, pid := range pids {
		list = append(list, uint32(pid))
	}
	var out bytes.Buffer
	if bus {
		err := errors.Join(
			call(&out, helloSerial, busName, "/org/freedesktop/DBus", busName, "Hello"),
			call(&out, matchSerial, busName, "/org/freedesktop/DBus", busName, "AddMatch", removed))
		if err != nil {
			return nil, err
		}
	}
	err := call(&out, startSerial, manager, "/org/freedesktop/systemd1", manager+".Manager", "StartTransientUnit", unit, "fail", []property{
		{"Description", dbus.MakeVariant("agentguard exec")},
		{"Delegate", dbus.MakeVariant(true)},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")}, // nothing of it stays, whatever its processes met
		{"PIDs", dbus.MakeVariant(list)},
	}, []auxiliary{})
	return out.Bytes(), err
}

// call encodes a method call. The library gives numbers only to messages that it
// sends itself: this one's is put where the header has it.
func call(out *bytes.Buffer, serial uint32, dest, path, iface, member string, args ...any) error {
	m := dbus.Message{Type: dbus.TypeMethodCall, Flags: dbus.FlagNoAutoStart, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldDestination: dbus.MakeVariant(dest),
		dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath(path)),
		dbus.FieldInterface:   dbus.MakeVariant(iface),
		dbus.FieldMember:      dbus.MakeVariant(member),
	}}
	if len(args) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
	}
	at := out.Len()
	if err := m.EncodeTo(out, binary.LittleEndian); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[at+8:], serial)
	return nil
}

// answer waits until the manager has made the unit or says why it does not.
func answer(in *bufio.Reader, unit string) error {
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return fmt.Errorf("the service manager's answer: %w", err)
		}
		switch m.Type {
		case dbus.TypeError:
			if to, _ := m.Headers[dbus.FieldReplySerial].Value().(uint32); to != matchSerial {
				return fmt.Errorf("the service manager refuses a scope: %s", words(m))
			}
		case dbus.TypeSignal:
			if result, ok := ended(m, unit); ok {
				if result != "done" {
					return fmt.Errorf("the service manager could not make %s: %.80q", unit, result)
				}
				return nil
			}
		}
	}
}

// ended reads the signal JobRemoved(id, job, unit, result).
func ended(m *dbus.Message, unit string) (result string, ok bool) {
	if member, _ := m.Headers[dbus.FieldMember].Value().(string); member != "JobRemoved" || len(m.Body) != 4 {
		return "", false
	}
	if name, _ := m.Body[2].(string); name != unit {
		return "", false
	}
	result, ok = m.Body[3].(string)
	return result, ok
}

// words are the name of an error and what it says.
func words(m *dbus.Message) string {
	name, _ := m.Headers[dbus.FieldErrorName].Value().(string)
	var text string
	if len(m.Body) > 0 {
		text, _ = m.Body[0].(string)
	}
	return strings.TrimSpace(fmt.Sprintf("%.120q %.200q", name, text))
}
