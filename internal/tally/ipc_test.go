package tally

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// What nobody has attached, queued messages and semaphores are seen from outside of their namespace, and gone with it.
func TestIPC(t *testing.T) {
	testenv.Root(t)
	const size = 8 << 20
	made, over := make(chan int, 1), make(chan struct{})
	defer close(over)
	go func() {
		runtime.LockOSThread() // and ends with its namespace
		defer close(made)
		if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
			t.Error(err)
			return
		}
		fill(t, size)
		made <- unix.Gettid()
		<-over
	}()
	tid, ok := <-made
	if !ok {
		return
	}
	before := sysV()
	tally := &Tally{root: tid}
	if err := tally.EnterIPC(); err != nil {
		t.Fatal(err)
	}
	if got := tally.sysVIPC(); got < size+1000+empty*messageSize+100*semaphoreSize || got > size+empty*messageSize+100_000 {
		t.Errorf("%d bytes", got)
	}
	if now := sysV(); now-before >= size {
		t.Errorf("%d bytes of %d are in our own namespace", now, before)
	}
	for range 2 {
		if err := tally.Close(); err != nil || tally.sysVIPC() != 0 {
			t.Error(err)
		}
	}
	if err := (&Tally{root: 1 << 30}).EnterIPC(); err == nil {
		t.Error("nobody's namespace was entered")
	}
}

// empty is how many empty messages fill sends: what the default limit of a queue (msgmnb) lets in. They take memory, too.
const empty = 16384

// fill makes a segment of memory that it has written to and let go, messages and semaphores.
func fill(t *testing.T, size int) {
	const private, mode = unix.IPC_PRIVATE, 0o600
	id, err := unix.SysvShmGet(private, size, mode)
	if err != nil {
		t.Error(err)
		return
	}
	b, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range b {
		b[i] = 1
	}
	queue, _, qerr := unix.Syscall(unix.SYS_MSGGET, private, mode, 0)
	text := struct { // struct msgbuf
		kind int64
		text [1000]byte
	}{kind: 1}
	_, _, merr := unix.Syscall6(unix.SYS_MSGSND, queue, uintptr(unsafe.Pointer(&text)), uintptr(len(text.text)), 0, 0, 0)
	none, _, nerr := unix.Syscall(unix.SYS_MSGGET, private, mode, 0)
	for n := 0; n < empty && nerr == 0; n++ {
		_, _, nerr = unix.Syscall6(unix.SYS_MSGSND, none, uintptr(unsafe.Pointer(&text)), 0, unix.IPC_NOWAIT, 0, 0)
	}
	_, _, serr := unix.Syscall(unix.SYS_SEMGET, private, 100, mode)
	if err := unix.SysvShmDetach(b); err != nil || qerr != 0 || merr != 0 || nerr != 0 || serr != 0 {
		t.Error(err, qerr, merr, nerr, serr)
	}
}
