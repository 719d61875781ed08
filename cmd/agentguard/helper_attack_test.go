package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/policy"
)

// The attacks on the helper by a user. Each is made by a process with that user's ids,
// which is this test binary again: what it prints is what it has gained.

// attackVar names the attack that a process is to make.
const attackVar = "AGENTGUARD_TEST_ATTACK"

// attack makes one as ann, and returns what it printed.
func (s *service) attack(name string, env ...string) string {
	s.t.Helper()
	cmd := s.as(ann, "/proc/self/exe")
	cmd.Env = append(append(cmd.Env, attackVar+"="+name), env...)
	out, errs, status := s.finish(cmd)
	if status != 0 {
		s.t.Fatalf("attack %s: status %d: %s%s", name, status, out, errs)
	}
	return out
}

// attackMain is the life of an attacker.
func attackMain(name string) {
	attacks := map[string]func() error{
		"forged": attackForged, "descriptors": attackDescriptors, "lingers": attackLingers, "late-descriptors": attackLateDescriptors, "handed-on": attackHandedOn, "heir": attackHeir, "flood": attackFlood,
		"part": attackPart, "raw": attackRaw, "plans": attackPlans, "world": attackWorld, "runs": attackRuns, "trace": attackTrace, "records": attackRecords, "namespaces": attackNamespaces, "listen": attackListen,
	}
	if err := attacks[name](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func dialSocket() (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("AGENTGUARD_SOCKET"), Net: "unix"})
}

// request is an exec that would print what is said.
func request(argv ...string) *execRequest {
	return &execRequest{cwd: "/", tty: "auto", argv: argv, environ: []string{"PATH=/usr/bin:/bin"}, asked: []policy.Statements{{List: []policy.Statement{
		{Key: "filesystem.workspace.mode", Text: "ro", Source: policy.Source{Flag: "--mode"}},
		{Key: "filesystem.workspace.path", Text: "/usr", Source: policy.Source{Flag: "-w"}},
	}}}}
}

// answerTo sends bytes, with descriptors, and returns the answer's kind and first text.
func answerTo(b []byte, files ...int) (string, error) {
	c, err := dialSocket()
	if err != nil {
		return "", err
	}
	defer c.Close()
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if _, _, err := c.WriteMsgUnix(b, rights, nil); err != nil && !errors.Is(err, unix.EPIPE) {
		return "", err
	}
	if len(b) < 5 || b[4] == byte(helper.Exec) { // of another request, half a connection is none
		if err := c.CloseWrite(); err != nil && !errors.Is(err, unix.ENOTCONN) {
			return "", err
		}
	}
	f, err := helper.Read(c)
	if err != nil {
		return "", fmt.Errorf("no answer: %w", err)
	}
	text := string(f.Kind)
	if len(f.Lists) > 0 && len(f.Lists[0]) > 0 {
		text += " " + f.Lists[0][0]
	}
	return text, f.Close()
}

// bytesOf is a request as it goes over the wire.
func bytesOf(kind helper.Kind, lists [][]string) []byte {
	b := []byte{'a', 'g', 'h', helper.Version, byte(kind), 0, 0, 0, 0, 0, 0, 0}
	for _, list := range lists {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
		for _, text := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
			b = append(b, text...)
		}
	}
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-12))
	return b
}

func attackForged() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	good := bytesOf(helper.Exec, request("true").lists())
	huge := slices.Clone(good)
	binary.LittleEndian.PutUint32(huge[8:], 0xffffffff)
	many := bytesOf(helper.Exec, nil)
	many = binary.LittleEndian.AppendUint32(many, 0xfffffff0)
	binary.LittleEndian.PutUint32(many[8:], 4)
	version := slices.Clone(good)
	version[3] = 99
	nul := request("true")
	nul.environ = []string{"A=b\x00LD_PRELOAD=x"}
	bad := map[string][]byte{
		"empty": {}, "no frame": []byte("GET / HTTP/1.0\r\n\r\n"), "size": huge, "count": many, "version": version,
		"zero byte": bytesOf(helper.Exec, nul.lists()), "an answer": bytesOf(helper.Done, nil), "unknown": bytesOf('?', nil),
		"no lists": bytesOf(helper.Exec, nil), "no command": bytesOf(helper.Exec, request().lists()),
		"statement cut": bytesOf(helper.Exec, append(request("true").lists(), []string{"x", "", "filesystem.cow_mounts"})),
	}
	for n := 1; n < len(good); n += 7 {
		bad["cut at "+strconv.Itoa(n)] = good[:n]
	}
	for name, b := range bad {
		text, err := answerTo(b, null, null, null)
		if len(b) == 0 {
			text, err = answerTo(b)
		}
		if err != nil || !strings.HasPrefix(text, string(helper.Failed)) {
			fmt.Printf("%s: %q %v\n", name, text, err)
		}
	}
	return nil
}

func TestHelperForged(t *testing.T) {
	s := serveUsers(t)
	if out := s.attack("forged"); out != "" {
		t.Errorf("taken, or not answered:\n%s", out)
	}
	s.works()
}

// unread are the other ends of lingering sockets, open until we end: a reset would leave nothing to wait for.
var unread []net.Conn

// A connection that its maker has left to another process: the number of the process
// that made it may be anybody's by now.
func attackHandedOn() error {
	c, err := dialSocket()
	if err != nil {
		return err
	}
	f, err := c.File()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), attackVar+"=heir")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Start() // and is gone
}

// attackHeir waits until its parent has ended, and asks.
func attackHeir() error {
	for end := time.Now().Add(patience); os.Getppid() != 1 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/comm"); err != nil || !strings.Contains(string(b), "exe") {
			break
		}
	}
	awaitGo()
	conn, err := net.FileConn(os.NewFile(3, "connection"))
	if err != nil {
		return err
	}
	if _, err := conn.Write(bytesOf(helper.Records, nil)); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	f, err := helper.Read(conn.(*net.UnixConn))
	if err != nil {
		return err
	}
	if f.Kind != helper.Failed {
		fmt.Printf("taken: %q\n", f.Lists)
	}
	return nil
}

func TestHelperDeadPeer(t *testing.T) {
	s := serveUsers(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.as(ann, "/proc/self/exe")
	cmd.Env = append(cmd.Env, attackVar+"=handed-on")
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Run()
	w.Close()
	out, rerr := io.ReadAll(r) // until the heir has ended
	r.Close()
	if err != nil || rerr != nil || len(out) != 0 {
		t.Errorf("%v %v: %s", err, rerr, out)
	}
	s.works()
}

// attackFlood opens many connections and holds as many as it can.
func attackFlood() error {
	n, err := strconv.Atoi(os.Getenv("FLOOD"))
	if err != nil {
		return err
	}
	var hold []*net.UnixConn
	for range n {
		c, err := dialSocket()
		if errors.Is(err, unix.EAGAIN) { // the queue is full: refused by the kernel
			continue
		}
		if err != nil {
			return err
		}
		if len(hold) < 500 {
			hold = append(hold, c)
			continue
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	fmt.Println(len(hold))
	return nil
}

func TestHelperFlood(t *testing.T) {
	s, began := serveUsers(t), time.Now()
	if out := s.attack("flood", "FLOOD=10000"); out != "500\n" {
		t.Error(out)
	}
	// Another user is served meanwhile and afterwards, and ann again when what she held is closed.
	if out, errs, status := s.guard(bob, "exec", "-q", "-w", "/usr", "--mode", "ro", "--", "echo", "bob"); out != "bob\n" {
		t.Errorf("%d %q %q", status, out, errs)
	}
	s.until("ann is served again", func() bool {
		out, _, _ := s.guard(ann, "exec", "-q", "--", "echo", "served")
		return out == "served\n"
	})
	// Of those that were too many, one a second is told, with the number of the others.
	told := strings.Count(s.said.String(), "are taken; wait") + strings.Count(s.said.String(), "are not taken; wait")
	if most := int(time.Since(began)/time.Second) + 2; told > most {
		t.Errorf("%d lines of the log for a flood, and %d at most are to be", told, most)
	}
	if !s.logged("refused", "", ann, "user "+strconv.Itoa(ann)) {
		t.Error("the flood is not in the log")
	}
}

// A client that is killed at each step of a request leaves nothing.
func TestHelperKilledClient(t *testing.T) {
	s := serveUsers(t)
	good := bytesOf(helper.Exec, request("sleep", "1000000.1").lists())
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	for _, n := range []int{0, 1, 11, 12, 13, len(good) - 1} {
		cmd := s.as(ann, "/proc/self/exe")
		cmd.Env = append(cmd.Env, attackVar+"=part", "PART="+strconv.Itoa(n))
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.Sys() == nil {
			t.Fatal(err)
		}
		s.until("the request has ended", s.spare)
	}
	// At once, and at moments of the start of a run.
	for i := range 12 {
		cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sleep", "1000000.2")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*4) * time.Millisecond) // a moment, whichever it is
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	s.until("all have ended", s.spare)
	s.works()
}

// attackPart sends the beginning of a request, and is killed.
func attackPart() error {
	n, err := strconv.Atoi(os.Getenv("PART"))
	if err != nil {
		return err
	}
	c, err := dialSocket()
	if err != nil {
		return err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if n > 0 {
		if _, _, err := c.WriteMsgUnix(bytesOf(helper.Exec, request("sleep", "1000000.1").lists())[:n], unix.UnixRights(null, null, null), nil); err != nil {
			return err
		}
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}
