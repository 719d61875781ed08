package bpf

import (
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Two calls of bpf(2) that the library makes dearer than the launch path can
// pay: it reads maps, names and fdinfo of each program with the one, and asks
// twice with the other.

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
		info    unsafe.Pointer // a pointer to the garbage collector too: stacks move
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return info, err
}

// maxAttached is BPF_CGROUP_MAX_PROGS (include/linux/bpf-cgroup.h).
const maxAttached = 64

// attachedTo lists the ids of the programs that are attached to the cgroup itself.
func attachedTo(cgroup int, hook ebpf.AttachType) ([]uint32, error) {
	var ids [maxAttached]uint32
	attr := struct {
		target, hook, queryFlags, attachFlags uint32
		ids                                   unsafe.Pointer
		count, _                              uint32
	}{target: uint32(cgroup), hook: uint32(hook), ids: unsafe.Pointer(&ids), count: maxAttached}
	_, err := bpfCall(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return ids[:min(attr.count, maxAttached)], err
}

func bpfCall(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
	if errno != 0 {
		return -1, &os.SyscallError{Syscall: "bpf", Err: errno}
	}
	return int(r), nil
}
