package bpf

import (
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Calls of bpf(2) that the library makes dearer than the launch path can pay: it
// reads maps, names and fdinfo of each program, asks for each link twice, and
// opens what is pinned only after it has created a map as a test.

// pinnedMap opens a pinned map; flags is 0 or BPF_F_RDONLY.
func pinnedMap(path string, flags uint32) (*ebpf.Map, error) {
	fd, err := objGet(path, flags)
	if err != nil {
		return nil, err
	}
	return ebpf.NewMapFromFD(fd) // takes the descriptor over
}

// pinnedProgram opens a pinned program.
func pinnedProgram(path string) (*ebpf.Program, error) {
	fd, err := objGet(path, 0)
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromFD(fd) // takes the descriptor over
}

func objGet(path string, flags uint32) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := struct {
		path      unsafe.Pointer
		fd, flags uint32
	}{path: unsafe.Pointer(name), flags: flags}
	fd, err := bpfCall(unix.BPF_OBJ_GET, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// progInfo is the head of struct bpf_prog_info (include/uapi/linux/bpf.h); the
// kernel fills as much as is asked for.
type progInfo struct {
	Type uint32
	ID   uint32
	Tag  [8]byte
}

func infoOf(fd int) (progInfo, error) {
	var info progInfo
	err := objInfo(fd, unsafe.Pointer(&info), unsafe.Sizeof(info))
	return info, err
}

func objInfo(fd int, info unsafe.Pointer, size uintptr) error {
	attr := struct {
		fd, len uint32
		info    unsafe.Pointer // a pointer to the garbage collector too: stacks move
	}{uint32(fd), uint32(size), info}
	_, err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

// linkInfo is the head of struct bpf_link_info of a cgroup link.
type linkInfo struct {
	Type, ID, Prog, _ uint32
	Cgroup            uint64
	Hook              uint32 // BPF_CGROUP_*
	_                 uint32
}

func linkInfoOf(fd int) (linkInfo, error) {
	var info linkInfo
	err := objInfo(fd, unsafe.Pointer(&info), unsafe.Sizeof(info))
	return info, err
}

// linkDetach takes the link's program off its hook at once; the link stays, without effect.
func linkDetach(fd int) error {
	attr := struct{ fd uint32 }{uint32(fd)}
	_, err := bpfCall(unix.BPF_LINK_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

// readCounters reads the one entry of a map of counters, by CPU: the kernel's values
// have the size of ours and lie one after the other, as counterBytes is a multiple of 8.
func readCounters(fd int) ([]counterValue, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	values, key := make([]counterValue, cpus), uint32(0)
	attr := struct {
		fd, _      uint32
		key, value unsafe.Pointer
		flags      uint64
	}{fd: uint32(fd), key: unsafe.Pointer(&key), value: unsafe.Pointer(&values[0])}
	_, err = bpfCall(unix.BPF_MAP_LOOKUP_ELEM, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return values, err
}

func bpfCall(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
	if errno != 0 {
		return -1, &os.SyscallError{Syscall: "bpf", Err: errno}
	}
	return int(r), nil
}
