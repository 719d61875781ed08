// Package outer tells a process in a user namespace of its own who owns a file.
//
// Such a namespace maps one user. All other owners, root too, are shown as the overflow
// uid (user_namespaces(7)), and whoever wants to know whether root vouches for a symbolic
// link cannot tell it from the link of another user. A small process that stayed outside
// (supervisor/init/c/enter.h) answers: it is handed the file and returns its owner.
package outer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// witness is the process outside; nil: this process is in no namespace of its own.
var witness atomic.Pointer[socket]

// patience is how long an answer may take, in seconds. The process outside has nothing else to do;
// one that was stopped, or is none of ours, is not waited for.
const patience = 60

// ErrGone is that the process outside has ended, or does not answer any more.
var ErrGone = errors.New("the process of agentguard's that stayed outside the user namespace (agentguard-out) has ended or does not answer, and without it nobody can tell root from a stranger")

type socket struct {
	mu       sync.Mutex
	fd, pid  int
	uid, gid uint32 // ours, which are the same inside and outside
	broken   error
	said     memory
}

// Use makes the process at the other end of a socket the one that is asked. It ends with
// [Leave], and with this process.
func Use(f *os.File, pid int) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	err = errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}))
	if err != nil {
		return errors.Join(fmt.Errorf("the process outside: %w", err), unix.Close(fd))
	}
	witness.Store(&socket{fd: fd, pid: pid, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())})
	return f.Close()
}

// Pid is the process outside; 0: there is none.
func Pid() int {
	if w := witness.Load(); w != nil {
		return w.pid
	}
	return 0
}

// Lend returns a copy of the socket for a child that works while we wait for it; nil: there
// is no process outside.
func Lend() (*os.File, error) {
	w := witness.Load()
	if w == nil {
		return nil, nil
	}
	fd, err := unix.FcntlInt(uintptr(w.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "outside"), nil
}

// Leave ends the process outside, which is our child, and reaps it. Nobody is asked any more.
func Leave() {
	w := witness.Swap(nil)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = unix.Close(w.fd)
	if w.pid > 0 {
		_ = retry(func() error { _, err := unix.Wait4(w.pid, nil, 0, nil); return err }) // ECHILD: somebody else did
	}
}

// Foreign reports whether a file with these ids, as this process sees them, is worth asking about.
func Foreign(uid, gid uint32) bool {
	w := witness.Load()
	return w != nil && (uid != w.uid || gid != w.gid)
}

// Fstat is fstat(2), with the owner as [Owner] has it.
func Fstat(fd int, st *unix.Stat_t) error {
	if err := unix.Fstat(fd, st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	return Owner(fd, st)
}

// Owner puts the owner of an open file (O_PATH will do) into what fstat(2) has said of it:
// the one that the process outside sees. Where there is none, st is right as it is.
func Owner(fd int, st *unix.Stat_t) error {
	if !Foreign(st.Uid, st.Gid) {
		return nil
	}
	uid, gid, err := witness.Load().ask(fd)
	if err != nil {
		return fmt.Errorf("the owner of a file: %w", err)
	}
	st.Uid, st.Gid = uid, gid
	return nil
}

// ask sends a descriptor and reads three words: errno, uid and gid. A question that got no
// answer is the last one: what came later would be taken for the answer to the next.
func (s *socket) ask(fd int) (uid, gid uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.recall(fd)
	}
	b, err := s.exchange(fd)
	if err != nil {
		s.broken = fmt.Errorf("%w (%w)", ErrGone, err)
		return s.recall(fd)
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(b[:])); errno != 0 {
		return 0, 0, os.NewSyscallError("statx", errno)
	}
	uid, gid = binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[8:])
	s.said.keep(fd, uid, gid)
	return uid, gid, nil
}

// recall answers in the place of the process outside, or says why not.
func (s *socket) recall(fd int) (uid, gid uint32, err error) {
	if uid, gid, ok := s.said.of(fd); ok {
		return uid, gid, nil
	}
	return 0, 0, s.broken
}

func (s *socket) exchange(fd int) (b [12]byte, err error) {
	if err := retry(func() error { return unix.Sendmsg(s.fd, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL) }); err != nil {
		return b, os.NewSyscallError("sendmsg", err)
	}
	n := 0
	if err := retry(func() (err error) { n, err = unix.Read(s.fd, b[:]); return err }); err != nil {
		return b, os.NewSyscallError("read", err)
	}
	if n != len(b) {
		return b, unix.EPIPE
	}
	return b, nil
}

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
