package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reach tries all that a process of a user may do to what is that user's outside of its
// run: a directory with the files "secret", "gone" and "moved" and the socket "sock", a
// process, an abstract socket, a TCP and a UDP port, a shared memory segment by its key, a queue.
func reach(dir, pid, abstract, tcp, udp, key, queue string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	victim := number(pid)
	for _, a := range []struct {
		name string
		act  func() error
	}{
		{"read", func() error { return opened(at("secret"), unix.O_RDONLY) }},
		{"execute", func() error { return executed(at("secret")) }},
		{"write", func() error { return opened(at("secret"), unix.O_WRONLY) }},
		{"append", func() error { return opened(at("secret"), unix.O_WRONLY|unix.O_APPEND) }},
		{"create", func() error { return opened(at("new"), unix.O_WRONLY|unix.O_CREAT) }},
		{"list", func() error { _, err := os.ReadDir(dir); return err }},
		{"mkdir", func() error { return unix.Mkdir(at("made"), 0o700) }},
		{"symlink", func() error { return unix.Symlink("x", at("link")) }},
		{"link", func() error { return unix.Link(at("secret"), at("hard")) }},
		{"mkfifo", func() error { return unix.Mkfifo(at("fifo"), 0o600) }},
		{"truncate", func() error { return unix.Truncate(at("secret"), 1) }},
		{"rename", func() error { return unix.Rename(at("moved"), at("there")) }},
		{"unlink", func() error { return unix.Unlink(at("gone")) }},
		{"chmod", func() error { return unix.Chmod(at("secret"), 0o777) }},
		{"fchmodat2", func() error { return unix.Fchmodat(unix.AT_FDCWD, at("secret"), 0o700, unix.AT_SYMLINK_NOFOLLOW) }},
		{"chown", func() error { return unix.Chown(at("secret"), os.Getuid(), os.Getgid()) }},
		{"utimes", func() error { return unix.Utimes(at("secret"), make([]unix.Timeval, 2)) }},
		{"setxattr", func() error { return unix.Setxattr(at("secret"), "user.x", []byte("y"), 0) }},
		{"tcp", func() error { return dialled("tcp", tcp) }},
		{"udp", func() error { return dialled("udp", udp) }},
		{"unix", func() error { return dialled("unix", at("sock")) }},
		{"unix datagram of a pair", func() error { return fromPair(at("dgram")) }},
		{"abstract", func() error { return dialled("unix", abstract) }},
		{"netlink", func() error { return made(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) }},
		{"signal", func() error { return unix.Kill(victim, 0) }},
		{"pidfd signal", func() error { return byPidfd(victim) }},
		{"prlimit", func() error { return unix.Prlimit(victim, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) }},
		{"setpriority", func() error { return unix.Setpriority(unix.PRIO_PROCESS, victim, 10) }},
		{"affinity", func() error { return affinity(victim) }},
		{"ptrace", func() error { return traced(victim) }},
		{"memory", func() error { return opened(fmt.Sprintf("/proc/%d/mem", victim), unix.O_RDONLY) }},
		{"environ", func() error { return opened(fmt.Sprintf("/proc/%d/environ", victim), unix.O_RDONLY) }},
		{"cmdline", func() error { return opened(fmt.Sprintf("/proc/%d/cmdline", victim), unix.O_RDONLY) }},
		{"exe", func() error { _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", victim)); return err }},
		{"descriptors", func() error { _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", victim)); return err }},
		{"processes", func() error { _, err := os.ReadDir("/proc"); return err }},
		{"shared memory", func() error { return called(unix.SYS_SHMGET, uintptr(number(key)), 1, 0) }},
		{"message queue", func() error { return called(unix.SYS_MQ_OPEN, text(queue), unix.O_RDONLY, 0) }},
	} {
		report(a.name, plain(a.act()))
	}
}

// plain is the errno in an error, where there is one.
func plain(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

func opened(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func executed(name string) error {
	p, err := os.StartProcess(name, []string{name}, &os.ProcAttr{})
	if err == nil {
		_, err = p.Wait()
	}
	return err
}

func made(family, kind, proto int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func dialled(network, addr string) error {
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "udp" {
		_, err = c.Write([]byte("x"))
	}
	return err
}

// fromPair sends to a socket by its name from one of a pair.
func fromPair(name string) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	return unix.Sendto(fds[0], []byte("x"), 0, &unix.SockaddrUnix{Name: name})
}

func byPidfd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

func affinity(pid int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	return unix.SchedSetaffinity(pid, &set)
}

func traced(pid int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := called(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return err
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		return err
	}
	return unix.PtraceDetach(pid)
}

func called(nr, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall6(nr, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// text is a C string that stays.
func text(s string) uintptr {
	b := append([]byte(s), 0)
	texts = append(texts, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

var texts [][]byte
