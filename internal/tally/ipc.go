package tally

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// ipc is a thread in the IPC namespace of a run: only from inside it is said what System V objects hold, and what no process has
// attached is in no process's numbers.
type ipc struct {
	ask  chan chan<- int64
	over chan struct{}
}

// EnterIPC makes Look count the System V memory, messages and semaphores of the IPC namespace that the root is in. It takes
// CAP_SYS_ADMIN over that namespace's user namespace (setns(2)), and Close afterwards.
func (t *Tally) EnterIPC() error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/ipc", t.root))
	if err != nil {
		return err
	}
	defer f.Close()
	i := &ipc{ask: make(chan chan<- int64), over: make(chan struct{})}
	entered := make(chan error)
	go i.serve(f, entered)
	if err := <-entered; err != nil {
		return err
	}
	t.ipc = i
	return nil
}

// Close ends what EnterIPC began.
func (t *Tally) Close() error {
	if t.ipc != nil {
		close(t.ipc.ask)
		<-t.ipc.over
		t.ipc = nil
	}
	return nil
}

func (i *ipc) serve(ns *os.File, entered chan<- error) {
	defer close(i.over)
	_ = lostthread.Run(func() error { // it was told
		err := os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWIPC))
		if entered <- err; err != nil {
			return err
		}
		for answer := range i.ask {
			answer <- sysV()
		}
		return nil
	})
}

func (t *Tally) sysVIPC() int64 {
	if t.ipc == nil {
		return 0
	}
	answer := make(chan int64)
	t.ipc.ask <- answer
	return <-answer
}

// Commands of shmctl(2), msgctl(2) and semctl(2), which ask for no permission.
const (
	shmInfo = 14
	msgInfo = 12
	semInfo = 19
)

// semaphoreSize is sizeof(struct sem) of ipc/sem.c, which takes a cache line.
const semaphoreSize = 64

// messageSize is what an empty message takes: struct msg_msg of include/linux/msg.h, 48 bytes, in a slab of 64.
const messageSize = 64

// sysV is what the objects of this thread's IPC namespace hold, in bytes.
func sysV() int64 {
	var shm struct { // struct shm_info
		ids                                    int32
		total, resident, swapped, tried, moved uint64
	}
	var msg struct{ pool, headers, max, mnb, mni, segment, bytes, segments int32 } // struct msginfo
	var sem struct{ mapped, mni, mns, mnu, msl, opm, ume, sets, vmx, all int32 }   // struct seminfo
	_, _, serr := unix.Syscall(unix.SYS_SHMCTL, 0, shmInfo, uintptr(unsafe.Pointer(&shm)))
	_, _, merr := unix.Syscall(unix.SYS_MSGCTL, 0, msgInfo, uintptr(unsafe.Pointer(&msg)))
	_, _, eerr := unix.Syscall6(unix.SYS_SEMCTL, 0, 0, semInfo, uintptr(unsafe.Pointer(&sem)), 0, 0)
	var sum int64
	if serr == 0 { // ENOSYS: a kernel without them
		sum += int64(shm.resident+shm.swapped) * int64(os.Getpagesize())
	}
	if merr == 0 {
		sum += int64(msg.bytes) + int64(msg.headers)*messageSize
	}
	if eerr == 0 {
		sum += int64(sem.all) * semaphoreSize
	}
	return sum
}
