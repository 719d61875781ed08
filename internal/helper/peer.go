package helper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
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

	proc   *os.File // /proc/PID of that process and no other
	pidfd  *os.File
	limits map[string]Limit // when they have been read
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
	if p.Label, err = peerLabel(fd); err != nil {
		return err
	}
	if p.PID <= 0 {
		return errors.New("it is in another PID namespace")
	}
	return p.hold(fd)
}

// hold opens the process so that its number cannot come to mean another.
func (p *Peer) hold(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == unix.ENOPROTOOPT { // before 6.5: the number may be another's already, of which only its ids would tell
		if n, err = unix.PidfdOpen(p.PID, 0); err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
	}
	if err != nil { // up to 6.15 of a process that has ended, too: whoever has its number now is not asked for
		return os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
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
	err := unix.PidfdSendSignal(int(p.pidfd.Fd()), 0, nil, 0)
	if err != nil && err != unix.EPERM { // it is there, and not to be signalled by us
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
	b, err := peerOption(fd, unix.SO_PEERGROUPS)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", err)
	}
	var out []int
	for g := range slices.Chunk(b, 4) {
		out = append(out, int(binary.NativeEndian.Uint32(g)))
	}
	return out, nil
}

// peerOption reads an option of a socket whose length is not known: with too little room the
// kernel says ERANGE and how much it takes (socket(7), net/core/sock.c). Most are short, and a
// caller waits while each page of a large buffer is made.
func peerOption(fd, name int) ([]byte, error) {
	for room := 512; ; {
		buf := make([]byte, room)
		size := uint32(len(buf))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, uintptr(name),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return buf[:size], nil
		case errno != unix.ERANGE || room > 1<<18:
			return nil, errno
		}
		room = max(2*room, int(size))
	}
}

// read reads a file of /proc/PID, up to 64 KiB of it.
func (p *Peer) read(name string) ([]byte, error) {
	fd, err := unix.Openat(int(p.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the caller's %s: %w", name, err)
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4096) // mostly they are shorter, and a caller waits while pages of a buffer are made
	for len(b) < 1<<16 {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the caller's %s: %w", name, err)
		}
		if n == 0 {
			break
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
	return b, nil
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
	var cpus, own unix.CPUSet
	if err := errors.Join(unix.SchedGetaffinity(p.PID, &cpus), unix.SchedGetaffinity(0, &own)); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	if cpus != own { // which all threads have from the first
		if err := onAllTasks(func(tid int) error { return unix.SchedSetaffinity(tid, &cpus) }); err != nil {
			return os.NewSyscallError("sched_setaffinity", err)
		}
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

// Cgroups is /proc/PID/cgroup of the peer (cgroups(7)).
func (p *Peer) Cgroups() ([]byte, error) {
	b, err := p.read("cgroup")
	return b, errors.Join(err, p.alive())
}

// Limit is a resource limit; unlimited is the largest number.
type Limit struct{ Soft, Hard uint64 }

// Limits are those of the peer, by the kernel's words for them (proc_pid_limits(5)).
func (p *Peer) Limits() (map[string]Limit, error) {
	if p.limits != nil {
		return p.limits, nil
	}
	b, err := p.read("limits")
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
	if err := p.alive(); err != nil {
		return nil, err
	}
	p.limits = out
	return out, nil
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
	b, err := p.read("oom_score_adj")
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
