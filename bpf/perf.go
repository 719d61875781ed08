package bpf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// exitByPerf is the program for raw_syscalls:sys_exit by way of perf.
const exitByPerf = "sys_exit_perf"

// attachByPerf attaches a program to raw_syscalls:sys_exit through a perf event
// (perf_event_open(2)). The event is of one CPU, the program runs on all: it
// belongs to the tracepoint.
func attachByPerf(prog *ebpf.Program) (link.Link, error) {
	id, err := exitEvent()
	if err != nil {
		return nil, err
	}
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Sample: 1, Sample_type: unix.PERF_SAMPLE_RAW, Wakeup: 1}
	fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("perf_event_open", err)
	}
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: fd, Program: prog, Attach: ebpf.AttachPerfEvent})
	err = errors.Join(err, unix.Close(fd)) // the link holds it
	if err != nil {
		return nil, err
	}
	return l, nil
}

// exitEvent is the number of raw_syscalls:sys_exit. It is read from a tracefs
// that is mounted nowhere: hosts need not have one.
func exitEvent() (uint64, error) {
	const file = "events/raw_syscalls/sys_exit/id"
	context, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsopen tracefs", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return 0, os.NewSyscallError("fsconfig tracefs", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return 0, os.NewSyscallError("fsmount tracefs", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: "tracefs " + file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("tracefs %s: %w", file, err)
	}
	return id, nil
}
