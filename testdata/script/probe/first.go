package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// first tries everything on PID 1 that a process of the same user could.
func first() {
	const pid = 1
	report("kill", unix.Kill(pid, unix.SIGKILL))
	report("stop", unix.Kill(pid, unix.SIGSTOP))
	report("tgkill", unix.Tgkill(pid, pid, unix.SIGKILL))
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		report("pidfd_send_signal", unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
		_, err = unix.PidfdGetfd(fd, 5, 0)
		report("pidfd_getfd", err)
	}
	report("ptrace(ATTACH)", unix.PtraceAttach(pid))
	report("ptrace(SEIZE)", unix.PtraceSeize(pid))
	byte1 := make([]byte, 1)
	local := []unix.Iovec{{Base: &byte1[0], Len: 1}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x200000, Len: 1}}, 0)
	report("process_vm_readv", err)
	for _, name := range []string{"environ", "mem", "maps", "fd", "status", "cmdline"} {
		_, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
		report("/proc/1/"+name, err)
	}
	report("prlimit(CPU, 0)", unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{}, nil))
	report("sched_setaffinity", unix.SchedSetaffinity(pid, &unix.CPUSet{1}))
	idle := int32(0)
	raw("sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER, pid, 5 /* SCHED_IDLE */, uintptr(unsafe.Pointer(&idle)))
	report("setpriority", unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
	report("setpriority of the user", unix.Setpriority(unix.PRIO_USER, 0, 19))
	raw("ioprio_set", unix.SYS_IOPRIO_SET, 1, pid, 3<<13)
	raw("ioprio_set of the user", unix.SYS_IOPRIO_SET, 3, uintptr(os.Getuid()), 3<<13)
}

func raw(name string, nr, a, b, c uintptr) {
	_, _, errno := unix.Syscall(nr, a, b, c)
	if errno == 0 {
		report(name, nil)
		return
	}
	report(name, errno)
}
