package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// victim holds all that reach tries to get at, says where it is, and stays until its stdin
// ends. Anybody of the same user may trace it.
func victim(dir, key, queue string) {
	const anyone = ^uintptr(0) // PR_SET_PTRACER_ANY
	_ = unix.Prctl(unix.PR_SET_PTRACER, anyone, 0, 0, 0)
	for _, name := range []string{"secret", "gone", "moved"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/true\n"), 0o700); err != nil {
			fatal(err.Error())
		}
	}
	abstract := fmt.Sprintf("@agentguard-reach-%d", os.Getpid())
	tcp := listener("tcp", "127.0.0.1:0")
	listener("unix", filepath.Join(dir, "sock"))
	listener("unix", abstract)
	udp := packets("udp", "127.0.0.1:0")
	packets("unixgram", filepath.Join(dir, "dgram"))
	if _, _, errno := unix.Syscall(unix.SYS_SHMGET, uintptr(number(key)), 1, 0o1600); errno != 0 {
		fatal("shmget: " + errno.Error())
	}
	if _, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, text(queue), unix.O_RDWR|unix.O_CREAT, 0o600, 0, 0, 0); errno != 0 {
		fatal("mq_open: " + errno.Error())
	}
	fmt.Println(os.Getpid(), abstract, tcp, udp)
	_, _ = os.Stdin.Read(make([]byte, 1))
	id, _, _ := unix.Syscall(unix.SYS_SHMGET, uintptr(number(key)), 1, 0)
	_, _, _ = unix.Syscall(unix.SYS_SHMCTL, id, 0 /* IPC_RMID */, 0)
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, text(queue), 0, 0)
}

func listener(network, addr string) string {
	l, err := net.Listen(network, addr)
	if err != nil {
		fatal(err.Error())
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr().String()
}

func packets(network, addr string) string {
	c, err := net.ListenPacket(network, addr)
	if err != nil {
		fatal(err.Error())
	}
	go func() {
		buf := make([]byte, 64)
		for {
			if _, _, err := c.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
	return c.LocalAddr().String()
}

// confined becomes a program that can have no user namespace: by a seccomp filter as
// containers have one ("filter"), or because there is room for none ("sysctl"): then it
// runs in a user namespace of the test's, of which user.max_user_namespaces is its own.
// "layers" is the filter, and all of Landlock's layers but one.
func confined(how string, argv []string) {
	runtime.LockOSThread() // no_new_privs, filters and domains are the calling thread's, and execve takes them
	if how == "sysctl" {
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			fatal(err.Error())
		}
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	} else if err := refuseUserNS(); err != nil {
		fatal(err.Error())
	}
	if how == "layers" {
		if err := nestLayers(15); err != nil {
			fatal(err.Error())
		}
	}
	fatal(syscall.Exec(argv[0], argv, os.Environ()).Error())
}

// nestLayers enters as many Landlock domains, which refuse to make block devices.
func nestLayers(n int) error {
	attr := struct{ fs, net, scoped uint64 }{fs: unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	for i := 0; errno == 0 && i < n; i++ {
		_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// refuseUserNS installs the filter for all threads: execve takes that of the calling one.
func refuseUserNS() error {
	const nr, arg0 = 0, 16 // offsets in struct seccomp_data
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load(nr),
		jump(unix.BPF_JEQ, unix.SYS_UNSHARE, 2, 0),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 1, 0),
		ret(unix.SECCOMP_RET_ALLOW),
		load(arg0),
		jump(unix.BPF_JSET, unix.CLONE_NEWUSER, 0, 1),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
