package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"unsafe"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// actNames changes names below args[0]/real, which it gets to by args[0]/link.
func actNames(args []string) error {
	at := func(name string) string { return filepath.Join(args[0], "link", name) }
	if err := errors.Join(unix.Mkdir(filepath.Join(args[0], "real"), 0o755), unix.Symlink("real", filepath.Join(args[0], "link")), os.WriteFile(at("f"), nil, 0o600)); err != nil {
		return err
	}
	dir, err := unix.Open(at("."), unix.O_PATH, 0)
	if err != nil {
		return err
	}
	exists := unix.Mkdirat(dir, "d", 0o700)
	if exists == nil {
		exists = unix.Mkdirat(dir, "d", 0o700)
	}
	if exists != unix.EEXIST {
		return fmt.Errorf("%w instead of EEXIST", exists)
	}
	return errors.Join(
		unix.Rename(at("f"), at("g")), unix.Linkat(dir, "g", dir, "h", 0), unix.Symlink("some text", at("s")),
		unix.Chmod(at("g"), 0o640), unix.Chown(at("g"), 0, 0), unix.Truncate(at("g"), 3), unix.Mknod(at("p"), unix.S_IFIFO|0o600, 0),
		unix.Setxattr(at("g"), "user.one", []byte("x"), 0), unix.Removexattr(at("g"), "user.one"),
		unix.Unlink(at("h")), unix.Rmdir(at("d")), unix.Mkdir(at("d/../e"), 0o700),
	)
}

// actFlip removes one of two files, args[0]/a or /b, again and again, while
// another thread changes the name, and prints which one it was each time.
func actFlip(args []string) error {
	name := append([]byte(filepath.Join(args[0], "a")), 0, 0, 0, 0)
	at := len(name) - 5
	word := (*uint32)(unsafe.Pointer(&name[at&^3]))
	a := *word
	b := a + 1<<(8*(at&3)) // little-endian: 'a' becomes 'b'
	var stop atomic.Bool
	defer stop.Store(true)
	go func() {
		runtime.LockOSThread()
		for !stop.Load() {
			atomic.StoreUint32(word, b)
			atomic.StoreUint32(word, a)
		}
	}()
	for range 300 {
		for _, f := range []string{"a", "b"} {
			if err := os.WriteFile(filepath.Join(args[0], f), nil, 0o600); err != nil {
				return err
			}
		}
		cwd := unix.AT_FDCWD
		if _, _, errno := unix.Syscall(unix.SYS_UNLINKAT, uintptr(cwd), uintptr(unsafe.Pointer(&name[0])), 0); errno != 0 {
			return errno
		}
		gone := "a"
		if _, err := os.Stat(filepath.Join(args[0], "a")); err == nil {
			gone = "b"
		}
		fmt.Print(gone)
	}
	return nil
}

// actRefused restricts itself with Landlock to args[0]/ok, and tries things
// beside it, in args[0]/no, and through args[0]/link to it.
func actRefused(args []string) error {
	runtime.LockOSThread()
	ok, err := unix.Open(filepath.Join(args[0], "ok"), unix.O_PATH, 0)
	if err != nil {
		return err
	}
	all := uint64(1<<14 - 1) // ABI 2
	rules, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{HandledAccessFS: all}, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(ll.LandlockAddPathBeneathRule(rules, &ll.PathBeneathAttr{ParentFd: ok, AllowedAccess: all}, 0),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), ll.LandlockRestrictSelf(rules, 0)); err != nil {
		return err
	}
	link := filepath.Join(args[0], "link")
	_, read := unix.Open(link+"/f", unix.O_RDONLY, 0)
	_, create := unix.Open(link+"/new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	for _, try := range []struct {
		got  error
		want unix.Errno
	}{
		{read, unix.EACCES},
		{create, unix.EACCES},
		{unix.Unlink(link + "/f"), unix.EACCES},
		{unix.Mkdir(link+"/d", 0o700), unix.EACCES},
		{unix.Rename(filepath.Join(args[0], "ok/g"), link+"/g"), unix.EACCES},
		{unix.Unlink(filepath.Join(args[0], "ok/none")), unix.ENOENT},
		{unix.Chmod("/none", 0), unix.ENOENT},
		{unix.Setpriority(unix.PRIO_PROCESS, 1, -20), 0}, // root's own right: no refusal
	} {
		if try.got != try.want && (try.want != 0 || try.got != nil) {
			return fmt.Errorf("%v instead of %v", try.got, try.want)
		}
	}
	return nil
}

// actReceiveFiles sends itself descriptors, and receives them in one message and in several.
func actReceiveFiles(args []string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	f, err := unix.Open(args[0]+"/f0", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	send := func(fds ...int) error { return unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fds...), nil, 0) }
	if err := errors.Join(send(f, pair[0]), unix.Sendmsg(pair[0], []byte("x"), nil, nil, 0), send(f)); err != nil {
		return err
	}
	var data, control [256]byte
	if _, n, _, _, err := unix.Recvmsg(pair[1], data[:], control[:], unix.MSG_CMSG_CLOEXEC); err != nil || n == 0 {
		return fmt.Errorf("%d bytes of control data, %w", n, err)
	}
	if _, n, _, _, err := unix.Recvmsg(pair[1], data[:], control[:], 0); err != nil || n != 0 {
		return fmt.Errorf("%d bytes of control data, %w", n, err)
	}
	if err := errors.Join(send(f), send(f)); err != nil {
		return err
	}
	return receiveMany(pair[1], 3)
}

// receiveMany is recvmmsg(2), for which unix has no function.
func receiveMany(fd, n int) error {
	type mmsghdr struct {
		hdr unix.Msghdr
		len uint32
		_   uint32
	}
	msgs := make([]mmsghdr, n)
	for i := range msgs {
		iov, control := &unix.Iovec{Base: &make([]byte, 8)[0], Len: 8}, make([]byte, 128)
		msgs[i].hdr = unix.Msghdr{Iov: iov, Iovlen: 1, Control: &control[0], Controllen: uint64(len(control))}
	}
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(n), 0, 0, 0)
	runtime.KeepAlive(msgs)
	if errno != 0 || int(got) != n {
		return fmt.Errorf("%d messages of %d: %w", got, n, errno)
	}
	return nil
}

// actRange maps three files beside each other and makes all of it executable at once.
func actRange(args []string) error {
	page := os.Getpagesize()
	area, err := unix.Mmap(-1, 0, 4*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	base := uintptr(unsafe.Pointer(&area[0]))
	for i := range 3 {
		fd, err := unix.Open(fmt.Sprintf("%s/f%d", args[0], i), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		at := base + uintptr((i+i/2)*page) // a page without a file between the second and the third
		if _, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(page), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, uintptr(fd), 0); errno != 0 {
			return errno
		}
	}
	return unix.Mprotect(area, unix.PROT_READ|unix.PROT_EXEC)
}
