package bpf

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// acts are what children of the tests do. The try acts print "NAME ERRNO" lines.
var acts = map[string]func(args []string) error{
	"getppid":    actGetppid,
	"time":       actTime,
	"exec":       actExec,
	"exit":       actExit,
	"kill":       func([]string) error { return unix.Kill(os.Getpid(), unix.SIGKILL) },
	"files":      actFiles,
	"deny-flood": actDenyFlood,
	"egress":     actEgress,
	"listen":     actListen,
	"unix":       actUnix,
	"seccomp":    actSeccomp,
	"threads":    actThreads,
	"init":       actInit,
	"nested":     actNested,
	"bytes":      actBytes,
	"holes":      actHoles,
	"opens":      actOpens,
	"opentime":   actOpenTime,
	"changes":    actChanges,
	"maps":       actMaps,
	"anonymous":  actAnonymous,
	"deep":       actDeep,
	"names":      actNames,
	"flip":       actFlip,
	"refused":    actRefused,
	"receive-fd": actReceiveFiles,
	"range":      actRange,
	"supervisor": actSupervisor,
	"sleep":      func([]string) error { time.Sleep(time.Minute); return nil },
}

func actExit(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err == nil {
		os.Exit(n)
	}
	return err
}

func actGetppid(args []string) error {
	n, err := strconv.Atoi(args[0])
	for range n {
		unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
	}
	return err
}

// timed are the calls that actTime measures, in a directory with files f0, f1, ...
var timed = []struct {
	name string
	do   func(i int) error
}{
	{"getppid", func(int) error { unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); return nil }},
	{"open", func(int) error { return openClose("f0") }},
	{"opens", func(i int) error { return openClose("f" + strconv.Itoa(i%timedFiles)) }},
	{"missing", func(int) error {
		if _, err := unix.Open("missing", unix.O_RDONLY, 0); err != unix.ENOENT {
			return fmt.Errorf("open: %v", err)
		}
		return nil
	}},
}

const timedFiles = 300 // more than a thread's memory in the kernel has room for

func openClose(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// actTime reports the ns of the fastest of some rounds of each call.
func actTime(args []string) error {
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	const n = 3000
	for _, call := range timed {
		best := time.Hour
		for range 20 {
			start := time.Now()
			for i := range n {
				if err := call.do(i); err != nil {
					return err
				}
			}
			best = min(best, time.Since(start))
		}
		fmt.Println(call.name, best.Nanoseconds()/n)
	}
	return nil
}

// actExec runs a program with arguments of the given lengths, and one that is not there.
func actExec(args []string) error {
	var long []string
	for i, arg := range args {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		long = append(long, strings.Repeat(string(rune('a'+i)), n))
	}
	cmd := exec.Command("/proc/self/exe", long...)
	cmd.Env = []string{actVariable + "=getppid0"}
	cmd.Run()
	err := unix.Exec("/nonexistent/program", []string{"x"}, nil)
	if !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("exec: %w", err)
	}
	return nil
}

// actFiles is refused what another uid owns.
func actFiles(args []string) error {
	dir := args[0]
	if err := dropTo(64000); err != nil {
		return err
	}
	report("open", try(os.Open(filepath.Join(dir, "secret"))))
	report("mkdir", os.Mkdir(filepath.Join(dir, "new"), 0o755))
	report("rename", unix.Renameat(unix.AT_FDCWD, filepath.Join(dir, "secret"), unix.AT_FDCWD, filepath.Join(dir, "other")))
	return nil
}

// dropTo gives up root in the calling thread and keeps to it.
func dropTo(id int) error {
	runtime.LockOSThread()
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)); e != 0 {
		return e
	}
	return nil
}

func actDenyFlood(args []string) error {
	target := filepath.Join(args[0], "x")
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if err := dropTo(64000); err != nil {
		return err
	}
	path, err := unix.BytePtrFromString(target)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until whoever starts several has started all
		return err
	}
	at := unix.AT_FDCWD
	for range n {
		_, _, e := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
		if e != unix.EACCES {
			return fmt.Errorf("open %s: %w", args[0], e)
		}
	}
	return nil
}

func try[T any](_ T, err error) error { return err }

func report(name string, err error) {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		fmt.Println(name, err)
		return
	}
	fmt.Println(name, int(errno))
}

// actSeccomp has a filter refuse getppid, whose address is bad on purpose elsewhere.
func actSeccomp([]string) error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	_, _, e := unix.RawSyscall6(unix.SYS_GETPPID, 11, 12, 13, 14, 15, 16)
	report("getppid", e)
	_, _, e = unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	report("clone3", e)
	_, _, e = unix.RawSyscall(1000, 0, 0, 0)
	report("1000", e)
	return nil
}

// actThreads ends many threads at once, and half of them with the process.
func actThreads([]string) error {
	var born sync.WaitGroup
	end := make(chan struct{})
	for i := range 16 {
		born.Add(1)
		go func() {
			runtime.LockOSThread()
			born.Done()
			<-end
			if i%2 == 0 {
				runtime.UnlockOSThread() // the thread stays
			}
		}()
	}
	born.Wait()
	close(end)
	return nil
}

// actInit is pid 1 of a sandbox: it does things of its own, then starts the command.
func actInit([]string) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("pid is %d", os.Getpid())
	}
	if err := actGetppid([]string{"1000"}); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "50")
	cmd.Env = []string{actVariable + "=getppid"}
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return actGetppid([]string{"1000"})
}

// actNested moves to a cgroup below the leaf and goes on there.
func actNested(args []string) error {
	sub := filepath.Join(args[0], "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(sub, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	if err := loUp(); err != nil {
		return err
	}
	report("tcp4", attempts()[0].try())
	return actGetppid([]string{"77"})
}

func actBytes([]string) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for range 1000 {
		if _, err := unix.Pwrite(p[1], buf, 0); !errors.Is(err, unix.ESPIPE) {
			return err
		}
		if _, err := unix.Writev(p[1], [][]byte{buf}); err != nil {
			return err
		}
		if _, err := unix.Readv(p[0], [][]byte{buf}); err != nil {
			return err
		}
	}
	return nil
}

// actHoles writes 1000 bytes, reaches for 8192, and punches holes of 2^64-2.
func actHoles([]string) error {
	fd, err := unix.MemfdCreate("holes", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, make([]byte, 1000)); err != nil {
		return err
	}
	const hole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return errors.Join(unix.Fallocate(fd, 0, 0, 8192), unix.Fallocate(fd, hole, 0, math.MaxInt64), unix.Fallocate(fd, hole, 0, math.MaxInt64))
}

// actSupervisor starts a run with a sleeping child, says so, and waits to be killed.
func actSupervisor(args []string) error {
	level, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p, err := Open(Config{PinDir: args[0], Parent: args[1], Level: level})
	if err != nil {
		return err
	}
	leaf, err := os.Open(args[3])
	if err != nil {
		return err
	}
	id, err := cgroupID(leaf)
	if err != nil {
		return err
	}
	r, err := p.Start(RunConfig{CgroupID: id})
	if err != nil {
		return err
	}
	cmd := act(leaf, "sleep")
	cmd.SysProcAttr.Pdeathsig = 0
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	time.Sleep(time.Minute)
	return r.Close()
}
