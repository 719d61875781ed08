package main

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// Of userfaultfd(2): include/uapi/linux/userfaultfd.h.
const (
	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdAPI        = 0xaa
	uffdMissing    = 1
)

// heldPipe is a pipe whose lock somebody holds until let go, as a user can: a write to it waits for
// memory whose page does not come.
func heldPipe(t *testing.T) (r *os.File, letGo func()) {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		testenv.Beyond(t, "userfaultfd", "this kernel has no userfaultfd: "+errno.Error())
	}
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	at := unsafe.Pointer(unsafe.SliceData(memory))
	api := [3]uint64{uffdAPI}
	register := [4]uint64{uint64(uintptr(at)), uint64(len(memory)), uffdMissing}
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&register)))
	}
	r, w, err := os.Pipe()
	if errno != 0 || err != nil {
		t.Fatal(errno, err)
	}
	written := make(chan struct{})
	to := w.Fd()
	go func() {
		_, _, _ = unix.Syscall(unix.SYS_WRITE, to, uintptr(at), uintptr(len(memory)))
		close(written)
	}()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds())); n != 1 { // it waits for the page, with the lock
		t.Fatal(n, err)
	}
	return r, sync.OnceFunc(func() {
		_ = unix.Close(int(fd)) // the page comes: zeros
		<-written
		_ = w.Close()
		_ = unix.Munmap(memory)
	})
}

// A thread that waits for what the caller holds keeps nothing else of the run's supervisor: limits
// hold, and the record is sealed.
func TestHelperStuckStream(t *testing.T) {
	s := serveUsers(t)
	r, letGo := heldPipe(t)
	defer r.Close()
	defer letGo()
	cmd := s.as(ann, agentguard(), "exec", "--wall", "1s", "--", "sleep", "1000")
	cmd.Stdin = r
	end := time.AfterFunc(patience/2, letGo)
	_ = cmd.Run() // its streams are /dev/null: the thread that waits has a copy of each until it is let go
	if !end.Stop() || cmd.ProcessState.ExitCode() != 124 {
		t.Errorf("the limit was not kept: %v", cmd.ProcessState)
	}
	if out, errs, status := s.guard(ann, "trace", "verify", "last"); status != 0 || !strings.Contains(out, "complete") {
		t.Errorf("the record: %d %q %q", status, out, errs)
	}
}
