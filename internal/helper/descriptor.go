package helper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File systems whose files act on whoever reads or writes them, with that process's
// rights: procfs, sysfs and their kin ask who writes, not who has opened. Of FUSE
// a user answers, when he likes. (statfs(2), include/uapi/linux/magic.h)
var actingFS = map[int64]bool{
	unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true, unix.CGROUP2_SUPER_MAGIC: true, unix.CGROUP_SUPER_MAGIC: true,
	unix.BPF_FS_MAGIC: true, unix.DEBUGFS_MAGIC: true, unix.TRACEFS_MAGIC: true, unix.SECURITYFS_MAGIC: true,
	unix.NSFS_MAGIC: true, unix.EFIVARFS_MAGIC: true, unix.SELINUX_MAGIC: true, unix.FUSE_SUPER_MAGIC: true,
	0x62656570 /* configfs */ : true, 0x6c6f6f70 /* binderfs */ : true, 0x19800202 /* mqueue */ : true,
}

// memory is the major number of /dev/null and its kin, of which some do nothing.
const memory = 1

var idle = map[uint32]bool{3: true, 5: true, 7: true, 8: true, 9: true} // null, zero, full, random, urandom

// Passable reports why a descriptor must not be read (number 0) or written (1 and 2)
// by a process with more rights than its opener's: nil for pipes, terminals, plain
// files and /dev/null. A client puts a pipe in the place of anything else.
//
// A socket could be one to a service that asks who writes (SCM_CREDENTIALS); a file
// with a set-id bit would keep it, and what a service's files do is their own.
func Passable(f *os.File, number int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("descriptor %d: %w", number, err)
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", number, err)
	}
	mode := flags & unix.O_ACCMODE
	switch {
	case flags&unix.O_PATH != 0:
		return fmt.Errorf("descriptor %d is no open file (O_PATH)", number)
	case number == 0 && mode == unix.O_WRONLY, number > 0 && mode == unix.O_RDONLY:
		return fmt.Errorf("descriptor %d is open for the other direction", number)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return nil
	case unix.S_IFREG:
		return plain(f, &st, number)
	case unix.S_IFCHR:
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return nil
		}
		if unix.Major(st.Rdev) == memory && idle[unix.Minor(st.Rdev)] {
			return nil
		}
	}
	return fmt.Errorf("descriptor %d is neither a pipe, a terminal, a plain file nor /dev/null", number)
}

func plain(f *os.File, st *unix.Stat_t, number int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return fmt.Errorf("descriptor %d: %w", number, err)
	}
	switch {
	case actingFS[int64(fs.Type)]:
		return fmt.Errorf("descriptor %d is a file that acts on its reader or writer", number)
	case number > 0 && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return fmt.Errorf("descriptor %d is a file with a set-id bit", number)
	}
	return nil
}
