//go:build linux

package notify

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notif is struct seccomp_notif (include/uapi/linux/seccomp.h).
type notif struct {
	id    uint64
	pid   uint32 // of the thread, as our pid namespace numbers it
	flags uint32
	nr    int32 // from here on struct seccomp_data
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// notifResp is struct seccomp_notif_resp.
type notifResp struct {
	id    uint64
	val   int64
	errno int32 // negative
	flags uint32
}

func ioctl(fd int, request uint, arg unsafe.Pointer) unix.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		if errno != unix.EINTR {
			return errno
		}
	}
}

// receive returns a call that waits; nil: its caller was interrupted or killed
// before. It does not block after poll has said that there is one.
func (l *Listener) receive() (*notif, error) {
	n := &notif{} // the kernel wants zeros
	switch errno := ioctl(int(l.fd.Fd()), unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n)); errno {
	case 0:
		return n, nil
	case unix.ENOENT:
		return nil, nil
	default:
		return nil, fmt.Errorf("notify: receive: %w", errno)
	}
}

// valid reports whether the caller still waits: its pid is its own until then.
func (l *Listener) valid(n *notif) bool {
	return ioctl(int(l.fd.Fd()), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == 0
}

// send answers; false: nobody waits any more.
func (l *Listener) send(n *notif, errno unix.Errno) bool {
	r := notifResp{id: n.id, errno: -int32(errno)}
	if errno == 0 {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE // 5.5
	}
	return l.reply(r)
}

func (l *Listener) reply(r notifResp) bool {
	return ioctl(int(l.fd.Fd()), unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) == 0
}

// pidfdInfo is struct pidfd_info in its first size (include/uapi/linux/pidfd.h, 6.13).
type pidfdInfo struct {
	mask     uint64
	cgroup   uint64
	ids      [11]uint32
	exitCode int32 // 6.15
}

const (
	pidfdGetInfo  = 0xc040ff0b // PIDFD_GET_INFO: _IOWR(0xff, 11, 64 bytes)
	pidfdInfoExit = 1 << 3     // PIDFD_INFO_EXIT, 6.15: of a process that was reaped
)

// exitInfo returns the wait status of a reaped process. later: it is a zombie,
// whose pidfd hangs up when there is more to know.
func exitInfo(pidfd int) (status unix.WaitStatus, known, later bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	errno := ioctl(pidfd, pidfdGetInfo, unsafe.Pointer(&info))
	if errno == unix.ESRCH { // reaped while the kernel looked: it looks for the status first, then for the task
		info = pidfdInfo{mask: pidfdInfoExit}
		errno = ioctl(pidfd, pidfdGetInfo, unsafe.Pointer(&info))
	}
	switch {
	case errno != 0: // ENOTTY: before 6.13; ESRCH: before 6.15, and it was reaped
		return 0, false, false
	case info.mask&pidfdInfoExit != 0:
		return unix.WaitStatus(info.exitCode), true, false
	}
	return 0, false, true
}

const pageSize = 4096 // at most the kernel's

// memory reads the memory of one thread that waits. After the first page that
// cannot be read it says so; the caller marks what it read as unreadable.
type memory struct {
	tid  int
	page *[pageSize]byte
	at   uint64 // address of what is in page
	n    int    // bytes of it that were read
}

// bytes returns what is at addr up to the end of its page; valid until the next
// call. Empty: it cannot be read.
func (m *memory) bytes(addr uint64) []byte {
	start := addr &^ (pageSize - 1)
	if m.n == 0 || m.at != start {
		m.at, m.n = start, readMemory(m.tid, start, m.page[:])
	}
	if off := int(addr - start); off < m.n {
		return m.page[off:m.n]
	}
	return nil
}

func readMemory(tid int, addr uint64, to []byte) int {
	local := []unix.Iovec{{Base: &to[0], Len: uint64(len(to))}}
	n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(to)}}, 0)
	if err != nil {
		return 0
	}
	return n
}

// text appends the string at addr up to its NUL, or up to the byte stop, and at
// most limit bytes. whole: the end was found.
func (m *memory) text(to []byte, addr uint64, stop byte, limit int) (out []byte, whole, readable bool) {
	for limit > 0 {
		b := m.bytes(addr)
		if len(b) == 0 {
			return to, false, false
		}
		for i, c := range b {
			if c == 0 || c == stop {
				return append(to, b[:i]...), true, true
			}
			if i+1 == limit {
				return append(to, b[:limit]...), false, true
			}
		}
		to, addr, limit = append(to, b...), addr+uint64(len(b)), limit-len(b)
	}
	return to, false, true
}
