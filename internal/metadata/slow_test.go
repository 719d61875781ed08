//go:build linux

package metadata

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file system that does not answer holds no caller, no later call and no end, and what it
// answers later changes nothing.
func TestStuck(t *testing.T) {
	own, dir := world(t)
	c, err := New(own.trees)
	must(t, err)
	tree, in := c.trees[0].FD, filepath.Join(dir, "in/f")
	if errno, done := c.Change(call("chmod", text(in), 0o600)); errno != 0 || !done || c.Stuck() {
		t.Fatalf("before: %v %v %v", errno, done, c.Stuck())
	}
	late, answer, found := make(chan time.Time), make(chan struct{}), make(chan error, 1)
	c.after = func(time.Duration) <-chan time.Time { return late }
	c.look = func(base int, r *request) (int, error) {
		close(late) // and once more would be a panic
		<-answer
		fd, err := c.find(base, r)
		found <- err
		return fd, err
	}
	for range 2 {
		if errno, done := c.Change(call("chmod", text(in), 0o777)); errno != 0 || done || !c.Stuck() {
			t.Errorf("%v %v %v", errno, done, c.Stuck())
		}
	}
	must(t, c.Close())
	open := func() bool {
		_, err := unix.FcntlInt(uintptr(tree), unix.F_GETFD, 0)
		return err == nil
	}
	if !open() {
		t.Error("a tree that is in use was closed")
	}
	close(answer)
	if err := <-found; err != nil {
		t.Errorf("it could not have been changed: %v", err)
	}
	for end := time.Now().Add(2 * time.Minute); open(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the trees were never given back")
		}
	}
	if m := mode(t, in); m != 0o600 {
		t.Errorf("changed after all: %v", m)
	}
}
