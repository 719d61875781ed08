package bpf

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Two calls of bpf(2) that the library makes dearer than the launch path can
// pay: it reads maps, names and fdinfo of each program with them.

// progInfo is the head of struct bpf_prog_info (include/uapi/linux/bpf.h); the
// kernel fills as much as is asked for.
type progInfo struct {
	Type uint32
	ID   uint32
	Tag  [8]byte
}

func infoOf(fd int) (progInfo, error) {
	var info progInfo
	attr := struct {
		fd, len uint32
		info    uint64
	}{uint32(fd), uint32(unsafe.Sizeof(info)), uint64(uintptr(unsafe.Pointer(&info)))}
	_, err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(&info)
	return info, err
}

// progByID opens a program. The descriptor is the caller's to close.
func progByID(id uint32) (int, error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	return bpfCall(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

func bpfCall(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
	if errno != 0 {
		return -1, &os.SyscallError{Syscall: "bpf", Err: errno}
	}
	return int(r), nil
}
