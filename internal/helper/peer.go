package helper

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is who is at the other end of a connection, as the kernel says: nothing in
// it comes from a message.
type Peer struct {
	PID, UID, GID int
	Groups        []int  // supplementary
	Label         string // of a security module such as AppArmor or SELinux; "" where there is none

	proc  *os.File // /proc/PID of that process and no other
	pidfd *os.File
}

// Identify reads who has connected: SO_PEERCRED, SO_PEERGROUPS (4.13), SO_PEERPIDFD (6.5).
// They are what the process was when it called connect(2). It must still be there: if it is
// not, the Peer that is returned with the error is known by its numbers only.
func Identify(c *net.UnixConn) (*Peer, error) { return identify(c, (*Peer).complete) }

// glimpse is Identify without what takes the process to be there.
func glimpse(c *net.UnixConn) (*Peer, error) { return identify(c, nil) }

func identify(c *net.UnixConn, more func(*Peer, int) error) (*Peer, error) {
	p := &Peer{UID: -1, GID: -1}
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	var fail error
	err = raw.Control(func(fd uintptr) {
		if fail = p.credentials(int(fd)); fail == nil && more != nil {
			fail = more(p, int(fd))
		}
	})
	if err = errors.Join(err, fail); err != nil {
		return p, errors.Join(fmt.Errorf("who the caller is: %w", err), p.Close())
	}
	return p, nil
}

func (p *Peer) credentials(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	p.PID, p.UID, p.GID = int(cred.Pid), int(cred.Uid), int(cred.Gid)
	return nil
}

func (p *Peer) complete(fd int) error {
	var err error
	if p.Groups, err = peerGroups(fd); err != nil {
		return err
	}
	if b, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_PEERSEC); err == nil {
		p.Label = strings.TrimRight(b, "\x00\n")
	}
	if p.PID <= 0 {
		return errors.New("it is in another PID namespace")
	}
	return p.hold(fd)
}

// hold opens the process so that its number cannot come to mean another.
func (p *Peer) hold(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil { // before 6.5: the number may be another's already, of which its ids would tell
		if n, err = unix.PidfdOpen(p.PID, 0); err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
	}
	unix.CloseOnExec(n)
	p.pidfd = os.NewFile(uintptr(n), "pidfd of the caller")
	dir, err := unix.Open("/proc/"+strconv.Itoa(p.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc of the caller", Err: err}
	}
	p.proc = os.NewFile(uintptr(dir), "/proc of the caller")
	return p.alive()
}

// alive fails when the process has ended: until then its number is its own.
func (p *Peer) alive() error {
	if err := unix.PidfdSendSignal(int(p.pidfd.Fd()), 0, nil, 0); err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}
	return nil
}

// Close lets go of the process.
func (p *Peer) Close() error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{p.proc, p.pidfd} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	p.proc, p.pidfd = nil, nil
	return errors.Join(errs...)
}

// peerGroups asks for the groups; x/sys has no call for it.
func peerGroups(fd int) ([]int, error) {
	buf := make([]uint32, 65536) // NGROUPS_MAX, include/uapi/linux/limits.h
	size := uint32(4 * len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
	}
	var out []int
	for _, g := range buf[:size/4] {
		out = append(out, int(g))
	}
	return out, nil
}

// world is what a peer must share with the helper: a path, an address and a number of a
// user or process mean the same to both then.
var world = []struct{ file, means string }{
	{"ns/mnt", "mount namespace"},
	{"ns/user", "user namespace"},
	{"ns/pid", "PID namespace"},
	{"ns/net", "network namespace"},
	{"root", "root directory"},
}

// Vet refuses a peer for whom the helper must not act: one that is in namespaces of
// its own, where the helper would reach more than it can, and one that has given up
// gaining rights (no_new_privs, which every sandbox without root sets, Landlock and
// seccomp included): it could not use sudo either.
func (p *Peer) Vet() error {
	for _, w := range world {
		var theirs, ours unix.Stat_t
		err := errors.Join(unix.Fstatat(int(p.proc.Fd()), w.file, &theirs, 0), unix.Stat("/proc/self/"+w.file, &ours))
		switch {
		case err != nil:
			return fmt.Errorf("the caller's %s: %w", w.means, err)
		case theirs.Dev != ours.Dev || theirs.Ino != ours.Ino:
			return fmt.Errorf("the caller has another %s than the helper, which acts only for processes of its own", w.means)
		}
	}
	status, err := p.read64k("status")
	if err != nil {
		return err
	}
	if v := field(status, "NoNewPrivs"); v != "0" {
		return fmt.Errorf("the caller must not gain privileges (no_new_privs is %q), by the helper neither; call from outside the sandbox or the service that has set it", v)
	}
	if err := p.same(status, "Uid", p.UID); err != nil {
		return err
	}
	if err := p.same(status, "Gid", p.GID); err != nil { // a set-group-id program lends its group to nobody
		return err
	}
	return p.alive()
}

// same compares the real, effective, saved and file-system ids with the connection's.
func (p *Peer) same(status []byte, name string, id int) error {
	for _, v := range strings.Fields(field(status, name)) {
		if v != strconv.Itoa(id) {
			return fmt.Errorf("the caller has changed its ids since it connected, or has several: %s %s, and the connection's is %d", name, v, id)
		}
	}
	return nil
}

// read64k reads a file of /proc/PID.
func (p *Peer) read64k(name string) ([]byte, error) {
	fd, err := unix.Openat(int(p.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the caller's %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b := make([]byte, 1<<16)
	n, err := f.Read(b)
	if err != nil {
		return nil, fmt.Errorf("the caller's %s: %w", name, err)
	}
	return b[:n], nil
}

// field is one line of proc_pid_status(5).
func field(status []byte, name string) string {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return strings.TrimSpace(string(rest))
		}
	}
	return ""
}

// Assume takes over what a child of the peer would have from it, where a command
// would gain by not having it: nice value, OOM score adjustment, processors, and the
// size of the stack. The process leads a session of its own: nobody else is in its group.
func (p *Peer) Assume() error {
	theirs, err := unix.Getpriority(unix.PRIO_PROCESS, p.PID)
	ours, oerr := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err = errors.Join(err, oerr); err != nil {
		return os.NewSyscallError("getpriority", err)
	}
	if theirs < ours { // nicer: the raw call returns 20 - nice
		if err := unix.Setpriority(unix.PRIO_PGRP, 0, 20-theirs); err != nil {
			return os.NewSyscallError("setpriority", err)
		}
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(p.PID, &cpus); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	if err := onAllTasks(func(tid int) error { return unix.SchedSetaffinity(tid, &cpus) }); err != nil {
		return os.NewSyscallError("sched_setaffinity", err)
	}
	return errors.Join(p.takeStack(), p.takeOOM(), p.alive())
}

// takeStack sets the size of stacks, as far as this process may.
func (p *Peer) takeStack() error {
	list, err := p.Limits()
	if err != nil {
		return err
	}
	theirs, ok := list["Max stack size"]
	var ours unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &ours); err != nil || !ok {
		return err
	}
	ours.Max = min(ours.Max, theirs.Hard)
	ours.Cur = min(ours.Max, theirs.Soft)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_STACK, &ours))
}

// Limit is a resource limit; unlimited is the largest number.
type Limit struct{ Soft, Hard uint64 }

// Limits are those of the peer, by the kernel's words for them (proc_pid_limits(5)).
func (p *Peer) Limits() (map[string]Limit, error) {
	b, err := p.read64k("limits")
	if err != nil {
		return nil, err
	}
	const name, soft, hard = 26, 21, 21 // widths of the columns: fs/proc/base.c
	out := map[string]Limit{}
	for line := range bytes.Lines(b) {
		if len(line) < name+soft+hard {
			continue
		}
		s, serr := limitOf(line[name : name+soft])
		h, herr := limitOf(line[name+soft : name+soft+hard])
		if serr == nil && herr == nil { // the heading is no limit
			out[strings.TrimSpace(string(line[:name]))] = Limit{s, h}
		}
	}
	return out, p.alive()
}

func limitOf(column []byte) (uint64, error) {
	text := strings.TrimSpace(string(column))
	if text == "unlimited" {
		return unix.RLIM_INFINITY, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// onAllTasks calls fn for each thread of this process. One that is born meanwhile is a
// child of one that was seen, or is seen in the next round.
func onAllTasks(fn func(tid int) error) error {
	done := map[string]bool{}
	for {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		before := len(done)
		for _, t := range list {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[t.Name()] {
				continue
			}
			if err := fn(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			done[t.Name()] = true
		}
		if len(done) == before {
			return nil
		}
	}
}

// takeOOM takes over being chosen earlier by the OOM killer, not later.
func (p *Peer) takeOOM() error {
	b, err := p.read64k("oom_score_adj")
	own, oerr := os.ReadFile("/proc/self/oom_score_adj")
	if err = errors.Join(err, oerr); err != nil {
		return err
	}
	theirs, err := strconv.Atoi(strings.TrimSpace(string(b)))
	ours, oerr := strconv.Atoi(strings.TrimSpace(string(own)))
	if err = errors.Join(err, oerr); err != nil || theirs <= ours {
		return err
	}
	return os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(theirs)), 0)
}

// Lead makes a terminal that the peer has made for the run the controlling one of this
// process. One that controls another session is refused by the kernel (ioctl_tty(2)).
func Lead(tty *os.File) error {
	if err := unix.IoctlSetInt(int(tty.Fd()), unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("the terminal for the run: %w", os.NewSyscallError("ioctl TIOCSCTTY", err))
	}
	return nil
}
