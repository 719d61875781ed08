//go:build linux

// Package metadata changes modes, owners, times and attributes of files for a command that
// may not do so itself. Landlock guards none of these calls, and by path they reach all that
// is the user's; so where it is the only view that a run has, the filter refuses them, and the
// holder of its listener (internal/notify) makes those whose file lies where the
// command may write:
//
//	command              Change
//	  chmod(path) -----> read the path of its memory, open its directory by /proc/TID
//	                     it still waits: what was read is its own
//	                     open the path (O_PATH): a file, which has a name
//	                     open that name beneath a tree, without any link: the same file?
//	  <-- 0 or errno --- act on that descriptor
//
// Nothing that was checked is looked up again, so that no race of names, links or memory
// makes it act elsewhere: the file that is changed is one that the kernel has found beneath
// the tree. A file system that does not answer holds nobody but the thread that asked it
// ([Limit]). "Continue" is never said. The process that calls Change must be no more than the
// command's user ([Able]): whatever else forbids the act is left to the kernel.
package metadata

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is what may be changed.
type Tree struct {
	FD  int  // O_PATH or more
	Dir bool // a directory with all that is below it; otherwise the one file
}

// Call is a system call that waits for its answer.
type Call struct {
	Name  string // without a number of one architecture
	TID   uint32 // who makes it, as our PID namespace numbers it
	Args  [6]uint64
	Waits func() bool // it still does, so that TID is its own
}

// Changer acts in its trees. It is used by one goroutine at a time.
type Changer struct {
	trees []Tree
	after func(time.Duration) <-chan time.Time
	look  func(base int, r *request) (fd int, err error)
	stuck <-chan answer // of the call that was waited for in vain
}

// Able says why this process may not act for a command without capabilities; nil: it may.
func Able() error {
	if os.Geteuid() == 0 {
		return errors.New("metadata: root could change what the command may not")
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if data[0].Effective != 0 || data[1].Effective != 0 {
		return errors.New("metadata: a process with capabilities could change what the command may not")
	}
	return nil
}

// New returns a Changer with its own descriptors of the trees.
func New(trees []Tree) (*Changer, error) {
	c := &Changer{after: time.After}
	c.look = c.find
	for _, t := range trees {
		fd, err := unix.FcntlInt(uintptr(t.FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(os.NewSyscallError("fcntl", err), c.Close())
		}
		c.trees = append(c.trees, Tree{FD: fd, Dir: t.Dir})
	}
	return c, nil
}

// Close releases the trees, or leaves that to the thread that still uses them.
func (c *Changer) Close() error {
	if c.stuck != nil {
		go func() {
			<-c.stuck
			_ = c.closeTrees() // of paths
		}()
		return nil
	}
	return c.closeTrees()
}

func (c *Changer) closeTrees() error {
	var errs []error
	for _, t := range c.trees {
		errs = append(errs, unix.Close(t.FD))
	}
	c.trees = nil
	return errors.Join(errs...)
}

// Change makes the call in the command's stead, and returns what it ends with. done is false
// for what is no such call, or not of a file in the trees: then nothing was changed. It is false,
// too, when no answer came within [Limit], and ever after.
func (c *Changer) Change(call *Call) (errno unix.Errno, done bool) {
	if c.stuck != nil {
		return 0, false
	}
	m := memory{tid: int(call.TID)}
	r, ok := decode(call, &m)
	if !ok {
		return 0, false
	}
	a := c.bounded(call, func(may func() bool) answer { return c.change(r, call.TID, may) })
	return a.errno, a.done
}

// change asks whether it may go on each time that it may have taken long.
func (c *Changer) change(r *request, tid uint32, may func() bool) answer {
	base, err := r.openBase(tid)
	if err != nil {
		return answer{}
	}
	if base >= 0 {
		defer unix.Close(base)
	}
	if !may() { // the base may be another's
		return answer{}
	}
	fd, err := c.look(base, r)
	switch {
	case errors.Is(err, errOutside):
		return answer{}
	case err != nil:
		return answer{errnoOf(err), true}
	}
	defer unix.Close(fd)
	if !may() {
		return answer{}
	}
	return answer{errnoOf(r.act(fd)), true}
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EPERM
	}
	return errno
}

// openBase opens where the path begins; -1: at the root. That is ours: no command without
// capabilities has another one.
func (r *request) openBase(tid uint32) (int, error) {
	name := "cwd"
	switch n, own := strings.CutPrefix(r.path, ownFDs); {
	case own && digits(n) && r.nofollow: // the link itself, in another's /proc/self than ours
		return -1, errOutside
	case own && digits(n): // glibc's way to change what it has opened by O_PATH
		r.path, r.self = "", true
		name = "fd/" + n
	case strings.HasPrefix(r.path, "/"):
		return -1, nil
	case r.dir != unix.AT_FDCWD:
		name = "fd/" + strconv.Itoa(int(r.dir))
	}
	return unix.Open(fmt.Sprintf("/proc/%d/%s", tid, name), unix.O_PATH|unix.O_CLOEXEC, 0)
}

const ownFDs = "/proc/self/fd/"

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// errOutside is of a file that is not to be changed.
var errOutside = errors.New("not in a granted tree")

// tries bounds how often a file is looked for that has another name each time.
const tries = 8

// find returns a descriptor of the file, which the kernel has found in a tree.
func (c *Changer) find(base int, r *request) (int, error) {
	for range tries {
		named, err := r.open(base)
		if err != nil {
			return -1, err
		}
		fd, err := c.beneath(named)
		_ = unix.Close(named) // of a path
		if err == nil || errors.Is(err, errOutside) {
			return fd, err
		}
	}
	return -1, errOutside
}

// open opens the file by O_PATH, as the call would find it.
func (r *request) open(base int) (int, error) {
	if r.self {
		return unix.FcntlInt(uintptr(base), unix.F_DUPFD_CLOEXEC, 0)
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if r.nofollow {
		how.Flags |= unix.O_NOFOLLOW
	}
	if base < 0 {
		base = unix.AT_FDCWD
	}
	fd, err := unix.Openat2(base, r.path, &how)
	if err != unix.ELOOP {
		return fd, err
	}
	how.Resolve = 0
	if fd, err = unix.Openat2(base, r.path, &how); err == unix.ELOOP {
		return -1, err
	}
	if err == nil {
		_ = unix.Close(fd) // of a path
	}
	return -1, errOutside // there is a magic link on the way, which is the caller's own and not ours
}

var errMoved = errors.New("it had another name in between")

// beneath opens the file of a descriptor once more, by its name in a tree and by no link.
// A file with several names is outside: its mode is that of all of them, and nobody knows
// where they are.
func (c *Changer) beneath(named int) (int, error) {
	var want, got unix.Stat_t
	if err := unix.Fstat(named, &want); err != nil {
		return -1, err
	}
	name, err := nameOf(named)
	if err != nil || want.Mode&unix.S_IFMT != unix.S_IFDIR && want.Nlink > 1 {
		return -1, errOutside
	}
	for _, t := range c.trees {
		fd, err := t.open(name)
		if errors.Is(err, errOutside) {
			continue
		}
		if err != nil {
			return -1, errMoved
		}
		if err = unix.Fstat(fd, &got); err == nil && got.Dev == want.Dev && got.Ino == want.Ino {
			return fd, nil
		}
		_ = unix.Close(fd) // of a path
		return -1, errMoved
	}
	return -1, errOutside
}

// open opens a name in a tree.
func (t Tree) open(name string) (int, error) {
	root, err := nameOf(t.FD)
	if err != nil {
		return -1, errOutside
	}
	rest, in := strings.CutPrefix(name, strings.TrimSuffix(root, "/"))
	switch {
	case !in || rest != "" && (!t.Dir || rest[0] != '/'):
		return -1, errOutside
	case rest == "" || rest == "/":
		return unix.FcntlInt(uintptr(t.FD), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat2(t.FD, rest[1:], &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// nameOf is where a descriptor's file is now, by the kernel (proc_pid_fd(5)).
func nameOf(fd int) (string, error) { return os.Readlink(ownPath(fd)) }

func ownPath(fd int) string { return ownFDs + strconv.Itoa(fd) }
