package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
)

func attackDescriptors() error {
	good := bytesOf(helper.Exec, request("echo", "gained").lists())
	open := func(path string, flags int) int {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			panic(path + ": " + err.Error())
		}
		return fd
	}
	null := open(os.DevNull, unix.O_RDWR)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	event, err := unix.Eventfd(0, 0)
	if err != nil {
		return err
	}
	cases := map[string][]int{
		"none": {}, "one": {null}, "two": {null, null}, "four": {null, null, null, null}, "many": slices.Repeat([]int{null}, 200),
		"a directory": {null, open("/tmp", unix.O_RDONLY), null}, "O_PATH": {null, open("/tmp", unix.O_PATH), null},
		"a socket": {null, pair[0], null}, "a socket to read": {pair[0], null, null}, "an eventfd": {null, event, null},
		"procfs": {null, open("/proc/self/oom_score_adj", unix.O_WRONLY), null}, "procfs to read": {open("/proc/self/environ", unix.O_RDONLY), null, null},
		"read only": {null, open(os.DevNull, unix.O_RDONLY), null}, "write only": {open(os.DevNull, unix.O_WRONLY), null, null},
	}
	for name, fds := range cases {
		text, err := answerTo(good, fds...)
		if err != nil || !strings.HasPrefix(text, string(helper.Failed)) {
			fmt.Printf("%s: %q %v\n", name, text, err)
		}
	}
	return nil
}

// lingering are sockets whose last close, by the helper's process, takes two minutes: they have sent
// what nobody reads.
func lingering(n int) (fds []int, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		fds = append(fds, fd)
		err = errors.Join(
			unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}),
			unix.SetNonblock(fd, true), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 120}))
		if err != nil {
			return nil, err
		}
		other, err := l.Accept()
		if err != nil {
			return nil, err
		}
		unread = append(unread, other)
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 1<<16))
		}
		if err != unix.EAGAIN {
			return nil, err
		}
	}
	return fds, nil
}

// handOn sends bytes with descriptors, of which the receiver's are the last then.
func handOn(c *net.UnixConn, b []byte, fds []int) error {
	_, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// attackLingers sends requests with such: the refusal must not wait.
func attackLingers() error {
	for name, b := range map[string][]byte{
		"a stream": bytesOf(helper.Exec, request("echo", "gained").lists()), "one too many": bytesOf(helper.Users, nil), "no frame": []byte("GET / HTTP/1.0\r\n\r\n"),
	} {
		fds, err := lingering(3)
		if err != nil {
			return err
		}
		c, err := dialSocket()
		if err == nil {
			err = errors.Join(handOn(c, b, fds), c.SetReadDeadline(time.Now().Add(30*time.Second)))
		}
		if err != nil {
			return err
		}
		if f, err := helper.Read(c); err != nil || f.Kind != helper.Failed {
			fmt.Printf("%s: %v\n", name, err)
		}
	}
	return nil
}

func TestHelperDescriptors(t *testing.T) {
	s := serveUsers(t)
	if out := s.attack("descriptors") + s.attack("lingers"); out != "" {
		t.Errorf("taken, or not answered:\n%s", out)
	}
	s.works()
}

// What the client itself cannot hand on is a pipe for the helper, so that a run works with it.
func TestHelperSocketsAsStreams(t *testing.T) {
	s := serveUsers(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sh", "-c", "read x; echo got $x; echo err >&2")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if _, err := ours.WriteString("word\n"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(ours)
	if werr := cmd.Wait(); err != nil || werr != nil || string(got) != "got word\nerr\n" {
		t.Errorf("%q %v %v", got, err, werr)
	}
}
