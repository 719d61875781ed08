package seccomp

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Sharing says what a command may do that has no namespaces of its own. What namespaces
// would have kept in, and Landlock does not know, is refused: sockets, IPC objects, limits
// and scheduling of other processes, files by name where no open would be asked, and flags of
// what is open for reading.
type Sharing struct {
	Unix     bool `json:"unix_sockets"` // make unix sockets: Landlock keeps it from those of others (ABI 9)
	Metadata bool `json:"metadata"`     // change modes, owners, times and attributes by path: Landlock guards none
}

var (
	ofItself = rule{{{arg: 0, in: []uint32{0}}}} // pid 0 is the caller
	noAddr   = func(arg int) ruleCase {
		return ruleCase{{arg: arg, in: []uint32{0}}, {arg: arg, upper: true, in: []uint32{0}}}
	}
	unixSocket = ruleCase{{arg: 0, in: []uint32{unix.AF_UNIX}}}
	// A pair of datagram sockets (SOCK_RAW is the same for AF_UNIX) could send to any name.
	unixPair = ruleCase{
		{arg: 0, in: []uint32{unix.AF_UNIX}},
		{arg: 1, mask: sockTypeMask, in: []uint32{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}},
	}
	noSocket = rule{}
)

const ioprioWhoProcess = 1 // IOPRIO_WHO_PROCESS, include/uapi/linux/ioprio.h

// shared are calls that reach beyond the command where it shares namespaces, and what of
// them is its own. What has no case is refused.
var shared = map[string]rule{
	"socket":     noSocket,
	"socketpair": {unixPair},

	// Of any process of the same user, without asking a security module that we have.
	"prlimit64":          {ofItself[0], noAddr(2)}, // (pid, resource, new, old): reading is harmless
	"sched_setaffinity":  ofItself,
	"sched_setparam":     ofItself,
	"sched_setscheduler": ofItself,
	"sched_setattr":      ofItself,
	"setpriority":        {{{arg: 0, in: []uint32{unix.PRIO_PROCESS}}, {arg: 1, in: []uint32{0}}}},
	"ioprio_set":         {{{arg: 0, in: []uint32{ioprioWhoProcess}}, {arg: 1, in: []uint32{0}}}},

	// By descriptor, and so after an open that Landlock has judged.
	"utimensat": {noAddr(1)},

	// Of file systems what only looks, or takes a descriptor for writing: all others (flags,
	// project, verity, encryption, subvolumes) are for whoever owns what was opened for reading.
	"ioctl": {
		{{arg: 1, mask: ioctlType, in: fileIoctls, except: true}},
		{{arg: 1, in: lookingIoctls}},
	},
}

const ioctlType = 0xff00 // _IOC_TYPEMASK << _IOC_TYPESHIFT, include/uapi/asm-generic/ioctl.h

// fileIoctls are the types of the commands of regular files and directories: f and X (all
// file systems, include/uapi/linux/fs.h), v (versions), r (FAT), and those of btrfs, bcachefs and f2fs.
var fileIoctls = []uint32{'f' << 8, 'X' << 8, 'v' << 8, 'r' << 8, 0x94 << 8, 0xbc << 8, 0xf5 << 8}

// lookingIoctls are those of them that change nothing, or nothing without a descriptor for writing
// (include/uapi/linux/{fs,fsverity,fscrypt,msdos_fs}.h). The values are those of 64-bit programs.
var lookingIoctls = []uint32{
	0x80086601, 0x801c581f, 0x80087601, // FS_IOC_GETFLAGS, FSGETXATTR, GETVERSION
	0xc020660b, 0x81009431, // FS_IOC_FIEMAP, GETFSLABEL
	0x40049409, 0x4020940d, 0xc0189436, // FICLONE, FICLONERANGE, FIDEDUPERANGE
	0xc0046686, 0xc0286687, // FS_IOC_MEASURE_VERITY, READ_VERITY_METADATA
	0xc0096616, 0xc080661a, 0x8010661b, // FS_IOC_GET_ENCRYPTION_POLICY_EX, KEY_STATUS, NONCE
	0x80047210, // FAT_IOCTL_GET_ATTRIBUTES
}

// sharedObjects are reached by a key or a name that is no path.
const sharedObjects = `shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
	mq_open mq_unlink`

// secretMemory makes memory that nothing in /proc counts, neither of a process nor of the file, mapped or not
// (mm/secretmem.c), so that a limit which is kept by looking there would not be kept. It is
// answered as by a kernel without (before 5.14, and 6.5 without secretmem.enable).
const secretMemory = "memfd_secret"

// metadataCalls change what a path leads to without opening it.
const metadataCalls = `chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat
	setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat file_setattr`

// rule is what the command may do of a call; ok: it has a say.
func (s Sharing) rule(name string) (r rule, ok bool) {
	switch {
	case s.Unix && (name == "socket" || name == "socketpair"):
		return rule{unixSocket}, true
	case s.Metadata && name == "utimensat":
		return nil, false
	case name == secretMemory, listed(sharedObjects, name), !s.Metadata && listed(metadataCalls, name):
		return nil, true
	}
	r, ok = shared[name]
	return r, ok
}

func listed(names, name string) bool {
	for n := range strings.FieldsSeq(names) {
		if n == name {
			return true
		}
	}
	return false
}
