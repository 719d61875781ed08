package helper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File systems whose plain files are taken: data on a local disk or in memory, and nothing else. Not taken
// are those that ask who reads or writes (procfs, sysfs and their kin), and those behind which somebody answers when he likes:
// FUSE, servers on a network, and an overlay, whose layers may be any of these and whose user
// may have made it. A thread that waits for such an answer takes no signal, and the runtime
// stands still with all threads until it has taken one (AllThreadsSyscall, for capabilities):
// nothing would keep the limits of the run. (statfs(2), include/uapi/linux/magic.h)
var localFS = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true,
	unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true, unix.HUGETLBFS_MAGIC: true, unix.SQUASHFS_MAGIC: true, unix.EROFS_SUPER_MAGIC_V1: true,
	unix.ISOFS_SUPER_MAGIC: true, unix.MSDOS_SUPER_MAGIC: true, unix.EXFAT_SUPER_MAGIC: true, unix.UDF_SUPER_MAGIC: true, unix.NILFS_SUPER_MAGIC: true,
	unix.REISERFS_SUPER_MAGIC: true, 0x3153464a /* jfs */ : true, 0x2fc12fc1 /* zfs */ : true, 0xca451a4e /* bcachefs */ : true, 0x7366746e /* ntfs3 */ : true,
}

// memory is the major number of /dev/null and its kin, of which some do nothing.
const memory = 1

var idle = map[uint32]bool{3: true, 5: true, 7: true, 8: true, 9: true} // null, zero, full, random, urandom

// Passable reports why a descriptor must not be read (number 0) or written (1 and 2)
// by a process with more rights than its opener's: nil for pipes, terminals, plain
// files of local file systems and /dev/null. A client puts a pipe in the place of anything else.
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
	case !localFS[int64(fs.Type)]:
		return fmt.Errorf("descriptor %d is a file of no local file system (type %#x): it may act on its reader or writer, or not answer", number, fs.Type)
	case number > 0 && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return fmt.Errorf("descriptor %d is a file with a set-id bit", number)
	}
	return nil
}
