package testenv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Users that tests act as, none of which the host has. Each is one test's at a time, on the whole machine: its processes are
// told apart by it, and so are limits that the kernel counts for a user.
const (
	firstUser = 424300
	users     = 60
)

// usersDir holds a lock for each. It stays: whoever removed a lock would give it twice.
func usersDir() string { return filepath.Join(os.TempDir(), "agentguard-test-users") }

var (
	userMu   sync.Mutex
	userHeld = map[int]bool{} // by this process, whose own locks do not keep it out of others' descriptors
)

// User returns a user id that is nobody else's until the test ends, in this and in any other test process. It takes root.
func User(t *testing.T) int {
	t.Helper()
	Root(t)
	dir := usersDir()
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	userMu.Lock()
	defer userMu.Unlock()
	for n := range users {
		uid := firstUser + n
		if userHeld[uid] {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(uid)), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || hasProcesses(uid) {
			f.Close()
			continue
		}
		userHeld[uid] = true
		t.Cleanup(func() {
			userMu.Lock()
			defer userMu.Unlock()
			delete(userHeld, uid)
			f.Close()
		})
		return uid
	}
	t.Fatalf("all %d users for tests are in use", users)
	return 0
}

// hasProcesses reports whether a test that was killed has left some to its user.
func hasProcesses(uid int) bool {
	want := []byte(fmt.Sprintf("\nUid:\t%d\t", uid))
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, want) {
			return true
		}
	}
	return false
}
