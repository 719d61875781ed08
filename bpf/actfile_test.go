package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// actOpens opens each of some files so many times, in as many threads as are asked for.
func actOpens(args []string) error {
	n := [3]int{} // files, rounds, threads
	for i := range n {
		v, err := strconv.Atoi(args[1+i])
		if err != nil {
			return err
		}
		n[i] = v
	}
	var paths []*byte
	for i := range n[0] {
		p, err := unix.BytePtrFromString(filepath.Join(args[0], fmt.Sprint("f", i)))
		if err != nil {
			return err
		}
		paths = append(paths, p)
	}
	failed := make([]error, n[2])
	var wg sync.WaitGroup
	for t := range n[2] {
		wg.Go(func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			failed[t] = openAll(paths, n[1])
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

func openAll(paths []*byte, rounds int) error {
	at := unix.AT_FDCWD
	for range rounds {
		for _, p := range paths {
			fd, _, e := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(p)), unix.O_RDONLY, 0, 0, 0)
			if e != 0 {
				return e
			}
			unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	return nil
}

// actOpenTime prints the ns of CPU time of an open and close: the same file, and one of many.
func actOpenTime(args []string) error {
	runtime.LockOSThread()
	var many []*byte
	for i := range 256 {
		p, err := unix.BytePtrFromString(filepath.Join(args[0], fmt.Sprint("f", i)))
		if err != nil {
			return err
		}
		many = append(many, p)
	}
	for name, paths := range map[string][]*byte{"same": many[:1], "many": many} {
		best := time.Hour
		for range 20 {
			start := threadCPU()
			rounds := 2560 / len(paths)
			if err := openAll(paths, rounds); err != nil {
				return err
			}
			best = min(best, (threadCPU()-start)/time.Duration(rounds*len(paths)))
		}
		fmt.Println(name, best.Nanoseconds())
	}
	return nil
}

func threadCPU() time.Duration {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

func actChanges(args []string) error {
	dir := args[0]
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	fd, err := unix.Openat2(at, "new", &unix.OpenHow{Flags: unix.O_CREAT | unix.O_RDWR, Mode: 0o640, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	again, err := unix.Open("new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(
		unix.Fchmod(fd, 0o600), unix.Ftruncate(fd, 10), unix.Renameat2(at, "new", unix.AT_FDCWD, dir+"/moved", 0),
		unix.Fchmod(fd, 0o644), unix.Linkat(at, "moved", at, "name", 0), unix.Symlinkat("some text", at, "sym"), unix.Unlinkat(at, "name", 0),
		unix.Mkdirat(at, "sub", 0o711), unix.Unlinkat(at, "sub", unix.AT_REMOVEDIR), unix.Chmod(dir+"/f0", 0o700), unix.Lchown("f0", 0, 0),
		unix.Setxattr("f0", "trusted.a", []byte("v"), 0), unix.Truncate("f0", 0), unix.Unlinkat(at, "moved", 0), unix.Fchmod(again, 0o600),
		unix.Mknod(dir+"/pipe", unix.S_IFIFO|0o600, 0), missing(unix.Unlink("nothing")), missing(unix.Rename(dir+"/nothing", "x")),
	)
}

func missing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%w instead of ENOENT", err)
}

func actMaps(args []string) error {
	fd, err := unix.Open(args[0]+"/f0", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	mem, err := unix.MemfdCreate("hidden", 0)
	if err != nil {
		return err
	}
	page := os.Getpagesize()
	var errs []error
	for _, m := range []struct{ fd, prot, flags int }{
		{fd, unix.PROT_READ | unix.PROT_EXEC, unix.MAP_PRIVATE},
		{fd, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED},
		{fd, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE},
		{mem, unix.PROT_READ | unix.PROT_EXEC, unix.MAP_SHARED},
	} {
		_, err := unix.Mmap(m.fd, 0, page, m.prot, m.flags)
		errs = append(errs, err)
	}
	late, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	errs = append(errs, err, unix.Mprotect(late, unix.PROT_READ|unix.PROT_WRITE), unix.Unlink(args[0]+"/f0"), unix.Mprotect(late, unix.PROT_EXEC))
	return errors.Join(errs...)
}

// actAnonymous makes memory executable that is no file's: five times by mmap,
// five by mprotect; and once a page of a file that it has changed.
func actAnonymous(args []string) error {
	runtime.LockOSThread()
	page := os.Getpagesize()
	var errs []error
	for range 5 {
		_, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		mem, err2 := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		errs = append(errs, err, err2, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_EXEC))
	}
	fd, err := unix.Open(args[0]+"/f0", unix.O_RDWR, 0)
	errs = append(errs, err, unix.Ftruncate(fd, int64(page)))
	mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	mem[0] = 0xc3
	return errors.Join(unix.Mprotect(mem, unix.PROT_READ|unix.PROT_EXEC), changeable(args[0]+"/f1", page, true), changeable(args[0]+"/f2", page, false), shared(args[0]+"/f3", page))
}

// shared maps a file to be executed and written, at once and by mprotect.
func shared(name string, page int) error {
	const all = unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT, 0o700)
	errs := []error{err, unix.Ftruncate(fd, int64(page))}
	_, err = unix.Mmap(fd, 0, page, all, unix.MAP_SHARED)
	mem, err2 := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	if err := errors.Join(append(errs, err, err2)...); err != nil {
		return err
	}
	return unix.Mprotect(mem, all)
}

// changeable maps a file to be executed, and once more so that what is executed can be changed.
func changeable(name string, page int, atOnce bool) error {
	const code, all = unix.PROT_READ | unix.PROT_EXEC, unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT, 0o700)
	errs := []error{err, unix.Ftruncate(fd, int64(page))}
	_, err = unix.Mmap(fd, 0, page, code, unix.MAP_PRIVATE)
	errs = append(errs, err)
	if atOnce {
		_, err = unix.Mmap(fd, 0, page, all, unix.MAP_PRIVATE)
		return errors.Join(append(errs, err)...)
	}
	mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_PRIVATE)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return unix.Mprotect(mem, all)
}

func actDeep(args []string) error {
	if err := unix.Chdir(args[0]); err != nil {
		return err
	}
	name := strings.Repeat("d", 250)
	for range 40 {
		if err := errors.Join(unix.Mkdir(name, 0o755), unix.Chdir(name)); err != nil {
			return err
		}
	}
	_, err := unix.Open("bottom", unix.O_CREAT|unix.O_RDONLY, 0o600)
	for range 40 { // too long a path for RemoveAll
		unix.Unlink("bottom")
		err = errors.Join(err, unix.Chdir(".."), unix.Rmdir(name))
	}
	return err
}
