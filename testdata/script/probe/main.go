// Command probe makes single system calls and says how the kernel answered, one
// line each: "NAME: ok" or "NAME: EPERM". The script tests run it inside.
//
//	probe calls            calls that the filter refuses
//	probe sockets          socket families and protocols
//	probe caps             capability sets, securebits, no_new_privs
//	probe first            what a process of its own user could do to PID 1
//	probe fds              open descriptors, one a line
//	probe connect NET ADDR as net.Dial: tcp, udp, unix, @ for abstract names
//	probe serve NET ADDR   listens, prints "ready", accepts one connection, says hello
//	probe forge ADDR TOKEN is a forge's API: see forge.go
//	probe hog SIZE [SECS]  touches SIZE MiB of memory and holds it
//	probe threads N        starts N threads that stay
//	probe reach ...        what is the user's outside of a run: see reach.go
//	probe attributes FILE  changes what its owner may, by a descriptor for reading: see attributes.go
//	probe victim           is a process that others may do things to: see victim.go
//	probe hide             does not want to be seen: see hide.go
//	probe confined HOW ARG... runs a program where no user namespace is to be had: see victim.go
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fatal("usage: probe WHAT [ARG...]")
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "calls":
		calls()
	case "sockets":
		sockets()
	case "caps":
		caps()
	case "first":
		first()
	case "fds":
		fds()
	case "connect":
		connect(args[0], args[1])
	case "serve":
		serve(args[0], args[1])
	case "hog":
		hog(number(args[0]))
		if len(args) > 1 {
			time.Sleep(time.Duration(number(args[1])) * time.Second)
		}
	case "threads":
		threads(number(args[0]))
	case "forge":
		forge(args[0], args[1])
	case "reach":
		reach(args[0], args[1], args[2], args[3], args[4], args[5], args[6])
	case "attributes":
		attributes(args[0])
	case "victim":
		victim(args[0], args[1], args[2])
	case "confined":
		confined(args[0], args[1:])
	case "hide":
		hide()
	case "refused":
		refused(args[0], number(args[1]))
	default:
		fatal("unknown: " + os.Args[1])
	}
}

// refused opens a file that is closed to it, so many times.
func refused(name string, n int) {
	for range n {
		if _, err := unix.Open(name, unix.O_RDONLY, 0); err != unix.EACCES {
			fatal(fmt.Sprint(name, ": ", err))
		}
	}
}

func fatal(s string) {
	fmt.Fprintln(os.Stderr, "probe:", s)
	os.Exit(1)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fatal(err.Error())
	}
	return n
}

// report prints how a call ended.
func report(name string, errno error) {
	var e unix.Errno
	switch {
	case errno == nil || errors.As(errno, &e) && e == 0:
		fmt.Printf("%s: ok\n", name)
	case errors.As(errno, &e):
		fmt.Printf("%s: %s\n", name, unix.ErrnoName(e))
	default:
		fmt.Printf("%s: %v\n", name, errno)
	}
}

// call is one system call with arguments that would be harmless or do what the
// name says.
type call struct {
	name string
	nr   uintptr
	args [6]uintptr
}

func calls() {
	var buf [4096]byte
	b := uintptr(unsafe.Pointer(&buf[0]))
	name := append([]byte("probe"), 0)
	s := uintptr(unsafe.Pointer(&name[0]))
	root := append([]byte("/tmp"), 0)
	dir := uintptr(unsafe.Pointer(&root[0]))
	const at = ^uintptr(99) // AT_FDCWD
	for _, c := range []call{
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{1, b}},
		{"keyctl", unix.SYS_KEYCTL, [6]uintptr{0, 0xfffffffd, 1}},
		{"add_key", unix.SYS_ADD_KEY, [6]uintptr{s, s, s, 1, 0xfffffffd}},
		{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{s, s, 0, 0xfffffffd}},
		{"bpf", unix.SYS_BPF, [6]uintptr{0, b, 128}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{b, 0, ^uintptr(0), ^uintptr(0)}},
		{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{1}},
		{"unshare(CLONE_NEWUSER)", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}},
		{"unshare(CLONE_NEWNET)", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNET}},
		{"setns", unix.SYS_SETNS, [6]uintptr{0, 0}},
		{"mount", unix.SYS_MOUNT, [6]uintptr{s, dir, s}},
		{"umount2", unix.SYS_UMOUNT2, [6]uintptr{dir, unix.MNT_DETACH}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{dir, dir}},
		{"chroot", unix.SYS_CHROOT, [6]uintptr{dir}},
		{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{at, dir, unix.OPEN_TREE_CLONE}},
		{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{at, dir, at, dir}},
		{"fsopen", unix.SYS_FSOPEN, [6]uintptr{s}},
		{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{0}},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{at, dir, 0, b, 32}},
		{"ptrace", unix.SYS_PTRACE, [6]uintptr{unix.PTRACE_ATTACH, 1}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [6]uintptr{1, b, 1, b, 1}},
		{"init_module", unix.SYS_INIT_MODULE, [6]uintptr{b, 1, s}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, [6]uintptr{}},
		{"reboot", unix.SYS_REBOOT, [6]uintptr{}},
		{"swapon", unix.SYS_SWAPON, [6]uintptr{s}},
		{"sethostname", unix.SYS_SETHOSTNAME, [6]uintptr{s, 5}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, [6]uintptr{b}},
		{"acct", unix.SYS_ACCT, [6]uintptr{}},
		{"quotactl", unix.SYS_QUOTACTL, [6]uintptr{}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{0, b}},
		{"syslog", unix.SYS_SYSLOG, [6]uintptr{3, b, 1}},
		{"clone3", unix.SYS_CLONE3, [6]uintptr{b, 0}},
		{"ioctl(TIOCSTI)", unix.SYS_IOCTL, [6]uintptr{0, unix.TIOCSTI, s}},
		{"ioctl(TIOCLINUX)", unix.SYS_IOCTL, [6]uintptr{0, 0x541C, b}},
		{"ioctl(TIOCSTI, high bits)", unix.SYS_IOCTL, [6]uintptr{0, 1<<32 | unix.TIOCSTI, s}},
		{"fcntl(F_SETLEASE)", unix.SYS_FCNTL, [6]uintptr{0, unix.F_SETLEASE, unix.F_RDLCK}},
		{"fcntl(F_SETDELEG)", unix.SYS_FCNTL, [6]uintptr{0, unix.F_SETDELEG, b}},
		{"ioctl(TCGETS)", unix.SYS_IOCTL, [6]uintptr{0, unix.TCGETS, b}},
		{"unknown(9999)", 9999, [6]uintptr{}},
	} {
		_, _, errno := unix.Syscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		report(c.name, errno)
	}
	runtime.KeepAlive([][]byte{buf[:], name, root})
}

func sockets() {
	for _, s := range []struct {
		name                string
		family, kind, proto int
	}{
		{"unix", unix.AF_UNIX, unix.SOCK_STREAM, 0},
		{"tcp", unix.AF_INET, unix.SOCK_STREAM, 0},
		{"udp", unix.AF_INET, unix.SOCK_DGRAM, 0},
		{"route", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
		{"raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{"udplite", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE},
		{"sctp", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0x0300},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"alg", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"can", unix.AF_CAN, unix.SOCK_RAW, 1},
		{"xdp", unix.AF_XDP, unix.SOCK_RAW, 0},
		{"netlink audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"netlink netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
	} {
		fd, err := unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC, s.proto)
		report(s.name, err)
		if err == nil {
			unix.Close(fd)
		}
	}
}

func caps() {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fatal(err.Error())
	}
	for line := range strings.Lines(string(b)) {
		for _, key := range []string{"Cap", "NoNewPrivs", "Seccomp:", "Groups"} {
			if strings.HasPrefix(line, key) {
				fmt.Print(strings.Join(strings.Fields(line), " "), "\n")
			}
		}
	}
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	fmt.Printf("securebits: %#x %v\n", bits, err)
	report("setuid(0)", unix.Setuid(0))
	report("setgroups(0)", unix.Setgroups([]int{0}))
}

// fds asks for every descriptor that could be open: /proc could hide some.
func fds() {
	for fd := range 5000 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		to, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if !strings.HasPrefix(to, "anon_inode:") { // the runtime's own
			fmt.Println(fd)
		}
	}
}

func connect(network, addr string) {
	c, err := net.DialTimeout(network, addr, 3*time.Second)
	if err != nil {
		report("connect", err)
		os.Exit(1)
	}
	defer c.Close()
	if network == "udp" {
		_, err = c.Write([]byte("hello"))
		report("send", err)
		return
	}
	buf := make([]byte, 64)
	n, _ := c.Read(buf)
	fmt.Printf("connected: %s\n", buf[:n])
}

func serve(network, addr string) {
	l, err := net.Listen(network, addr)
	if err != nil {
		report("listen", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	c, err := l.Accept()
	if err != nil {
		fatal(err.Error())
	}
	fmt.Fprint(c, "hello from the server")
	c.Close()
}

func hog(mib int) {
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Printf("%d MiB\n", len(held))
}

var held [][]byte

func threads(n int) {
	ready := make(chan bool)
	for range n {
		go func() {
			runtime.LockOSThread()
			ready <- true
			select {}
		}()
		<-ready
	}
	fmt.Printf("%d threads\n", n)
}
