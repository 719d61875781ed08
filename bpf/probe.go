package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Ability is one kind of program and whether this kernel takes it.
type Ability struct {
	Name string // "cgroup", "sk_lookup", "tp_btf", "connect_unix", "fentry", "landlock" (its tracepoints) or "lsm"
	Err  error  // nil: it loads and will be called
}

// Support is what Probe found.
type Support struct {
	Abilities []Ability
	LSMs      []string // the kernel's active security modules; nil where they cannot be read
}

// Err is why the named ability is missing, or nil.
func (s Support) Err(name string) error {
	for _, a := range s.Abilities {
		if a.Name == name {
			return a.Err
		}
	}
	return fmt.Errorf("bpf: no such ability: %s", name)
}

// Probe loads each kind of program, ours where there are any, and attaches
// none. It takes tens of milliseconds: for doctor, not for the launch path.
func Probe() Support {
	s := Support{LSMs: activeLSMs()}
	s.add("cgroup", tryLoad(loadEgress))
	s.add("sk_lookup", tryLoad(loadLookup))
	s.add("tp_btf", tryLoad(func() (*ebpf.CollectionSpec, error) { return sensorSpec(false) }))
	s.add("connect_unix", tryLoad(loadUnixsock))
	s.add("fentry", tryLoad(loadResolve))
	s.add("landlock", tryLoad(loadRefuse))
	err := tryProgram(ebpf.LSM, ebpf.AttachLSMMac, "file_open")
	if err == nil && !slices.Contains(s.LSMs, "bpf") {
		// It loads, attaches, and is never called.
		err = fmt.Errorf("bpf is not among the active security modules (%s): %w",
			strings.Join(s.LSMs, ","), errors.ErrUnsupported)
	}
	s.add("lsm", err)
	return s
}

func (s *Support) add(name string, err error) {
	s.Abilities = append(s.Abilities, Ability{name, plain(err)})
}

func tryLoad(spec func() (*ebpf.CollectionSpec, error)) error {
	c, err := load(spec, Config{Level: 1}, 0, nil)
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

func tryProgram(kind ebpf.ProgramType, attach ebpf.AttachType, to string) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, AttachType: attach, AttachTo: to, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return err
	}
	return prog.Close()
}

// activeLSMs reads the list from a securityfs of its own, since none may be mounted.
func activeLSMs() []string {
	fsfd, err := unix.Fsopen("securityfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil
	}
	mount, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, "lsm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "securityfs/lsm")
	defer f.Close()
	var buf [1024]byte
	n, err := f.Read(buf[:])
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(buf[:n])), ",")
}
