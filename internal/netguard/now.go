package netguard

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reading and writing without a word to the scheduler. What enters a system call
// in Go's usual way wakes the runtime's monitor, a thread that then looks every
// 20 us whether the call lasts: between small messages, with nothing else to do, that
// was a third of what the process cost. These calls never wait (MSG_DONTWAIT), so there is nothing to
// look at. The collector can wait for one of them, as for a loop without a call: no
// longer than a buffer takes.

// receiveNow reads what a socket has: recv(2).
func receiveNow(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	return count(n, errno)
}

// sendNow writes what a socket takes: send(2).
func sendNow(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return count(n, errno)
}

func count(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
