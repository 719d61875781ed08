package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of ioctl(2) that x/sys/unix does not have (include/uapi/linux/fs.h, fsverity.h).
const (
	setXattr    = 0x401c5820 // FS_IOC_FSSETXATTR
	setVersion  = 0x40087602 // FS_IOC_SETVERSION
	enableVerit = 0x40806685 // FS_IOC_ENABLE_VERITY
)

// attributes changes what a file is besides its contents, by a descriptor for reading.
func attributes(name string) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fatal(err.Error())
	}
	ioctl := func(cmd uintptr) func() error {
		return func() error {
			var arg [128]byte
			return called(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(unsafe.Pointer(&arg[0])))
		}
	}
	for _, a := range []struct {
		name string
		act  func() error
	}{
		{"setflags", ioctl(unix.FS_IOC_SETFLAGS)},
		{"fssetxattr", ioctl(setXattr)},
		{"setversion", ioctl(setVersion)},
		{"verity", ioctl(enableVerit)},
		{"fchmod", func() error { return unix.Fchmod(fd, 0o640) }},
		{"fchown", func() error { return unix.Fchown(fd, os.Getuid(), os.Getgid()) }},
		{"futimens", func() error { return called(unix.SYS_UTIMENSAT, uintptr(fd), 0, 0) }},
	} {
		report(a.name, plain(a.act()))
	}
}
