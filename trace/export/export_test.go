package export

import (
	"bytes"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

var clock = trace.Options{BootID: "1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809", Mono: 1e12, Wall: time.Unix(1_795_970_000, 0)}

// record writes events as a run.
func record(t testing.TB, events ...*trace.Event) *bytes.Buffer {
	t.Helper()
	b := &bytes.Buffer{}
	w := trace.NewWriter(b, clock)
	for i, e := range events {
		e.Mono = 1e12 + uint64(i)*1e6
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(&trace.Event{Mono: 2e12, Reason: "exit"}); err != nil {
		t.Fatal(err)
	}
	return b
}

func start() *trace.Event {
	return &trace.Event{Kind: trace.KindStart, Run: "20261129-163624-7f3k2q", BootID: clock.BootID, Tool: "0.1.0", Kernel: "6.12.0", Tier: "1"}
}

var (
	shell = trace.Proc{Pid: 100, Tid: 100, PPid: 90, PStart: 5e9, UID: 1000, Start: 1e10}
	kid   = trace.Proc{Pid: 101, Tid: 102, PPid: 100, PStart: 1e10, UID: 1000, Start: 2e10}
)

// story has an event of each sort that is mapped in a way of its own.
func story() []*trace.Event {
	deny := func(e *trace.Event) *trace.Event {
		e.Verdict, e.Layer, e.Rule, e.RuleSource, e.Errno = trace.VerdictDeny, trace.LayerLandlock, "filesystem.read_only_mounts", "p.yaml:1:2", 13
		e.Certainty, e.Remedy = trace.Inferred, "--ro x"
		return e
	}
	addr := netip.MustParseAddr
	list := []*trace.Event{
		start(),
		{Kind: trace.KindExec, Proc: shell, Path: []byte("/bin/sh"), Argv: [][]byte{[]byte("sh"), []byte("a\xffb")}, Argc: 2, SHA256: strings.Repeat("ab", 32)},
		{Kind: trace.KindFork, Proc: shell, Child: kid},
		{Kind: trace.KindFork, Proc: shell, Child: trace.Proc{Pid: 100, Tid: 103, Start: 1e10}},
		{Kind: trace.KindExecFail, Proc: kid, Path: []byte("/x/ls"), Errno: 2},
		{Kind: trace.KindOpen, Proc: kid, Comm: []byte("ls\x1b"), Path: []byte("/a/\xff\n"), Access: "r", Ino: 1 << 63, Mode: 0o600},
		deny(&trace.Event{Kind: trace.KindOpen, Proc: kid, Path: []byte("/etc/x"), Access: "rw"}),
		{Kind: trace.KindRename, Proc: kid, Path: []byte("/a/b"), To: []byte("/a/c")},
		{Kind: trace.KindMmapExec, Proc: kid, Path: []byte("/lib/libc.so"), SHA256: strings.Repeat("cd", 32), HashState: "ok"},
		{Kind: trace.KindConnect, Proc: kid, Family: "inet", Proto: "tcp", Addr: addr("::ffff:192.0.2.1"), Port: 443},
		deny(&trace.Event{Kind: trace.KindConnect, Proc: kid, Family: "inet6", Proto: "tcp", Addr: addr("2001:db8::1"), Port: 0}),
		{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: addr("192.0.2.1"), Port: 443, Name: []byte("a.example"), Bytes: 7, Received: 9, Duration: 5e6, End: "closed"},
		{Kind: trace.KindConnect, Proc: kid, Family: "unix", Path: []byte("\x00abstract")},
		{Kind: trace.KindSend, Proc: kid, Family: "inet", Proto: "udp", Addr: addr("192.0.2.1"), Port: 53, Bytes: 40, Count: 3},
		{Kind: trace.KindListen, Proc: kid, Family: "inet", Proto: "tcp", Addr: addr("127.0.0.1"), Port: 80},
		{Kind: trace.KindDNS, Proc: kid, Name: []byte("example.com."), Addr: addr("192.0.2.53"), Port: 53},
		{Kind: trace.KindDNS, Proc: kid, Name: []byte("not a name\x07")},
		{Kind: trace.KindCall, Name: []byte("model"), Method: "POST", Path: []byte("/v1/messages"), Status: 200, Bytes: 7, Received: 9, Duration: 5e6, Hidden: 1, Credential: "ab12"},
		deny(&trace.Event{Kind: trace.KindDeny, Proc: kid, Syscall: "ptrace", SyscallNr: 101}),
		{Kind: trace.KindSignal, Proc: kid, Target: shell, Signal: 9},
		{Kind: trace.KindExit, Proc: kid, ExitCode: 3, UTime: 5},
		{Kind: trace.KindLimit, Limit: "memory", LimitValue: 1 << 40, LimitHits: 2},
		{Kind: trace.KindLoss, Loss: trace.Loss{Class: "bulk", Cause: "ring", Count: 3, AfterSeq: 4, CPU: -1}},
		{Kind: trace.KindOutput, Stream: "stdout", Bytes: 5, Kept: 5, SHA256: strings.Repeat("ef", 32)},
	}
	for _, e := range list {
		if e.Proc.Pid != 0 {
			e.Phase = trace.PhaseCommand
		}
	}
	return list
}

func TestGolden(t *testing.T) {
	for _, format := range []string{ECS, OCSF} {
		var out bytes.Buffer
		if j, err := Write(&out, record(t, story()...), format, false); err != nil || j != trace.Incomplete {
			t.Fatalf("%s: %s, %v", format, j, err)
		}
		testenv.Golden(t, format+".golden", out.Bytes())
	}
}

// Of a process that has ended, counts may come; of the last few it is still known
// what they ran.
func TestImagesOfEndedProcesses(t *testing.T) {
	var list []*trace.Event
	act := func(kind trace.Kind, pid uint32) {
		e := &trace.Event{Kind: kind, Phase: trace.PhaseCommand, Proc: trace.Proc{Pid: pid, Tid: pid, Start: 5}, Path: []byte("/bin/a")}
		if kind == trace.KindOpen {
			e.Count, e.Access = 3, "r"
		}
		list = append(list, e)
	}
	for pid := uint32(1); pid <= maxEnded+1; pid++ {
		act(trace.KindExec, pid)
		act(trace.KindExit, pid)
		act(trace.KindExit, 1000+pid) // never known: takes no place
	}
	act(trace.KindOpen, 1)
	act(trace.KindOpen, 2)
	var out bytes.Buffer
	if _, err := Write(&out, record(t, append([]*trace.Event{start()}, list...)...), ECS, false); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	for i, want := range []bool{false, true} {
		line := lines[len(lines)-3+i] // the summary is the last one
		if got := bytes.Contains(line, []byte(`"executable":"/bin/a"`)); got != want {
			t.Errorf("count %d: the program is known: %v, want %v: %s", i, got, want, line)
		}
	}
}

// TestValid holds every kind of record, with much and with little in it, denied
// and not, to the published schemas.
func TestValid(t *testing.T) {
	ecs, ocsf := load[ecsSchema](t, "testdata/ecs-9.4.0.json"), load[ocsfSchema](t, "testdata/ocsf-1.2.0.json")
	if ecs.Version != ecsVersion || ocsf.Version != ocsfVersion {
		t.Fatalf("the schemas are %s and %s", ecs.Version, ocsf.Version)
	}
	n := 0
	for _, rec := range [][]*trace.Event{story(), variants(true), variants(false)} {
		b := record(t, rec...).Bytes()
		for format, check := range map[string]func(map[string]any) []string{ECS: ecs.check, OCSF: ocsf.check} {
			var out bytes.Buffer
			if _, err := Write(&out, bytes.NewReader(b), format, true); err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(out.Bytes()) {
				n++
				event, err := object(line)
				if err != nil {
					t.Fatal(err)
				}
				for _, bad := range check(event) {
					t.Errorf("%s: %s in %s", format, bad, line)
				}
				if i := bytes.IndexFunc(bytes.TrimSuffix(line, []byte("\n")), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }); i >= 0 {
					t.Errorf("%s: not safe to print: %q", format, line)
				}
			}
		}
	}
	if n < 6*len(trace.Kinds()) {
		t.Errorf("only %d events", n)
	}
}

// variants has each kind with every field that it may have, and with none; with
// no start before them when bare.
func variants(bare bool) []*trace.Event {
	var out []*trace.Event
	if !bare {
		out = append(out, start())
	}
	for _, k := range trace.Kinds() {
		if k == trace.KindStart || k == trace.KindSummary {
			continue
		}
		full := trace.Event{
			Kind: k, Phase: trace.PhaseCommand, Proc: kid, Child: shell, Target: shell, Comm: []byte("c\x00\xff"), Syscall: "call", SyscallNr: 7,
			Path: []byte("rel/\x1b\xff"), PathSource: trace.PathUser, To: []byte("/to"), Access: "rw", Mode: 0o7777, Flags: 1 << 63, Ino: 1<<64 - 1, DevMajor: 8,
			Name: []byte("a.b"), Argv: [][]byte{nil, []byte("x")}, Env: [][]byte{[]byte("HOME")}, Family: "inet", Proto: "mptcp", Addr: netip.MustParseAddr("fe80::1%e"), Port: 65535,
			Bytes: 1 << 62, Limit: "cpu", LimitValue: 1, Probe: "p", Signal: 40, Stream: "stderr", SHA256: strings.Repeat("0f", 32), Reason: "x", Received: 1 << 62, Duration: 1 << 62, End: "reset",
		}
		denied, none := full, trace.Event{Kind: k}
		denied.Verdict, denied.Errno = trace.VerdictDeny, 4000
		plain := trace.Event{Kind: k, Phase: trace.PhaseEnvelope, Proc: trace.Proc{Pid: 1, Tid: 1}}
		unix := full
		unix.Addr, unix.Family = netip.Addr{}, "unix"
		out = append(out, &full, &denied, &none, &plain, &unix)
	}
	return out
}

func TestOriginalAndJSONL(t *testing.T) {
	b := record(t, story()...).Bytes()
	var out bytes.Buffer
	if _, err := Write(&out, bytes.NewReader(b), JSONL, false); err != nil || !bytes.Equal(out.Bytes(), b) {
		t.Errorf("jsonl is not the record: %v", err)
	}
	out.Reset()
	if _, err := Write(&out, bytes.NewReader(b), OCSF, true); err != nil {
		t.Fatal(err)
	}
	first, err := object(bytes.SplitN(out.Bytes(), []byte("\n"), 2)[0])
	if want, _, _ := strings.Cut(string(b), "\n"); err != nil || first["raw_data"] != want {
		t.Errorf("raw_data is %v", first["raw_data"])
	}
	if _, err := Write(io.Discard, bytes.NewReader(b), "cef", false); err == nil || !strings.Contains(err.Error(), "ocsf") {
		t.Errorf("an unknown format: %v", err)
	}
}

// A record of a mode that cannot tell all is not exported as one that does: what came of
// an act is unknown, and what is missing stands at its beginning and its end.
func TestDegraded(t *testing.T) {
	begin := start()
	begin.Degraded = []string{"record: no files"}
	events := []*trace.Event{
		begin,
		{Kind: trace.KindConnect, Proc: kid, Syscall: "connect", Family: "inet", Addr: netip.MustParseAddr("192.0.2.1"), Port: 1},
		{Kind: trace.KindExec, Proc: kid, Syscall: "execve", Path: []byte("/x")},
		{Kind: trace.KindExecFail, Proc: kid, Syscall: "execve", Path: []byte("/x")},
		{Kind: trace.KindExit, Proc: kid, ExitCode: trace.ExitUnknown},
	}
	for format, want := range map[string][]string{
		ECS:  {`"degraded":["record: no files"]`, `"outcome":"unknown"`, `"outcome":"unknown"`, `"outcome":"failure"`, "", `"degraded":["record: no files"]`},
		OCSF: {`"degraded":["record: no files"]`, `"status_id":0`, `"status_id":0`, `"status_id":2`, "", `"degraded":["record: no files"]`},
	} {
		var out bytes.Buffer
		if j, err := Write(&out, record(t, events...), format, false); err != nil || j != trace.Degraded {
			t.Fatalf("%s: %s, %v", format, j, err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		for i, line := range lines {
			if !strings.Contains(line, want[i]) || strings.Contains(line, "exit_code") && i == 4 {
				t.Errorf("%s: line %d lacks %s: %s", format, i+1, want[i], line)
			}
		}
	}
}
