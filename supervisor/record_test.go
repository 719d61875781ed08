package supervisor

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// recordPlan is the plan that denials are judged by.
func recordPlan() *Plan {
	grants := grantsOf("/srv/ws rw", "/srv/ro ro")
	grants[0].Clause, grants[1].Clause = "filesystem.workspace (default)", "filesystem.read_only_mounts (p.yaml:4:3)"
	view, err := mergeView(smallBase, grants)
	if err != nil {
		panic(err)
	}
	return &Plan{View: view, LandlockABI: 7}
}

// record gives events to a recorder and returns what is in the record after
// them, each event's text being its own.
func record(t *testing.T, plan *Plan, events ...bpf.Event) ([]trace.Event, *recorder) {
	t.Helper()
	var b bytes.Buffer
	r := &recorder{plan: plan, w: trace.NewWriter(&b, trace.Options{})}
	for i := range events {
		must(t, r.event(&events[i]))
	}
	r.flushAll()
	must(t, r.w.Flush())
	return readBack(t, &b), r
}

func readBack(t *testing.T, from io.Reader) []trace.Event {
	t.Helper()
	var out []trace.Event
	for rd := trace.NewReader(from); ; {
		var e trace.Event
		err := rd.Next(&e)
		if err == io.EOF {
			return out
		}
		must(t, err)
		e.Path, e.To = bytes.Clone(e.Path), bytes.Clone(e.To)
		var argv [][]byte
		for _, a := range e.Argv {
			argv = append(argv, bytes.Clone(a))
		}
		e.Argv = argv
		out = append(out, e)
	}
}

// only returns the one event.
func only(t *testing.T, list []trace.Event) trace.Event {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("%d events: %+v", len(list), list)
	}
	return list[0]
}

func execEvent(pid uint32, file, args string, whole int) bpf.Event {
	return bpf.Event{Type: bpf.Exec, Phase: bpf.Command, TGID: pid, TID: pid, UID: 5, Start: 77, Time: 99, Exec: bpf.ExecInfo{
		File: []byte(file), Image: bpf.Path{Text: []byte(file), Rooted: true}, Args: []byte(args), ArgsLen: uint32(whole), Argc: 3, Dev: unix.Mkdev(8, 1), Inode: 12, PPID: 6, NSPID: 2,
	}}
}

func moreArgs(pid, offset uint32, args string) bpf.Event {
	return bpf.Event{Type: bpf.ExecArgs, Phase: bpf.Command, TGID: pid, TID: pid, Exec: bpf.ExecInfo{Args: []byte(args), Offset: offset}}
}

func TestRecordExec(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name   string
		events []bpf.Event
		argv   []string
		cut    uint64 // ArgvLen
	}{
		{"one part", []bpf.Event{execEvent(1, "/bin/a", "a\x00b c\x00\x00", 7)}, []string{"a", "b c", ""}, 0},
		{"no arguments", []bpf.Event{execEvent(1, "/bin/a", "", 0)}, nil, 0},
		{"not text", []bpf.Event{execEvent(1, "/bin/a", "\xff\xfe\x00\x1b[2J\n\x00", 9)}, []string{"\xff\xfe", "\x1b[2J\n"}, 0},
		{"the last one is not ended", []bpf.Event{execEvent(1, "/bin/a", "a\x00bc", 4)}, []string{"a", "bc"}, 0},
		{"two parts, cut in an argument", []bpf.Event{execEvent(1, "/bin/a", "a\x00b", 6), moreArgs(1, 3, "cd\x00")}, []string{"a", "bcd"}, 0},
		{"many parts", []bpf.Event{execEvent(1, "/bin/a", long, 15003), moreArgs(1, 5000, long+"\x00"), moreArgs(1, 10001, long+"\x00\x00")}, []string{long + long, long, ""}, 0},
		{"a part is lost", []bpf.Event{execEvent(1, "/bin/a", "a\x00b\x00", 400)}, []string{"a", "b"}, 400},
		{"a part in the middle is lost", []bpf.Event{execEvent(1, "/bin/a", "a\x00", 9), moreArgs(1, 6, "zz\x00")}, []string{"a"}, 9},
		{"a part of another process", []bpf.Event{execEvent(1, "/bin/a", "a\x00", 4), moreArgs(2, 2, "z\x00")}, []string{"a"}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, _ := record(t, recordPlan(), c.events...)
			e := only(t, list)
			var got []string
			for _, a := range e.Argv {
				got = append(got, string(a))
			}
			if !slices.Equal(got, c.argv) || e.ArgvLen != c.cut {
				t.Errorf("argv %q, cut from %d, want %q, %d", got, e.ArgvLen, c.argv, c.cut)
			}
			if e.Kind != trace.KindExec || string(e.Path) != "/bin/a" || e.PathSource != trace.PathKernel || e.DevMajor != 8 || e.DevMinor != 1 || e.Ino != 12 {
				t.Errorf("%+v", e)
			}
			if e.Proc.Pid != 1 || e.Proc.PPid != 6 || e.Proc.NSPid != 2 || e.Proc.UID != 5 || e.Proc.Start != 77 || e.Mono != 99 {
				t.Errorf("process %+v at %d", e.Proc, e.Mono)
			}
		})
	}
}

// Two execs do not take each other's arguments, and come in their order.
func TestRecordExecThenOthers(t *testing.T) {
	fork := bpf.Event{Type: bpf.Fork, Phase: bpf.Command, TGID: 2, TID: 3, Fork: bpf.ForkInfo{TGID: 9, TID: 10, NSPID: 4, Start: 55}}
	list, r := record(t, recordPlan(), moreArgs(1, 0, "stray\x00"), execEvent(1, "/a", "a\x00", 2), execEvent(2, "/b", "b\x00", 4), moreArgs(2, 2, "c\x00"), fork)
	if len(list) != 3 || string(list[0].Argv[0]) != "a" || len(list[1].Argv) != 2 || string(list[1].Argv[1]) != "c" {
		t.Fatalf("%+v", list)
	}
	if f := list[2]; f.Kind != trace.KindFork || f.Child.Pid != 9 || f.Child.Tid != 10 || f.Child.NSPid != 4 || f.Child.Start != 55 || f.Proc.Pid != 2 || f.Proc.Tid != 3 {
		t.Errorf("%+v", f)
	}
	if r.denied.total != 0 {
		t.Errorf("%d denials", r.denied.total)
	}
}

func TestRecordExit(t *testing.T) {
	for _, c := range []struct {
		status unix.WaitStatus
		want   trace.Event
	}{
		{0, trace.Event{}},
		{42 << 8, trace.Event{ExitCode: 42}},
		{255 << 8, trace.Event{ExitCode: 255}},
		{9, trace.Event{Signal: 9}},
		{11 | 0x80, trace.Event{Signal: 11, Core: true}},
	} {
		list, _ := record(t, recordPlan(), bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: 1, TID: 1, Exit: bpf.ExitInfo{Status: c.status, Utime: 3, Stime: 4, MaxRSS: 5 << 20}})
		e := only(t, list)
		if e.Kind != trace.KindExit || e.ExitCode != c.want.ExitCode || e.Signal != c.want.Signal || e.Core != c.want.Core {
			t.Errorf("status %#x: %+v", c.status, e)
		}
		if e.UTime != 3 || e.STime != 4 || e.MaxRSS != 5<<20 {
			t.Errorf("usage %+v", e)
		}
	}
}

func denied(nr int, errno unix.Errno) bpf.Event {
	return bpf.Event{Type: bpf.Deny, Phase: bpf.Command, TGID: 1, TID: 1, NR: nr, Ret: -int64(errno)}
}

// withAddr is a refused call whose memory held a socket address.
func withAddr(nr int, errno unix.Errno, addr []byte) bpf.Event {
	e := denied(nr, errno)
	e.Call.Addr = addr
	return e
}

func TestRecordSockaddr(t *testing.T) {
	v4 := []byte{unix.AF_INET, 0, 0x01, 0xbb, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0}
	v6 := append([]byte{unix.AF_INET6, 0, 0, 53, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8::7").AsSlice()...)
	un := func(s string) []byte { return append([]byte{unix.AF_UNIX, 0}, s...) }
	for _, c := range []struct {
		name   string
		raw    []byte
		family string
		addr   string
		port   uint16
		path   string
	}{
		{"inet", v4, "inet", "192.0.2.7", 443, ""},
		{"inet, shortest", v4[:8], "inet", "192.0.2.7", 443, ""},
		{"inet, cut", v4[:7], "inet", "", 0, ""},
		{"inet6", v6, "inet6", "2001:db8::7", 53, ""},
		{"inet6, cut", v6[:23], "inet6", "", 0, ""},
		{"pathname", un("/run/x.sock\x00garbage"), "unix", "", 0, "/run/x.sock"},
		{"pathname without an end", un(strings.Repeat("p", 108)), "unix", "", 0, strings.Repeat("p", 108)},
		{"abstract", un("\x00name\x00more"), "unix", "", 0, "\x00name\x00more"},
		{"unnamed", un(""), "unix", "", 0, ""},
		{"hostile name", un("/\x1b[2J\n\xff\x00"), "unix", "", 0, "/\x1b[2J\n\xff"},
		{"family alone", []byte{unix.AF_NETLINK, 0}, "netlink", "", 0, ""},
		{"family of 16 bits", []byte{0x34, 0x12, 1, 2}, "family-4660", "", 0, ""},
		{"one byte", []byte{unix.AF_INET}, "", "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, _ := record(t, recordPlan(), withAddr(unix.SYS_CONNECT, unix.EACCES, c.raw))
			e := only(t, list)
			addr := ""
			if e.Addr.IsValid() {
				addr = e.Addr.String()
			}
			if e.Family != c.family || addr != c.addr || e.Port != c.port || string(e.Path) != c.path {
				t.Errorf("%s %s %d %q, want %+v", e.Family, addr, e.Port, e.Path, c)
			}
			if len(e.Path) > 0 && e.PathSource != trace.PathUser {
				t.Errorf("a name from user memory has source %q", e.PathSource)
			}
		})
	}
}

// No address, of whatever length, and no event stops the recorder.
func TestRecordHostileEvents(t *testing.T) {
	seed := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, seed.IntN(n+1))
		for i := range b {
			b[i] = byte(seed.Uint32())
		}
		return b
	}
	var b bytes.Buffer
	r := &recorder{plan: recordPlan(), w: trace.NewWriter(&b, trace.Options{})}
	const n = 20000
	for range n {
		e := bpf.Event{
			Type: bpf.Type(seed.IntN(int(bpf.Unix)) + 1), Phase: bpf.Phase(seed.IntN(2)), Flags: bpf.Flags(seed.IntN(16)),
			TGID: uint32(seed.IntN(5)), TID: uint32(seed.IntN(5)), NR: seed.IntN(480) - 2, Ret: -int64(seed.IntN(140)),
		}
		e.Call.Path, e.Call.Path2, e.Call.Addr = random(40), random(10), random(130)
		for i := range e.Call.Args {
			e.Call.Args[i] = seed.Uint64() >> seed.IntN(64)
		}
		if seed.IntN(2) == 0 && len(e.Call.Addr) > 1 {
			e.Call.Addr[0], e.Call.Addr[1] = []byte{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}[seed.IntN(3)], 0
		}
		e.Exec.File, e.Exec.Args, e.Exec.ArgsLen = random(20), random(60), uint32(seed.IntN(100))
		e.Socket = bpf.SocketInfo{Hook: bpf.Hook(seed.IntN(6)), Allowed: seed.IntN(2) == 0, Family: uint16(seed.Uint32()), Protocol: uint16(seed.IntN(300)), Text: random(110)}
		must(t, r.event(&e))
	}
	r.flushAll()
	must(t, r.w.Close(&trace.Event{}))
	if bytes.ContainsFunc(b.Bytes(), func(c rune) bool { return c < 0x20 && c != '\n' }) {
		t.Error("a control character is in the record")
	}
	rd := trace.NewReader(&b)
	var e trace.Event
	for {
		if err := rd.Next(&e); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if len(r.denied.first) > maxDenials || r.denied.total == 0 || r.denied.total > n {
		t.Errorf("%d denials, %d shown", r.denied.total, len(r.denied.first))
	}
}

func socketEvent(hook bpf.Hook, allowed bool) bpf.Event {
	return bpf.Event{Type: bpf.Socket, Phase: bpf.Command, TGID: 1, TID: 1, NR: -1, Socket: bpf.SocketInfo{
		Hook: hook, Allowed: allowed, Family: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Port: 443, Addr: netip.MustParseAddr("192.0.2.1"),
	}}
}

func TestRecordSocket(t *testing.T) {
	for hook, kind := range map[bpf.Hook]trace.Kind{
		bpf.HookConnect: trace.KindConnect, bpf.HookSendmsg: trace.KindSend, bpf.HookBind: trace.KindBind, bpf.HookSocket: trace.KindSocket, bpf.HookEgress: trace.KindSend,
		bpf.HookIngress: trace.KindListen,
	} {
		for _, allowed := range []bool{true, false} {
			list, r := record(t, recordPlan(), socketEvent(hook, allowed))
			e := only(t, list)
			if e.Kind != kind || e.Family != "inet" || e.Proto != "tcp" || e.Port != 443 || e.Addr.String() != "192.0.2.1" {
				t.Errorf("hook %d: %+v", hook, e)
			}
			rule := map[bool]string{true: "network.listen", false: "network.egress"}[hook == bpf.HookBind || hook == bpf.HookIngress]
			if allowed && (e.Verdict != trace.VerdictAllow || e.Layer != "" || e.Rule != "" || r.denied.total != 0) {
				t.Errorf("hook %d, allowed: %+v", hook, e)
			}
			if !allowed && (e.Verdict != trace.VerdictDeny || e.Layer != trace.LayerBPF || e.Certainty != trace.Certain || e.Rule != rule || e.Errno != int32(unix.EPERM) || r.denied.total != 1) {
				t.Errorf("hook %d, refused: %+v, %d denials", hook, e, r.denied.total)
			}
		}
	}
	listen := bpf.Event{Type: bpf.Listen, Phase: bpf.Command, TGID: 1, TID: 1, Socket: bpf.SocketInfo{Family: unix.AF_INET6, Protocol: unix.IPPROTO_TCP, Port: 80}}
	list, _ := record(t, recordPlan(), listen)
	if e := only(t, list); e.Kind != trace.KindListen || e.Verdict != trace.VerdictAllow || e.Family != "inet6" {
		t.Errorf("%+v", e)
	}
	un := bpf.Event{Type: bpf.Unix, Phase: bpf.Command, TGID: 1, TID: 1, Socket: bpf.SocketInfo{Hook: bpf.HookConnect, Allowed: true, Family: unix.AF_UNIX, Text: []byte("/run/x\x00junk")}}
	list, _ = record(t, recordPlan(), un)
	if e := only(t, list); e.Kind != trace.KindConnect || string(e.Path) != "/run/x" || e.PathSource != trace.PathKernel || e.Family != "unix" {
		t.Errorf("%+v", e)
	}
}

// A refusal that a cgroup program reported is not counted again when the call
// ends with its EPERM; every other one is.
func TestRecordHookAndExitAreOneDenial(t *testing.T) {
	v4 := []byte{unix.AF_INET, 0, 0x01, 0xbb, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	connect := withAddr(unix.SYS_CONNECT, unix.EPERM, v4)
	other := connect
	other.TID = 2
	access := withAddr(unix.SYS_CONNECT, unix.EACCES, v4)
	for _, c := range []struct {
		name   string
		events []bpf.Event
		want   uint64
	}{
		{"hook and exit", []bpf.Event{socketEvent(bpf.HookConnect, false), connect}, 1},
		{"twice", []bpf.Event{socketEvent(bpf.HookConnect, false), connect, socketEvent(bpf.HookConnect, false), connect}, 2},
		{"exit alone", []bpf.Event{connect}, 1},
		{"a second call without a hook", []bpf.Event{socketEvent(bpf.HookConnect, false), connect, connect}, 2},
		{"another thread", []bpf.Event{socketEvent(bpf.HookConnect, false), other, connect}, 2},
		{"another error", []bpf.Event{socketEvent(bpf.HookConnect, false), access}, 2},
		{"another kind", []bpf.Event{socketEvent(bpf.HookConnect, false), denied(unix.SYS_MOUNT, unix.EPERM)}, 2},
		{"an allowed hook", []bpf.Event{socketEvent(bpf.HookConnect, true), connect}, 1},
		{"sendto", []bpf.Event{socketEvent(bpf.HookSendmsg, false), withAddr(unix.SYS_SENDTO, unix.EPERM, v4)}, 1},
		{"a call to elsewhere, after one message of many", []bpf.Event{socketEvent(bpf.HookSendmsg, false), withAddr(unix.SYS_SENDTO, unix.EPERM, []byte{unix.AF_INET, 0, 0x01, 0xbc, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0})}, 2},
		{"a call to a unix socket, likewise", []bpf.Event{socketEvent(bpf.HookSendmsg, false), withAddr(unix.SYS_SENDTO, unix.EPERM, []byte{unix.AF_UNIX, 0, 0, 'x'})}, 2},
		{"mapped", []bpf.Event{socketEvent(bpf.HookConnect, false), withAddr(unix.SYS_CONNECT, unix.EPERM, append([]byte{unix.AF_INET6, 0, 0x01, 0xbb, 0, 0, 0, 0}, netip.MustParseAddr("::ffff:192.0.2.1").AsSlice()...))}, 1},
		{"an address of no family", []bpf.Event{socketEvent(bpf.HookSendmsg, false), withAddr(unix.SYS_SENDTO, unix.EPERM, append([]byte{0, 0}, v4[2:]...))}, 1},
		{"a packet is nobody's call", []bpf.Event{socketEvent(bpf.HookEgress, false), withAddr(unix.SYS_SENDTO, unix.EPERM, v4)}, 2},
		{"nor is a connection that comes", []bpf.Event{socketEvent(bpf.HookIngress, false), withAddr(unix.SYS_CONNECT, unix.EPERM, v4)}, 2},
		{"socket", []bpf.Event{socketEvent(bpf.HookSocket, false), denied(unix.SYS_SOCKET, unix.EPERM)}, 1},
	} {
		list, r := record(t, recordPlan(), c.events...)
		n := uint64(0)
		for _, e := range list {
			if e.Denied() {
				n++
			}
		}
		if r.denied.total != c.want || n != c.want {
			t.Errorf("%s: %d denials, %d in the record, want %d", c.name, r.denied.total, n, c.want)
		}
	}
}

// What init and the canary were refused is recorded, and is not the command's.
func TestRecordEnvelopeIsNotDenied(t *testing.T) {
	e := denied(unix.SYS_MOUNT, unix.EPERM)
	e.Phase = bpf.Envelope
	list, r := record(t, recordPlan(), e)
	if got := only(t, list); got.Phase != trace.PhaseEnvelope || r.denied.total != 0 {
		t.Errorf("%+v, %d denials", got, r.denied.total)
	}
}

func TestDenialsAreBounded(t *testing.T) {
	var d denials
	for i := range 100 {
		path := []byte("/x/" + itoa(i%30))
		d.add(&trace.Event{Kind: trace.KindOpen, Layer: trace.LayerLandlock, Path: path, Count: uint64(1 + i%2)})
		copy(path, "zzz") // the event's memory is reused
	}
	if d.total != 150 || len(d.first) != maxDenials {
		t.Errorf("%d in all, %d shown", d.total, len(d.first))
	}
	if e := d.first[1]; string(e.Path) != "/x/1" || e.Times() != 8 { // 4 times, 2 acts each
		t.Errorf("%q, %d times", e.Path, e.Times())
	}
}

func TestFamilyAndProtocolNames(t *testing.T) {
	for f, want := range map[int]string{unix.AF_UNIX: "unix", unix.AF_PACKET: "packet", unix.AF_VSOCK: "vsock", 65535: "family-65535", 0: "family-0"} {
		if got := familyName(f); got != want {
			t.Errorf("family %d is %q", f, got)
		}
	}
	for p, want := range map[uint16]string{0: "", 6: "tcp", 17: "udp", 1: "icmp", 136: "udplite", 262: "mptcp", 132: "proto-132"} {
		if got := protoName(p); got != want {
			t.Errorf("protocol %d is %q", p, got)
		}
	}
}

// A connection that was let pass and failed is told with its error, and is no denial; what named nobody is not told.
func TestRecordFailedConnect(t *testing.T) {
	base := bpf.Event{Phase: bpf.Command, TGID: 1, TID: 1}
	tried, failed, nobody := base, base, base
	tried.Type, tried.Socket = bpf.Unix, bpf.SocketInfo{Hook: bpf.HookConnect, Allowed: true, Family: unix.AF_UNIX, Text: []byte("/run/x\x00")}
	failed.Type, failed.NR, failed.Ret = bpf.Call, unix.SYS_CONNECT, -int64(unix.ENOENT)
	failed.Call.Addr = []byte("\x01\x00/run/x\x00")
	nobody.Type, nobody.NR, nobody.Ret = bpf.Call, unix.SYS_SENDTO, -int64(unix.EPIPE)
	list, _ := record(t, recordPlan(), tried, failed, failed, nobody)
	if len(list) != 3 || list[0].Verdict != trace.VerdictAllow || list[0].Errno != 0 {
		t.Fatalf("%+v", list)
	}
	for _, e := range list[1:] {
		if e.Kind != trace.KindConnect || string(e.Path) != "/run/x" || e.Errno != int32(unix.ENOENT) || e.Verdict != "" {
			t.Errorf("%+v", e)
		}
	}
}
