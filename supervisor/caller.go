package supervisor

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/runs"
)

// Caller is whoever asked for the run. A run gets no more than its caller may
// do: granted paths are opened with these ids.
type Caller struct {
	UID, GID int   // as the host numbers them
	Groups   []int // supplementary groups
	Sudo     bool  // root acts for another user: who called sudo, or the peer of the helper
}

// CurrentCaller returns the ids that grants are judged by: the invoking
// user's under sudo (SUDO_UID, set by sudo itself), else the process's own.
func CurrentCaller(env func(string) string) (Caller, error) {
	c := Caller{UID: os.Getuid(), GID: os.Getgid()}
	sudo := env("SUDO_UID")
	if c.UID != 0 || sudo == "" || sudo == "0" {
		groups, err := os.Getgroups()
		c.Groups = groups
		return c, err
	}
	uid, err := strconv.Atoi(sudo)
	if err != nil || uid < 0 {
		return c, fmt.Errorf("SUDO_UID=%q is not a user id", sudo)
	}
	gid, err := strconv.Atoi(env("SUDO_GID"))
	if err != nil || gid < 0 {
		return c, fmt.Errorf("SUDO_GID=%q is not a group id", env("SUDO_GID"))
	}
	c = Caller{UID: uid, GID: gid, Sudo: true}
	c.Groups, err = loginGroups(uid)
	return c, err
}

// loginGroups are the groups of a user; none where there is no passwd entry.
func loginGroups(uid int) ([]int, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return nil, nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of user %d: %w", uid, err)
	}
	var out []int
	for _, s := range ids {
		if g, err := strconv.Atoi(s); err == nil {
			out = append(out, g)
		}
	}
	return out, nil
}

// groupsOf are the groups that the caller may act with as another user: its own
// as itself, and as root the login groups of that one.
func (c Caller) groupsOf(uid int) []int {
	if uid == c.UID {
		return c.Groups
	}
	groups, err := loginGroups(uid)
	if err != nil {
		return nil // less right, and no more
	}
	return groups
}

// StateDir is where the caller's records are: dir when one was asked for, else
// the default. Under sudo each invoking user has a directory of its own below
// root's, and cannot choose another: agentguard would make it, write to it and
// read from it as root.
func (c Caller) StateDir(dir string) (string, error) {
	switch {
	case c.Sudo && dir != "":
		return "", &Refusal{What: "--state is root's: under sudo the records of user " + strconv.Itoa(c.UID) + " are kept apart", Remedy: "leave it out, or call as root itself"}
	case dir != "":
		return dir, nil
	}
	dir, err := runs.DefaultPath(os.Getuid(), os.Getenv)
	if err == nil && c.Sudo {
		dir = filepath.Join(dir, "users", strconv.Itoa(c.UID))
	}
	return dir, err
}

// runtime is where what outlives a run on purpose lies, and locks: [RuntimeDir] for root, else
// agentguard in $XDG_RUNTIME_DIR, which goes with the user's last session, or else part
// of the state directory. state is as for StateDir.
func (c Caller) runtime(state string) (string, error) {
	if mode() == ModeRoot {
		return runtimeDir(), nil
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	var st unix.Stat_t
	if filepath.IsAbs(dir) && unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0 {
		return filepath.Join(dir, "agentguard"), nil
	}
	dir, err := c.StateDir(state)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "run"), nil
}

// Home is the caller's home directory, under sudo the invoking user's; "" when
// there is none.
func (c Caller) Home(env func(string) string) string {
	home := env("HOME")
	if c.Sudo {
		home = ""
		if u, err := user.LookupId(strconv.Itoa(c.UID)); err == nil {
			home = u.HomeDir
		}
	}
	if !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Clean(home)
}

// As runs fn on a thread whose file-system ids are the caller's. Changing
// fsuid from 0 also takes CAP_DAC_OVERRIDE and its kin from the thread's
// effective set (credentials(7)); the thread ends with the call, so nothing
// has to be given back.
func (c Caller) As(fn func() error) error {
	if c.UID == os.Getuid() && !c.Sudo {
		return fn()
	}
	return lostthread.Run(func() error { return c.become(fn) })
}

func (c Caller) become(fn func() error) error {
	groups := make([]uint32, 0, len(c.Groups))
	for _, g := range c.Groups {
		groups = append(groups, uint32(g))
	}
	if err := setThreadGroups(groups); err != nil {
		return fmt.Errorf("setgroups for user %d: %w", c.UID, err)
	}
	if err := setThreadFSIDs(c.UID, c.GID); err != nil {
		return err
	}
	return fn()
}

// setThreadGroups is setgroups(2) for one thread: x/sys and libc apply it to all.
func setThreadGroups(groups []uint32) error {
	p := unsafe.SliceData(groups)
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setThreadFSIDs sets fsuid and fsgid and checks both: setfsuid(2) has no error.
func setThreadFSIDs(uid, gid int) error {
	if _, err := unix.SetfsgidRetGid(gid); err != nil {
		return fmt.Errorf("setfsgid: %w", err)
	}
	if _, err := unix.SetfsuidRetUid(uid); err != nil {
		return fmt.Errorf("setfsuid: %w", err)
	}
	if got, _ := unix.SetfsuidRetUid(-1); got != uid {
		return fmt.Errorf("setfsuid(%d) did not take: fsuid is %d", uid, got)
	}
	if got, _ := unix.SetfsgidRetGid(-1); got != gid {
		return fmt.Errorf("setfsgid(%d) did not take: fsgid is %d", gid, got)
	}
	return nil
}
