package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestCurrentCaller(t *testing.T) {
	testenv.Root(t)
	own, err := os.Getgroups()
	must(t, err)
	root := Caller{UID: 0, GID: os.Getgid(), Groups: own}
	unknown := Caller{UID: testUID, GID: testGID, Sudo: true}
	for _, c := range []struct {
		uid, gid string
		want     Caller
		err      string
	}{
		{want: root},
		{uid: "0", gid: "0", want: root},
		{uid: itoa(testUID), gid: itoa(testGID), want: unknown},
		{uid: "x", gid: "0", err: `SUDO_UID="x" is not a user id`},
		{uid: "-1", gid: "0", err: `SUDO_UID="-1" is not a user id`},
		{uid: "1000 ", gid: "0", err: `SUDO_UID="1000 " is not a user id`},
		{uid: "99999999999999999999", gid: "0", err: "is not a user id"},
		{uid: itoa(testUID), gid: "", err: `SUDO_GID="" is not a group id`},
		{uid: itoa(testUID), gid: "wheel", err: `SUDO_GID="wheel" is not a group id`},
		{uid: itoa(testUID), gid: "-2", err: `SUDO_GID="-2" is not a group id`},
		{uid: "1\n\x1b[2J", gid: "0", err: `SUDO_UID="1\n\x1b[2J" is not a user id`}, // quoted
	} {
		env := map[string]string{"SUDO_UID": c.uid, "SUDO_GID": c.gid}
		got, err := CurrentCaller(func(name string) string { return env[name] })
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("SUDO_UID=%q SUDO_GID=%q: %v, want %q", c.uid, c.gid, err, c.err)
			}
			continue
		}
		if err != nil || got.UID != c.want.UID || got.GID != c.want.GID || got.Sudo != c.want.Sudo || !slices.Equal(got.Groups, c.want.Groups) {
			t.Errorf("SUDO_UID=%q SUDO_GID=%q: %+v, %v, want %+v", c.uid, c.gid, got, err, c.want)
		}
	}
}

// A user of the host brings the groups that the host's files give it.
func TestCurrentCallerGroups(t *testing.T) {
	testenv.Root(t)
	u, err := user.Lookup("nobody")
	if err != nil {
		testenv.Missing(t, "nobody", err.Error())
	}
	ids, err := u.GroupIds()
	must(t, err)
	env := map[string]string{"SUDO_UID": u.Uid, "SUDO_GID": u.Gid}
	c, err := CurrentCaller(func(name string) string { return env[name] })
	must(t, err)
	var got []string
	for _, g := range c.Groups {
		got = append(got, strconv.Itoa(g))
	}
	if len(got) == 0 || !slices.Equal(got, ids) || !c.Sudo {
		t.Errorf("groups %v, want %v", got, ids)
	}
}

func TestAsHasTheCallersRights(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	c := Caller{UID: testUID, GID: testGID, Groups: []int{testGroup}, Sudo: true}
	for _, f := range []struct {
		name     string
		mode     os.FileMode
		uid, gid int
		readable bool
	}{
		{"owner", 0o400, testUID, 0, true},
		{"group", 0o040, 0, testGID, true},
		{"supplementary", 0o040, 0, testGroup, true},
		{"others", 0o004, 0, 0, true},
		{"root", 0o600, 0, 0, false},
		{"rootgroup", 0o040, 0, 0, false}, // group 0 was dropped
		{"othergroup", 0o040, 0, testGroup + 1, false},
		{"ownerwithout", 0o044, testUID, testGID, false}, // the owner's bits count, and no capability
	} {
		name := mkfile(t, filepath.Join(base, f.name), "x", f.mode, f.uid, f.gid)
		err := c.As(func() error {
			_, err := os.ReadFile(name)
			return err
		})
		if (err == nil) != f.readable || (err != nil && !errors.Is(err, unix.EACCES)) {
			t.Errorf("%s: %v, want readable %v", f.name, err, f.readable)
		}
		if _, err := os.ReadFile(name); err != nil {
			t.Errorf("%s: root can no longer read it: %v", f.name, err)
		}
	}
	// What is made there is the caller's.
	mkdirOwned(t, base+"/drop", 0o777, 0, 0)
	must(t, c.As(func() error { return os.WriteFile(base+"/drop/new", nil, 0o600) }))
	var st unix.Stat_t
	must(t, unix.Stat(base+"/drop/new", &st))
	if st.Uid != testUID || st.Gid != testGID {
		t.Errorf("made by %d:%d", st.Uid, st.Gid)
	}
}

// threadIDs returns the fsuid, fsgid and groups of a thread of this process.
func threadIDs(tid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", tid))
	if err != nil {
		return "", err
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		switch {
		case len(f) == 5 && (f[0] == "Uid:" || f[0] == "Gid:"):
			out = append(out, f[4])
		case f[0] == "Groups:":
			out = append(out, strings.Join(f[1:], ","))
		}
	}
	return strings.Join(out, " "), nil
}

// The thread that took the caller's ids ends with the call. No other thread has
// them meanwhile, though the runtime needs new ones: a thread that was cloned
// from the odd one would inherit its ids.
func TestAsEndsItsThread(t *testing.T) {
	testenv.Root(t)
	before, err := threadIDs(unix.Getpid())
	must(t, err)
	c := Caller{UID: testUID, GID: testGID, Groups: []int{testGroup}, Sudo: true}
	var tid int
	must(t, c.As(func() error {
		tid = unix.Gettid()
		release := blockThreads(20)
		defer release()
		own, err := threadIDs(tid)
		if want := fmt.Sprintf("%d %d %d", testUID, testGID, testGroup); own != want {
			t.Errorf("ids %q, want %q", own, want)
		}
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			n, _ := strconv.Atoi(task.Name())
			if ids, err := threadIDs(n); err == nil && n != tid && ids != before {
				t.Errorf("thread %d has ids %q, the process %q", n, ids, before)
			}
		}
		if len(tasks) < 20 {
			t.Errorf("only %d threads", len(tasks))
		}
		return err
	}))
	if tid == unix.Getpid() {
		t.Error("the main thread has changed its ids for good")
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("thread %d lives on", tid)
		}
	}
}

// blockThreads keeps n threads in a system call until it is released.
func blockThreads(n int) (release func()) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		panic(err)
	}
	var in, all sync.WaitGroup
	for range n {
		in.Add(1)
		all.Go(func() {
			in.Done()
			var b [1]byte
			_, _ = unix.Read(fds[0], b[:])
		})
	}
	in.Wait()
	time.Sleep(20 * time.Millisecond) // all are in read, or will need a thread when they are
	return func() {
		unix.Close(fds[1])
		all.Wait()
		unix.Close(fds[0])
	}
}

// Many at once do not mix their ids.
func TestAsConcurrently(t *testing.T) {
	testenv.Root(t)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			c := Caller{UID: testUID + i, GID: testGID + i, Groups: []int{testGroup + i}, Sudo: true}
			err := c.As(func() error {
				ids, err := threadIDs(unix.Gettid())
				if want := fmt.Sprintf("%d %d %d", c.UID, c.GID, c.Groups[0]); ids != want {
					t.Errorf("ids %q, want %q", ids, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if os.Getuid() != 0 || unix.Getuid() != 0 {
		t.Error("the process is no longer root")
	}
}

func TestAsReturnsTheError(t *testing.T) {
	want := errors.New("of the function")
	for _, c := range []Caller{{UID: os.Getuid()}, {UID: testUID, GID: testGID, Sudo: true}} {
		if c.Sudo {
			testenv.Root(t)
		}
		if err := c.As(func() error { return want }); err != want {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// Ids that the kernel does not take must not leave the function with root's.
	c := Caller{UID: 1<<32 - 1, GID: testGID, Sudo: true}
	if err := c.As(func() error { t.Error("ran as root"); return nil }); err == nil {
		t.Error("uid -1 was accepted")
	}
}
