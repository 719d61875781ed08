package seccomp

import "golang.org/x/sys/unix"

// The calls that are judged by their arguments.
const (
	cloneRule = ruled + iota
	unshareRule
	socketRule
	ioctlRule
	fcntlRule
	shmatRule
	personalityRule
	modeRule1 // the mode is argument 1
	modeRule2
	openRule
	openatRule
	execveatRule
)

// A rule allows a call when any of its cases holds, and refuses it otherwise.
type rule []ruleCase

// A ruleCase holds when all of its tests do.
type ruleCase []argTest

// An argTest compares one half of an argument, after masking it, with values.
//
// The kernel takes most arguments as int or unsigned int and drops the upper
// half of the register. A filter that compares all 64 bits then sees another
// number than the kernel: CVE-2019-7303 (snapd) and CVE-2019-10063 (Flatpak) are
// TIOCSTI let through that way. So the lower half counts unless upper is set.
type argTest struct {
	arg    int // from 0
	upper  bool
	mask   uint32 // 0 is all bits
	in     []uint32
	except bool // holds when the value is *not* in the list
}

// namespaces are the flags that make one. CLONE_NEWTIME is among them although
// clone reads it as part of the exit signal: no signal has that bit.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// unsharable are the other flags of unshare. They are the ones that are listed,
// so that whatever unshare learns later (7.1: UNSHARE_EMPTY_MNTNS) is refused.
const unsharable = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
	unix.CLONE_THREAD | unix.CLONE_SYSVSEM

const sockTypeMask = 0xf // SOCK_TYPE_MASK, include/linux/net.h: the rest of the type is flags

var rules = [...]rule{
	// clone(flags, ...) on both architectures; the kernel takes the lower half.
	cloneRule: {{{arg: 0, mask: namespaces, in: []uint32{0}}}},

	// unshare(flags) takes all 64 bits.
	unshareRule: {{
		{arg: 0, mask: ^uint32(unsharable), in: []uint32{0}},
		{arg: 0, upper: true, in: []uint32{0}},
	}},

	// socket(family, type, protocol), and socketpair the same.
	socketRule: {
		{{arg: 0, in: []uint32{unix.AF_UNIX}}},
		// Not SOCK_RAW, nor SOCK_PACKET (AF_PACKET by an old name). Not the other transports
		// of these families either (SCTP, also as SOCK_SEQPACKET with protocol 0; DCCP,
		// UDP-Lite, L2TP, SMC): they connect past the hooks of the cgroup programs.
		{
			{arg: 0, in: []uint32{unix.AF_INET, unix.AF_INET6}},
			{arg: 1, mask: sockTypeMask, in: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}},
			{arg: 2, in: []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_MPTCP}},
		},
		// NETLINK_ROUTE alone: getifaddrs and the like. Changing anything needs CAP_NET_ADMIN.
		{{arg: 0, in: []uint32{unix.AF_NETLINK}}, {arg: 2, in: []uint32{unix.NETLINK_ROUTE}}},
	},

	// ioctl(fd, cmd, ...): the terminal may be the caller's. TIOCSTI and TIOCLINUX type
	// into it; TIOCSETD makes it deaf, and loads kernel modules of serial protocols. The
	// others are fallocate(2) by an older name (fs/ioctl.c), past the count of what a run
	// takes of real directories, which sees the call and not these.
	ioctlRule: {{{arg: 1, in: []uint32{unix.TIOCSTI, tiocLinux, unix.TIOCSETD, fsResvSp, fsResvSp64, fsZeroRange}, except: true}}},

	// fcntl(fd, cmd, ...): whoever opens a file with a lease waits for its holder, 45 seconds by default
	// (fs/locks.c, __break_lease): a program of the host's, for what the run may only read as its
	// owner; and the reader of fanotify's events, for what the run executes. F_SETDELEG (6.19) takes directories.
	fcntlRule: {{{arg: 1, in: []uint32{unix.F_SETLEASE, unix.F_SETDELEG}, except: true}}},

	// shmat(id, addr, flags): an executable mapping, by a call that the sensor does not know as one.
	shmatRule: {{{arg: 2, mask: shmExec, in: []uint32{0}}}},

	// personality(persona): Moby's values, and ADDR_NO_RANDOMIZE, which debuggers and
	// sanitizers set. It takes protection from the process itself, nobody else.
	personalityRule: {{{arg: 0, in: []uint32{0, perLinux32, uname26, uname26 | perLinux32, addrNoRandomize, 0xffffffff}}}},

	modeRule1: {{plainMode(1)}}, // chmod, fchmod, mkdir, mknod, creat(path, mode)
	modeRule2: {{plainMode(2)}}, // fchmodat, fchmodat2, mkdirat, mknodat(dir, path, mode)

	// open(path, flags, mode) and openat(dir, path, flags, mode). The mode counts when
	// a file is made; otherwise its register holds anything. The flags come first: these
	// are the calls that are made most, and nearly always to open what exists.
	openRule:   {{opensOnly(1)}, {plainMode(2)}},
	openatRule: {{opensOnly(2)}, {plainMode(3)}},

	// execveat(dir, path, argv, envp, flags): AT_EXECVE_CHECK (6.14) opens a file as an
	// execve does and ends there, unreported: the record would take it for the script of
	// the next one. Before 6.14 the flag is refused too.
	execveatRule: {{{arg: 4, mask: execveCheck, in: []uint32{0}}}},
}

// plainMode holds when a mode has no S_ISUID and no S_ISGID. In a writable
// workspace of root's the command's files are root's on the host, and so would
// be its set-user-id programs: the view's nosuid is for the run only. mkdir
// drops both bits by itself, which is no reason to let it be asked. A chmod that
// keeps the bit of a set-group-id directory is refused as well: a filter sees what
// is set, not what was. As systemd's RestrictSUIDSGID= (src/shared/seccomp-util.c).
func plainMode(arg int) argTest {
	return argTest{arg: arg, mask: unix.S_ISUID | unix.S_ISGID, in: []uint32{0}}
}

// opensOnly holds when flags make no file (WILL_CREATE, fs/open.c). Both flags have
// the same value on both architectures. unix.O_TMPFILE has not: O_DIRECTORY is in it.
func opensOnly(arg int) argTest {
	return argTest{arg: arg, mask: unix.O_CREAT | tmpFile, in: []uint32{0}}
}

const shmExec = 0o100000 // SHM_EXEC, include/uapi/linux/shm.h

const execveCheck = 0x10000 // AT_EXECVE_CHECK, include/uapi/linux/fcntl.h

const tmpFile = 0o20000000 // __O_TMPFILE, include/uapi/asm-generic/fcntl.h

// include/uapi/asm-generic/ioctls.h, include/linux/falloc.h and include/uapi/linux/personality.h
const (
	tiocLinux       = 0x541c
	fsResvSp        = 0x40305828 // FS_IOC_RESVSP
	fsResvSp64      = 0x4030582a // FS_IOC_RESVSP64
	fsZeroRange     = 0x40305839 // FS_IOC_ZERO_RANGE
	perLinux32      = 0x0008
	uname26         = 0x0020000
	addrNoRandomize = 0x0040000
)

func (r rule) allows(args [6]uint64) bool {
	for _, c := range r {
		if c.holds(args) {
			return true
		}
	}
	return false
}

func (c ruleCase) holds(args [6]uint64) bool {
	for _, t := range c {
		if !t.holds(args) {
			return false
		}
	}
	return true
}

func (t argTest) holds(args [6]uint64) bool {
	v := uint32(args[t.arg])
	if t.upper {
		v = uint32(args[t.arg] >> 32)
	}
	if t.mask != 0 {
		v &= t.mask
	}
	for _, w := range t.in {
		if v == w {
			return !t.except
		}
	}
	return t.except
}
