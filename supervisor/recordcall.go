package supervisor

import (
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// callInfo says what a system call is in the record.
type callInfo struct {
	name        string
	kind        trace.Kind
	flags, mode int // 1 + index of the argument; 0: it has none
}

// seenCalls are the calls by number that were asked for: a short run has few.
var seenCalls [512]atomic.Pointer[callInfo]

func callOf(nr int) callInfo {
	if nr < 0 || nr >= len(seenCalls) {
		return callInfo{name: "syscall_" + strconv.Itoa(nr), kind: trace.KindDeny}
	}
	if known := seenCalls[nr].Load(); known != nil {
		return *known
	}
	name := seccomp.Name(nr)
	info := callInfo{name, callKinds[name], flagsAt[name], modeAt[name]}
	if info.kind == "" {
		info.kind = trace.KindDeny
	}
	seenCalls[nr].Store(&info)
	return info
}

// callKinds maps system calls to the kind of their act; those without one are
// recorded when they are refused only.
var callKinds = map[string]trace.Kind{
	"open": trace.KindOpen, "openat": trace.KindOpen, "openat2": trace.KindOpen, "creat": trace.KindCreate,
	"memfd_create": trace.KindCreate, "mknod": trace.KindCreate, "mknodat": trace.KindCreate,
	"unlink": trace.KindUnlink, "unlinkat": trace.KindUnlink, "rmdir": trace.KindUnlink,
	"rename": trace.KindRename, "renameat": trace.KindRename, "renameat2": trace.KindRename,
	"link": trace.KindLink, "linkat": trace.KindLink, "symlink": trace.KindLink, "symlinkat": trace.KindLink,
	"mkdir": trace.KindMkdir, "mkdirat": trace.KindMkdir, "truncate": trace.KindTruncate, "ftruncate": trace.KindTruncate,
	"chmod": trace.KindChmod, "fchmod": trace.KindChmod, "fchmodat": trace.KindChmod, "fchmodat2": trace.KindChmod,
	"chown": trace.KindChown, "lchown": trace.KindChown, "fchown": trace.KindChown, "fchownat": trace.KindChown,
	"setxattr": trace.KindSetxattr, "lsetxattr": trace.KindSetxattr, "fsetxattr": trace.KindSetxattr, "setxattrat": trace.KindSetxattr,
	"removexattr": trace.KindSetxattr, "lremovexattr": trace.KindSetxattr, "fremovexattr": trace.KindSetxattr, "removexattrat": trace.KindSetxattr,
	"connect": trace.KindConnect, "bind": trace.KindBind, "sendto": trace.KindSend, "sendmsg": trace.KindSend, "sendmmsg": trace.KindSend,
	"socket": trace.KindSocket, "socketpair": trace.KindSocket, "kill": trace.KindSignal, "tkill": trace.KindSignal, "tgkill": trace.KindSignal,
	"pidfd_send_signal": trace.KindSignal, "rt_sigqueueinfo": trace.KindSignal, "rt_tgsigqueueinfo": trace.KindSignal,
	"execve": trace.KindExecFail, "execveat": trace.KindExecFail,
}

// flagsAt and modeAt are the arguments, counted from 1, that hold flags and
// permission bits. The sensor has put those of openat2 where openat has them.
var flagsAt = map[string]int{
	"open": 2, "openat": 3, "openat2": 3, "memfd_create": 2, "unlinkat": 3, "renameat2": 5, "linkat": 5,
	"fchmodat2": 4, "fchownat": 5, "setxattrat": 3, "removexattrat": 3,
}

var modeAt = map[string]int{
	"open": 3, "openat": 4, "openat2": 4, "creat": 2, "mknod": 2, "mknodat": 3, "mkdir": 2, "mkdirat": 3,
	"chmod": 2, "fchmod": 2, "fchmodat": 3, "fchmodat2": 3,
}

// numbers fills in what the registers of a call say.
func (r *recorder) numbers(info callInfo, nr int, args *[6]uint64, resolve uint64) {
	e := &r.ev
	e.Syscall, e.SyscallNr, e.Resolve = info.name, int32(nr), resolve
	if info.flags > 0 {
		e.Flags = args[info.flags-1]
	}
	if info.name == "creat" {
		e.Flags = unix.O_CREAT | unix.O_WRONLY | unix.O_TRUNC
	}
	if info.mode > 0 && (info.kind != trace.KindOpen || creates(e.Flags)) {
		e.Mode = uint32(args[info.mode-1]) & 0o7777
	}
	if info.kind == trace.KindOpen || info.name == "creat" {
		e.Access = trace.AccessOf(e.Flags)
	}
}

// creates reports whether an open with these flags may make a file.
func creates(flags uint64) bool {
	return flags&unix.O_CREAT != 0 || flags&unix.O_TMPFILE == unix.O_TMPFILE
}

// call fills in a system call that failed, or one that changed something.
func (r *recorder) call(b *bpf.Event, kind trace.Kind) {
	e, c := &r.ev, &b.Call
	e.Kind = kind
	r.numbers(callOf(b.NR), b.NR, &c.Args, c.Resolve)
	if b.Ret < 0 {
		e.Errno = int32(-b.Ret)
	}
	if kind == trace.KindOpen && creates(e.Flags) {
		e.Kind = trace.KindCreate
	}
	r.text = r.text[:0]
	cut := b.Flags&bpf.Truncated != 0
	e.Path, e.PathGiven, e.PathLen = r.from(&c.Dir, c.Path, cut)
	switch {
	case len(c.Path) > 0:
		e.PathSource = trace.PathUser
	case len(c.Dir.Text) > 0:
		e.PathSource, e.Deleted = trace.PathFDExit, c.Dir.Deleted
		e.Memfd = isMemfd(&c.Dir)
	case b.Flags&bpf.Unreadable != 0:
		e.PathSource = trace.PathUnreadable
	}
	if kind == trace.KindSetxattr {
		e.Name = c.Path2
	} else {
		e.To, e.ToGiven, e.ToLen = r.from(&c.Dir2, c.Path2, cut)
	}
	e.DevMajor, e.DevMinor, e.Ino = unix.Major(c.Dev), unix.Minor(c.Dev), c.Inode
	if len(c.Addr) > 0 {
		r.sockaddr(c.Addr)
	}
	if kind == trace.KindChown {
		e.NewUID, e.NewGID = owners(e.Syscall, &c.Args)
	}
	r.resolve(b)
}

// owners are the arguments of chown(2) and its like; -1 leaves an id as it is.
func owners(call string, args *[6]uint64) (uid, gid int64) {
	first := 1
	if call == "fchownat" {
		first = 2
	}
	id := func(n uint64) int64 {
		if uint32(n) == ^uint32(0) {
			return -1
		}
		return int64(uint32(n))
	}
	return id(args[first]), id(args[first+1])
}

// from puts a path that the caller gave behind the directory that it begins
// from. What it gave is kept too, when that is not the same. The sensor does not
// know how much longer a path is that it had to cut.
func (r *recorder) from(dir *bpf.Path, given []byte, cut bool) (path, as []byte, full uint32) {
	switch {
	case len(given) == 0:
		return dir.Text, nil, cutLen(dir)
	case given[0] == '/' || !dir.Rooted:
		path = given
	default:
		start := len(r.text)
		r.text = append(r.text, dir.Text...)
		if dir.Text[len(dir.Text)-1] != '/' {
			r.text = append(r.text, '/')
		}
		r.text = append(r.text, given...)
		path, as = r.text[start:len(r.text):len(r.text)], given
	}
	switch {
	case cut && len(given) >= unix.PathMax:
		full = uint32(len(path)) + 1
	case as != nil && cutLen(dir) > 0:
		full = dir.Full + 1 + uint32(len(given))
	}
	return path, as, full
}

// cutLen is the whole length of a path that is not here whole, else 0.
func cutLen(p *bpf.Path) uint32 {
	if int(p.Full) > len(p.Text)+1 {
		return p.Full
	}
	return 0
}
