//go:build linux

package main

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A caller waits for a place in a full queue, and is told at once that there is no socket.
func TestDialQueued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	if _, err := dialQueued(path); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for { // until the queue is full
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	done := make(chan error)
	go func() {
		c, err := dialQueued(path)
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	first, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(first)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
