package supervisor

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/trace"
)

// recorder turns what the sensor saw into the record's events, and decides who
// refused what. The sensor and the network process tell it things at once.
type recorder struct {
	mu       sync.Mutex            // of all that follows
	names    map[netip.Addr][]byte // of synthetic addresses
	plan     *Plan
	changes  bool // trace.files: changes
	w        *trace.Writer
	ev       trace.Event // reused
	text     []byte      // reused: paths that r.ev points to
	key      []byte      // reused: of repeats
	execs    execs
	searches searches
	unnamed  unnamed
	unfound  unfound
	repeats  repeats
	objects  objects
	denied   denials
	lookups  uint64              // of names, in a run without a resolver
	shown    map[string]struct{} // directories of the view, each with its slash
	readErr  error               // of the sensor's ring
	blind    atomic.Bool         // the ring is read no more: what happens from now on is lost
	lost     uint64              // numbers of the kernel's that are missing, as far as they are in the record
	code     *codeRecord         // nil: nothing is hashed

	// hooked holds, by thread, what a cgroup program has just
	// refused: the EPERM of the same call, seen at its end, is not a second denial.
	hooked map[uint32]hooked
}

// hooked is an act that a cgroup program refused.
type hooked struct {
	kind trace.Kind
	to   netip.AddrPort // invalid where the act has none
	unix bool           // its address is a path
}

// ends reports whether a call that ended with EPERM can be that of the act: a sendmmsg of which only a later
// message was refused ends with success, and leaves what was refused for the thread's next call.
func (h hooked) ends(kind trace.Kind, e *trace.Event) bool {
	switch {
	case h.kind != kind:
		return false
	case e.Family == "": // none was given, or it could not be read
		return true
	case h.unix || e.Family == "unix":
		return h.unix && e.Family == "unix"
	}
	return !h.to.IsValid() || !e.Addr.IsValid() || netip.AddrPortFrom(e.Addr.Unmap(), e.Port) == h.to
}

// event is the callback of bpf.Run.Read.
func (r *recorder) event(b *bpf.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch b.Type {
	case bpf.ExecArgs, bpf.ExecEnv:
		r.fold(b)
		r.moreExec(b)
		return nil
	case bpf.Lost:
		r.lose(&b.Lost)
		return nil
	case bpf.Object:
		r.fold(b)
		r.objects.keep(b)
		return nil
	}
	r.begin(b)
	if r.fill(b) {
		r.write(&r.ev)
	}
	return nil
}

// begin makes r.ev an event of b's process, and ends what waited for the next one.
func (r *recorder) begin(b *bpf.Event) {
	r.flushExec(b.TGID)
	r.settleSearch(b)
	if len(r.unnamed) > 0 && b.Time > nameTimeout {
		r.dropUnnamed(b.Time - nameTimeout)
	}
	e := &r.ev
	*e = trace.Event{
		Mono: b.Time, Phase: trace.PhaseCommand,
		Proc: trace.Proc{Pid: b.TGID, Tid: b.TID, UID: b.UID, Start: b.Start},
	}
	r.number(e, b)
	if b.Phase == bpf.Envelope {
		e.Phase = trace.PhaseEnvelope
	}
	e.Filtered = b.Flags&bpf.Filtered != 0
}

// fill makes r.ev of b; false if that is no record now.
func (r *recorder) fill(b *bpf.Event) bool {
	e := &r.ev
	switch b.Type {
	case bpf.Exec:
		r.repeats.leave(b.TGID, r.writeRepeat)
		r.unfound.leave(b.TGID, string(b.Exec.File))
		r.startExec(b)
		return false
	case bpf.Fork:
		e.Kind = trace.KindFork
		e.Child = trace.Proc{Pid: b.Fork.TGID, Tid: b.Fork.TID, NSPid: b.Fork.NSPID, Start: b.Fork.Start}
	case bpf.Exit:
		r.repeats.end(b.TGID, b.Start, r.writeRepeat)
		r.exit(b)
	case bpf.ExecFail:
		r.call(b, trace.KindExecFail)
		if b.Ret == 0 { // it failed, and nothing says why
			return true
		}
		if errno := unix.Errno(-b.Ret); errno == unix.EACCES || errno == unix.EPERM {
			r.judge(b)
			return true
		}
		r.unfound.tried(e)
		r.judgeMissing()
		return !r.searches.hold(e)
	case bpf.Deny:
		return r.deny(b)
	case bpf.Call:
		return r.change(b)
	case bpf.File, bpf.FD, bpf.Receive:
		r.file(b)
	case bpf.Repeat:
		r.repeat(b)
	default:
		r.socket(b)
		r.lookedUp()
		return r.plan.Egress == nil || !r.unnamed.awaits(&r.ev)
	}
	return true
}

// lookedUp counts what is sent or connected to a name server where the run has
// none: libraries ask the loopback address then, where nobody answers, and the
// command's own words about it seldom say why.
func (r *recorder) lookedUp() {
	e := &r.ev
	if r.plan.Egress == nil && e.Port == 53 && e.Addr.Unmap().IsLoopback() && (e.Kind == trace.KindConnect || e.Kind == trace.KindSend) {
		r.lookups += e.Times()
	}
}

// deny makes a denial of a call that ended so, unless a cgroup program has told it.
func (r *recorder) deny(b *bpf.Event) bool {
	kind := callOf(b.NR).kind
	r.call(b, kind)
	if have, ok := r.hooked[b.TID]; ok && b.Ret == -int64(unix.EPERM) {
		delete(r.hooked, b.TID)
		if have.ends(kind, &r.ev) {
			r.fold(b)
			return false
		}
	}
	r.judge(b)
	return true
}

func (r *recorder) write(e *trace.Event) {
	r.code.see(e)
	if e.Denied() {
		r.denied.add(e)
	}
	_ = r.w.Append(e) // sticks: the writer counts what it cannot keep, and Close reports it
}

// appendOwn writes an event of the supervisor's own.
func (r *recorder) appendOwn(e *trace.Event) {
	_ = r.w.Append(e) // sticks: the writer counts what it cannot keep, and Close reports it
}

func (r *recorder) exit(b *bpf.Event) {
	e := &r.ev
	e.Kind = trace.KindExit
	r.unfound.leave(b.TGID, "")
	if b.Exit.Status.Signaled() {
		e.Signal, e.Core = int32(b.Exit.Status.Signal()), b.Exit.Status.CoreDump()
	} else {
		e.ExitCode = int32(b.Exit.Status.ExitStatus())
	}
	e.UTime, e.STime, e.MaxRSS = b.Exit.Utime, b.Exit.Stime, b.Exit.MaxRSS
	e.Proc.PPid, e.Proc.PStart = b.Exit.PPID, b.Exit.ParentTime
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
		bpf.HookBind: trace.KindBind, bpf.HookSocket: trace.KindSocket, bpf.HookEgress: trace.KindSend, bpf.HookIngress: trace.KindListen,
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
		if s.Hook == bpf.HookBind || s.Hook == bpf.HookIngress {
			e.Rule = "network.listen"
		}
		if b.Type == bpf.Unix {
			e.Rule = "network.unix"
		}
		if s.Hook != bpf.HookEgress && s.Hook != bpf.HookIngress { // packets are nobody's call
			if r.hooked == nil {
				r.hooked = map[uint32]hooked{}
			}
			h := hooked{kind: e.Kind, unix: b.Type == bpf.Unix}
			if !h.unix && s.Addr.IsValid() {
				h.to = netip.AddrPortFrom(s.Addr.Unmap(), s.Port)
			}
			r.hooked[b.TID] = h
		}
	}
}
