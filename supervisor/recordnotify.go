package supervisor

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// What internal/notify tells becomes what the sensor would have told, as far as it
// goes: then one recorder judges both. What goes no further is said in the record by
// what is absent, and in docs/record.md.

// notified is the callback of notify.Listener.Serve.
func (r *recorder) notified(n *notify.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.asSensor(n)
	if b.Type == bpf.Socket {
		r.begin(b)
		r.ev.Text = remark(n)
		r.address(n)
		r.write(&r.ev)
		return
	}
	r.begin(b)
	r.ev.Text = remark(n)
	if n.Type == notify.Exec && n.Outcome == notify.Unknown {
		r.unsettled(n, b)
		return
	}
	if told := r.fill(b); b.Type == bpf.Exec {
		r.moreExec(&bpf.Event{Type: bpf.ExecEnv, TGID: n.PID, Exec: bpf.ExecInfo{Env: envz(n.Env)}})
		r.flushExec(n.PID) // all of it has come
		return
	} else if !told {
		return
	}
	r.ev.Count = n.Count
	if n.Type == notify.Refused && r.ev.Kind == trace.KindSocket {
		r.ev.Family = familyName(int(uint32(n.Args[0])))
	}
	if n.Type == notify.Exit && !n.StatusKnown {
		r.ev.ExitCode = trace.ExitUnknown
	}
	r.write(&r.ev)
}

// asSensor is n as an event of the sensor's. It has no number of the kernel's.
func (r *recorder) asSensor(n *notify.Event) *bpf.Event {
	b := &bpf.Event{
		Late: true, Phase: bpf.Command, Time: n.Time, Start: n.Start, TGID: n.PID, TID: n.TID, UID: n.UID, NR: n.NR,
	}
	if n.Launcher {
		b.Phase = bpf.Envelope
	}
	switch n.Type {
	case notify.Exec:
		execAsSensor(n, b)
	case notify.Exit:
		b.Type = bpf.Exit
		b.Exit = bpf.ExitInfo{Status: n.Status, Utime: n.User, Stime: n.System, PPID: n.PPID, ParentTime: n.ParentStart}
	case notify.Fork:
		b.Type = bpf.Fork
		b.Fork = bpf.ForkInfo{TGID: n.Child.PID, TID: n.Child.PID, NSPID: n.Child.NSPID, Start: n.Child.Start}
	case notify.Refused:
		b.Type = bpf.Deny
		callAsSensor(n, b)
	default:
		b.Type = bpf.Socket
	}
	return b
}

func execAsSensor(n *notify.Event, b *bpf.Event) {
	if n.Outcome != notify.Done {
		b.Type = bpf.ExecFail
		callAsSensor(n, b)
		return
	}
	b.Type = bpf.Exec
	args := joinz(n.Argv)
	b.Exec = bpf.ExecInfo{
		File: n.Path, Image: imageAsSensor(&n.Image), Args: args, ArgsLen: uint32(len(args)), Argc: n.Argc,
		Dev: n.Image.Dev, Inode: n.Image.Inode, Ctime: n.Image.Ctime, PPID: n.PPID, ParentTime: n.ParentStart, NSPID: n.NSPID,
	}
	if n.ArgvCut {
		b.Exec.ArgsLen++ // one more than what is there: how much more is not known
	}
	b.Exec.EnvLen = uint32(len(envz(n.Env)))
	if n.EnvCut {
		b.Exec.EnvLen++
	}
}

// imageAsSensor: /proc gives the name of a memfd a slash, and the kernel's own name
// for what lies in no directory has none.
func imageAsSensor(i *notify.Image) bpf.Path {
	p := bpf.Path{Text: i.Path, Rooted: true, Deleted: i.Deleted}
	if i.Deleted && bytes.HasPrefix(i.Path, []byte("/memfd:")) {
		p.Text, p.Rooted = i.Path[1:], false
	}
	return p
}

func callAsSensor(n *notify.Event, b *bpf.Event) {
	b.Ret = -int64(n.Errno)
	b.Call = bpf.CallInfo{Args: n.Args, Path: n.Path, Dir: bpf.Path{Text: n.Dir, Rooted: len(n.Dir) > 0, Deleted: n.DirDeleted}}
	if n.Unreadable {
		b.Flags |= bpf.Unreadable
	}
	if n.Cut {
		b.Flags |= bpf.Truncated
	}
}

// unsettled is an execve of which nothing more was seen: what it was given is all
// that is known, and it may have failed.
func (r *recorder) unsettled(n *notify.Event, b *bpf.Event) {
	r.call(b, trace.KindExec)
	e := &r.ev
	e.Proc.PPid, e.Proc.PStart, e.Proc.NSPid = n.PPID, n.ParentStart, n.NSPID
	e.Argv, e.Argc = n.Argv, n.Argc
	if n.ArgvCut {
		e.ArgvLen = uint64(len(joinz(n.Argv))) + 1
	}
	e.Env = n.Env
	if n.EnvCut {
		e.EnvLen = uint64(len(envz(n.Env))) + 1
	}
	if n.Hidden && n.Image.Inode != 0 {
		image := imageAsSensor(&n.Image)
		r.kernelPath(&image, 0, n.Image.Inode)
		e.PathSource = trace.PathKernel
		e.DevMajor, e.DevMinor, e.Ino, e.Ctime = unix.Major(n.Image.Dev), unix.Minor(n.Image.Dev), n.Image.Inode, n.Image.Ctime
	}
	r.write(e)
}

// remark says what is not known of a call, and why.
func remark(n *notify.Event) string {
	var out []string
	if n.Type == notify.Exec && n.Outcome == notify.Unknown {
		out = append(out, "whether it succeeded was not seen")
	}
	if n.Hidden {
		out = append(out, "the caller's memory could not be read: "+hides)
	}
	if n.ArgvLater {
		out = append(out, "program and arguments are those that the process had afterwards")
	}
	return strings.Join(out, "; ")
}

// address fills in what connect, bind or sendto was asked for. Whether it succeeded
// is not known; where the run has no way out of its namespace, other addresses than
// loopback's lead nowhere.
func (r *recorder) address(n *notify.Event) {
	e := &r.ev
	info := callOf(n.NR)
	e.Kind, e.Syscall, e.SyscallNr, e.Count = info.kind, info.name, int32(n.NR), n.Count
	r.sockaddr(n.Addr)
	if n.Unreadable {
		e.PathSource = trace.PathUnreadable
		return
	}
	e.Name = r.names[e.Addr.Unmap()]
	r.lookedUp()
	if r.plan.Egress != nil || e.Kind == trace.KindBind || !e.Addr.IsValid() || e.Addr.Unmap().IsLoopback() || e.Addr.IsUnspecified() {
		return
	}
	e.Verdict, e.Layer, e.Certainty, e.Errno = trace.VerdictDeny, trace.LayerNetwork, trace.Inferred, int32(unix.ENETUNREACH)
	e.Rule, e.RuleSource, e.Remedy = "network.egress", "default", trace.Remedy(e)
}

// joinz puts strings one after the other, each with a zero byte behind it.
func joinz(list [][]byte) []byte {
	var b []byte
	for _, s := range list {
		b = append(append(b, s...), 0)
	}
	return b
}

// envz are names of an environment as the variables without their values.
func envz(names [][]byte) []byte {
	var b []byte
	for _, s := range names {
		b = append(append(b, s...), '=', 0)
	}
	return b
}

// refusedPaths are the refused calls that name a file, by number: the argument, and
// that of the directory that it begins from.
func refusedPaths() map[int]notify.PathArg {
	at := notify.PathArg{Path: 1, Dir: 0}
	plain, second := notify.PathArg{Path: 0, Dir: -1}, notify.PathArg{Path: 1, Dir: -1}
	byName := map[string]notify.PathArg{
		"open": plain, "creat": plain, "chmod": plain, "mkdir": plain, "mknod": plain, "chroot": plain, "umount2": plain, "swapon": plain, "mount": second,
		"chown": plain, "lchown": plain, "utime": plain, "utimes": plain, "setxattr": plain, "lsetxattr": plain, "removexattr": plain, "lremovexattr": plain,
		"fchownat": at, "utimensat": at, "futimesat": at, "setxattrat": at, "removexattrat": at, "file_setattr": at,
		"openat": at, "fchmodat": at, "fchmodat2": at, "mkdirat": at, "mknodat": at, "execveat": at,
	}
	byNumber := map[int]notify.PathArg{}
	for nr := range len(seenCalls) {
		if arg, ok := byName[seccomp.Name(nr)]; ok {
			byNumber[nr] = arg
		}
	}
	return byNumber
}
