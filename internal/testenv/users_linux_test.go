package testenv

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// No two tests have a user at a time, in whichever process they run, and nobody has one of which processes are left.
func TestUser(t *testing.T) {
	a, b := User(t), User(t)
	if a == b {
		t.Errorf("%d twice", a)
	}
	var before int
	t.Run("given back", func(t *testing.T) { before = User(t) })
	f, err := os.OpenFile(filepath.Join(usersDir(), strconv.Itoa(before)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return // another test process has it by now
	}
	t.Run("another process's", func(t *testing.T) {
		if User(t) == before {
			t.Errorf("%d is locked", before)
		}
	})
	if hasProcesses(a) || !hasProcesses(os.Getuid()) {
		t.Error("processes")
	}
}
