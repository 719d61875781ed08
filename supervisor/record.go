package supervisor

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// recorder turns what the sensor saw into the record's events, and decides who
// refused what. The sensor and the network process tell it things at once.
type recorder struct {
	mu      sync.Mutex            // of all that follows
	names   map[netip.Addr][]byte // of synthetic addresses
	plan    *Plan
	w       *trace.Writer
	ev      trace.Event // reused
	argv    [][]byte
	execs   map[uint32]*pendingExec // by process: execs whose arguments come in parts
	denied  denials
	readErr error         // of the sensor's ring
	took    time.Duration // CPU time of the reader
	lost    uint64        // numbers of the kernel's that are missing, as far as they are in the record

	// hooked holds, by thread, the kind of act that a cgroup program has just
	// refused: the EPERM of the same call, seen at its end, is not a second denial.
	hooked map[uint32]trace.Kind
}

// event is the callback of bpf.Run.Read.
func (r *recorder) event(b *bpf.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch b.Type {
	case bpf.ExecArgs:
		r.fold(b)
		r.moreArgs(b)
		return nil
	case bpf.Lost:
		r.lose(&b.Lost)
		return nil
	}
	r.flushExec(b.TGID)
	e := &r.ev
	*e = trace.Event{
		Mono: b.Time, Phase: trace.PhaseCommand,
		Proc: trace.Proc{Pid: b.TGID, Tid: b.TID, UID: b.UID, Start: b.Start},
	}
	r.number(e, b)
	if b.Phase == bpf.Envelope {
		e.Phase = trace.PhaseEnvelope
	}
	switch b.Type {
	case bpf.Exec:
		r.startExec(b)
		return nil
	case bpf.Fork:
		e.Kind = trace.KindFork
		e.Child = trace.Proc{Pid: b.Fork.TGID, Tid: b.Fork.TID, NSPid: b.Fork.NSPID, Start: b.Fork.Start}
	case bpf.Exit:
		r.exit(b)
	case bpf.ExecFail:
		r.call(b, trace.KindExecFail)
	case bpf.Deny:
		kind := denyKind(b.NR)
		if have, ok := r.hooked[b.TID]; ok && b.Ret == -int64(unix.EPERM) {
			delete(r.hooked, b.TID)
			if have == kind {
				r.fold(b)
				return nil
			}
		}
		r.call(b, kind)
		r.judge(b)
	default:
		r.socket(b)
	}
	r.append()
	return nil
}

func (r *recorder) append() { r.write(&r.ev) }

func (r *recorder) write(e *trace.Event) {
	if e.Denied() {
		r.denied.add(e)
	}
	_ = r.w.Append(e) // sticks: the writer counts what it cannot keep, and Close reports it
}

// appendOwn writes an event of the supervisor's own.
func (r *recorder) appendOwn(e *trace.Event) {
	_ = r.w.Append(e) // sticks: the writer counts what it cannot keep, and Close reports it
}

// pendingExec is an exec whose arguments come in parts. Events of other CPUs
// may lie between the parts; they are written first.
type pendingExec struct {
	ev   trace.Event
	args bytes.Buffer
}

// maxPending bounds the execs that wait for arguments; a part that was lost
// would otherwise keep its exec for ever.
const maxPending = 256

func (r *recorder) startExec(b *bpf.Event) {
	e := &r.ev
	e.Kind = trace.KindExec
	e.Proc.PPid, e.Proc.NSPid = b.Exec.PPID, b.Exec.NSPID
	e.Path, e.PathSource = b.Exec.File, trace.PathKernel
	e.DevMajor, e.DevMinor, e.Ino = unix.Major(b.Exec.Dev), unix.Minor(b.Exec.Dev), b.Exec.Inode
	e.Argc, e.ArgvLen = b.Exec.Argc, uint64(b.Exec.ArgsLen)
	if uint64(len(b.Exec.Args)) >= e.ArgvLen || len(r.execs) >= maxPending {
		r.writeExec(e, b.Exec.Args)
		return
	}
	if r.execs == nil {
		r.execs = map[uint32]*pendingExec{}
	}
	p := &pendingExec{ev: *e}
	p.ev.Path = bytes.Clone(e.Path)
	p.args.Write(b.Exec.Args)
	r.execs[b.TGID] = p
}

// moreArgs adds a part to the process's exec, and writes it when it is whole.
func (r *recorder) moreArgs(b *bpf.Event) {
	p := r.execs[b.TGID]
	if p == nil {
		return
	}
	p.args.Write(b.Exec.Args)
	if uint64(p.args.Len()) >= p.ev.ArgvLen {
		r.flushExec(b.TGID)
	}
}

// flushExec writes the exec that a process has pending, if any: before its next
// event, or at the end of the run.
func (r *recorder) flushExec(pid uint32) {
	if p := r.execs[pid]; p != nil {
		delete(r.execs, pid)
		r.writeExec(&p.ev, p.args.Bytes())
	}
}

// flushExecs writes what is pending at the end.
func (r *recorder) flushExecs() {
	for pid := range r.execs {
		r.flushExec(pid)
	}
}

func (r *recorder) writeExec(e *trace.Event, args []byte) {
	whole := uint64(len(args)) >= e.ArgvLen
	r.argv = r.argv[:0]
	for rest := args; len(rest) > 0; {
		arg, tail, ended := bytes.Cut(rest, []byte{0})
		if !ended && whole {
			arg = rest
		}
		r.argv = append(r.argv, arg)
		rest = tail
	}
	e.Argv = r.argv
	if whole {
		e.ArgvLen = 0
	}
	r.write(e)
}

func (r *recorder) exit(b *bpf.Event) {
	e := &r.ev
	e.Kind = trace.KindExit
	if b.Exit.Status.Signaled() {
		e.Signal, e.Core = int32(b.Exit.Status.Signal()), b.Exit.Status.CoreDump()
	} else {
		e.ExitCode = int32(b.Exit.Status.ExitStatus())
	}
	e.UTime, e.STime, e.MaxRSS = b.Exit.Utime, b.Exit.Stime, b.Exit.MaxRSS
}

// call fills in a system call that failed.
func (r *recorder) call(b *bpf.Event, kind trace.Kind) {
	e := &r.ev
	e.Kind, e.Syscall, e.SyscallNr = kind, seccomp.Name(b.NR), int32(b.NR)
	if b.Ret < 0 {
		e.Errno = int32(-b.Ret)
	}
	if len(b.Call.Path) > 0 {
		e.Path, e.PathSource = b.Call.Path, trace.PathUser
		if b.Flags&bpf.Truncated != 0 {
			e.PathLen = uint32(len(b.Call.Path)) + 1 // at least: the sensor does not know the rest
		}
	} else if b.Flags&bpf.Unreadable != 0 {
		e.PathSource = trace.PathUnreadable
	}
	e.To = b.Call.Path2
	if len(b.Call.Addr) > 0 {
		r.sockaddr(b.Call.Addr)
	}
	if kind == trace.KindOpen {
		e.Flags = openFlags(b)
		e.Access = trace.AccessOf(e.Flags)
		if e.Flags&unix.O_CREAT != 0 || e.Flags&unix.O_TMPFILE == unix.O_TMPFILE {
			e.Kind = trace.KindCreate
		}
	}
}

func openFlags(b *bpf.Event) uint64 {
	switch seccomp.Name(b.NR) {
	case "open":
		return b.Call.Args[1]
	case "creat":
		return unix.O_CREAT | unix.O_WRONLY
	case "openat":
		return b.Call.Args[2]
	}
	return 0 // openat2: flags are in memory
}

// sockaddr decodes a raw struct sockaddr from user memory.
func (r *recorder) sockaddr(raw []byte) {
	e := &r.ev
	if len(raw) < 2 {
		return
	}
	switch family := int(raw[0]) | int(raw[1])<<8; {
	case family == unix.AF_INET && len(raw) >= 8:
		e.Family, e.Port = "inet", uint16(raw[2])<<8|uint16(raw[3])
		e.Addr = netip.AddrFrom4([4]byte(raw[4:8]))
	case family == unix.AF_INET6 && len(raw) >= 24:
		e.Family, e.Port = "inet6", uint16(raw[2])<<8|uint16(raw[3])
		e.Addr = netip.AddrFrom16([16]byte(raw[8:24]))
	case family == unix.AF_UNIX:
		e.Family, e.PathSource = "unix", trace.PathUser
		e.Path = sunPath(raw[2:])
	default:
		e.Family = familyName(family)
	}
}

// sunPath cuts a pathname at its NUL; abstract names begin with one and count whole (unix(7)).
func sunPath(text []byte) []byte {
	if len(text) > 0 && text[0] != 0 {
		text, _, _ = bytes.Cut(text, []byte{0})
	}
	return text
}

func familyName(f int) string {
	switch f {
	case unix.AF_UNIX:
		return "unix"
	case unix.AF_INET:
		return "inet"
	case unix.AF_INET6:
		return "inet6"
	case unix.AF_NETLINK:
		return "netlink"
	case unix.AF_PACKET:
		return "packet"
	case unix.AF_VSOCK:
		return "vsock"
	}
	return fmt.Sprintf("family-%d", f)
}

func protoName(p uint16) string {
	switch p {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_MPTCP:
		return "mptcp"
	case unix.IPPROTO_UDPLITE:
		return "udplite"
	case 0:
		return ""
	}
	return fmt.Sprintf("proto-%d", p)
}

// socket fills in what a cgroup program judged: the kernel's own values.
func (r *recorder) socket(b *bpf.Event) {
	e := &r.ev
	s := &b.Socket
	e.Kind = map[bpf.Hook]trace.Kind{
		0: trace.KindListen, bpf.HookConnect: trace.KindConnect, bpf.HookSendmsg: trace.KindSend,
		bpf.HookBind: trace.KindBind, bpf.HookSocket: trace.KindSocket, bpf.HookEgress: trace.KindSend,
	}[s.Hook]
	e.Family, e.Proto, e.Addr, e.Port = familyName(int(s.Family)), protoName(s.Protocol), s.Addr, s.Port
	if b.Type == bpf.Unix {
		e.Path, e.PathSource = sunPath(s.Text), trace.PathKernel
	}
	e.Name = r.names[s.Addr.Unmap()]
	e.Verdict = trace.VerdictAllow
	if !s.Allowed && b.Type != bpf.Listen {
		e.Verdict, e.Layer, e.Certainty, e.Errno = trace.VerdictDeny, trace.LayerBPF, trace.Certain, int32(unix.EPERM)
		e.Rule, e.RuleSource = "network.egress", "default"
		if r.plan.Egress != nil && s.Addr.IsValid() {
			e.Rule, e.RuleSource = "network.allowlist", r.plan.Egress.ClauseSource
		}
		if (s.Hook == bpf.HookConnect || s.Hook == bpf.HookSendmsg || s.Hook == bpf.HookEgress) && (len(e.Name) > 0 || !netguard.Synthetic(s.Addr)) {
			e.Remedy = trace.Remedy(e)
		}
		if s.Hook == bpf.HookBind {
			e.Rule = "network.listen"
		}
		if b.Type == bpf.Unix {
			e.Rule = "network.unix"
		}
		if s.Hook != bpf.HookEgress {
			if r.hooked == nil {
				r.hooked = map[uint32]trace.Kind{}
			}
			r.hooked[b.TID] = e.Kind
		}
	}
}

// pathKinds maps refused system calls to the kind of their act.
var pathKinds = map[string]trace.Kind{
	"open": trace.KindOpen, "openat": trace.KindOpen, "openat2": trace.KindOpen, "creat": trace.KindCreate,
	"mknod": trace.KindCreate, "mknodat": trace.KindCreate,
	"unlink": trace.KindUnlink, "unlinkat": trace.KindUnlink, "rmdir": trace.KindUnlink,
	"rename": trace.KindRename, "renameat": trace.KindRename, "renameat2": trace.KindRename,
	"link": trace.KindLink, "linkat": trace.KindLink, "symlink": trace.KindLink, "symlinkat": trace.KindLink,
	"mkdir": trace.KindMkdir, "mkdirat": trace.KindMkdir, "truncate": trace.KindTruncate, "ftruncate": trace.KindTruncate,
	"chmod": trace.KindChmod, "fchmod": trace.KindChmod, "fchmodat": trace.KindChmod, "fchmodat2": trace.KindChmod,
	"chown": trace.KindChown, "lchown": trace.KindChown, "fchown": trace.KindChown, "fchownat": trace.KindChown,
	"setxattr": trace.KindSetxattr, "lsetxattr": trace.KindSetxattr, "fsetxattr": trace.KindSetxattr,
	"removexattr": trace.KindSetxattr, "lremovexattr": trace.KindSetxattr, "fremovexattr": trace.KindSetxattr,
	"connect": trace.KindConnect, "bind": trace.KindBind, "sendto": trace.KindSend, "sendmsg": trace.KindSend, "sendmmsg": trace.KindSend,
	"socket": trace.KindSocket, "socketpair": trace.KindSocket, "kill": trace.KindSignal, "tkill": trace.KindSignal, "tgkill": trace.KindSignal,
	"pidfd_send_signal": trace.KindSignal, "rt_sigqueueinfo": trace.KindSignal,
	"execve": trace.KindExecFail, "execveat": trace.KindExecFail,
}

func denyKind(nr int) trace.Kind {
	if k, ok := pathKinds[seccomp.Name(nr)]; ok {
		return k
	}
	return trace.KindDeny
}
