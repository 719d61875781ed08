//go:build linux

package notify_test

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
)

// victims are what a victim does behind its filter, by name.
var victims = map[string]func(args []string){
	"sh": func(args []string) {
		must(unix.Exec("/bin/sh", []string{"sh", "-c", args[0]}, []string{"PATH=/usr/bin:/bin", "SECRET=x y"}))
	},
	"program":  runProgram,
	"badexec":  badExec,
	"fixed":    fixed,
	"refused":  refused,
	"nothing":  nothing,
	"storm":    storm,
	"signals":  signals,
	"threads":  threads,
	"listener": ownListener,
	"killed": func([]string) {
		call(unix.SYS_BIND, killMe, 0, 0)
		panic("it lives")
	},
	"deaf": func([]string) {
		fmt.Println(call(unix.SYS_CONNECT, 0, 0, 0), call(unix.SYS_SWAPON, 0, 0, 0), call(unix.SYS_EXECVE, 0, 0, 0), call(unix.SYS_GETPID, 0, 0, 0))
		must(unix.Kill(os.Getpid(), unix.SIGKILL)) // exit_group would fail
	},
}

func call(nr uintptr, a, b, c uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall(nr, a, b, c)
	return errno
}

func cstring(s string) uintptr {
	p, err := unix.BytePtrFromString(s)
	must(err)
	kept = append(kept, p)
	return uintptr(unsafe.Pointer(p))
}

var kept []*byte // what raw calls point to

// badExec executes what cannot be, and at last a program by a huge list.
func badExec([]string) {
	fmt.Println(call(unix.SYS_EXECVE, 8, 0, 0))
	fmt.Println(call(unix.SYS_EXECVE, cstring("/nowhere/prog"), 8, 8))
	long, big := strings.Repeat("/long", 4000), []string{"true"}
	fmt.Println(call(unix.SYS_EXECVE, cstring(long), 0, 0))
	for range 5 {
		big = append(big, strings.Repeat("a", 100<<10))
	}
	must(unix.Exec("/bin/true", big, nil))
}

func refused([]string) {
	swap := cstring("/dev/swap")
	for range 5 {
		fmt.Println(call(unix.SYS_SWAPON, swap, 0, 0))
	}
	dir, err := unix.Open("/usr", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(err)
	fmt.Println(call(unix.SYS_FCHMODAT, uintptr(dir), cstring("bin/prog"), 0o4755))
	fmt.Println(call(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0))
	var st unix.Stat_t
	fmt.Println(unix.Stat("/usr/bin", &st) == nil && st.Mode&unix.S_ISUID == 0)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	_ = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
	_ = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 2}})
	_ = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 3}})
	_, _ = unix.Write(fd, []byte("y"))
}

// nothing looks for a way to the listener.
func nothing([]string) {
	must(unix.Exec("/bin/sh", []string{"sh", "-c", "ls -l /proc/self/fd /proc/$$/fd"}, []string{"PATH=/usr/bin:/bin"}))
}

// storm fails to execute so many times as it is told.
func storm(args []string) {
	n, err := strconv.Atoi(args[0])
	must(err)
	path := cstring("/nowhere")
	for range n {
		if errno := call(unix.SYS_EXECVE, path, 0, 0); errno != unix.ENOENT {
			panic(errno)
		}
	}
}

// signals is a storm during which a timer interrupts whatever waits.
func signals(args []string) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGALRM)
	_, err := unix.Setitimer(unix.ItimerReal, unix.Itimerval{Interval: unix.Timeval{Usec: 300}, Value: unix.Timeval{Usec: 300}})
	must(err)
	storm(args)
	<-caught
}

// threads has many call at once. A raw call would hold what the others run by.
func threads(args []string) {
	n, err := strconv.Atoi(args[0])
	must(err)
	debug.SetMaxThreads(2*n + 100)
	var all, ready sync.WaitGroup
	ready.Add(n)
	for range n {
		all.Go(func() {
			ready.Done()
			ready.Wait()
			if _, _, errno := unix.Syscall(unix.SYS_CONNECT, gather, uintptr(n), 0); errno != unix.EBADF {
				panic(errno)
			}
		})
	}
	all.Wait()
}

// ownListener tries to be asked in the supervisor's stead, and to be asked by nobody.
func ownListener([]string) {
	flags, _ := notify.InstallFlags()
	ask := []byte{6, 0, 0, 0, 0, 0, 0xc0, 0x7f} // return SECCOMP_RET_USER_NOTIF
	for _, f := range []uintptr{flags, flags | 1<<32, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_LOG} {
		_, errno := install(ask, f)
		fmt.Println(errno)
	}
	fmt.Println(notify.Probe())
	// Without a listener its answer to execve is ENOSYS: not made, and so not told.
	onlyExec := []byte{
		0x20, 0, 0, 0, 0, 0, 0, 0, // load the number
		0x15, 0, 0, 1, byte(unix.SYS_EXECVE), 0, 0, 0, // execve?
		6, 0, 0, 0, 0, 0, 0xc0, 0x7f, // SECCOMP_RET_USER_NOTIF
		6, 0, 0, 0, 0, 0, 0xff, 0x7f, // SECCOMP_RET_ALLOW
	}
	_, errno := install(onlyExec, 0)
	fmt.Println(errno, syscall.Exec("/bin/true", []string{"true"}, nil))
	fmt.Println(call(unix.SYS_SWAPON, 0, 0, 0))
}

// fixed executes a shell that executes itself twice, the second time with as much on its
// stack, and then something that cannot be.
func fixed([]string) {
	if errno := call(unix.SYS_PERSONALITY, 0x0040000 /* ADDR_NO_RANDOMIZE */, 0, 0); errno != 0 {
		panic(errno)
	}
	script := `case $1 in a) exec /bin/sh -c "$S" s b;; b) exec /bin/sh -c "$S" s c;; c) exec /nowhere/x;; esac`
	must(unix.Exec("/bin/sh", []string{"/bin/sh", "-c", script, "s", "a"}, []string{"PATH=/usr/bin:/bin", "S=" + script}))
}
