package trace

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

// script writes records with one process after another on a clock of its own.
type script struct {
	t    *testing.T
	w    *Writer
	mono uint64
}

func newScript(t *testing.T, b *bytes.Buffer) *script {
	s := &script{t: t, w: NewWriter(b, testClock), mono: testClock.Mono}
	s.add(&Event{Kind: KindStart, Run: "20261129-163624-7f3k2q", BootID: testClock.BootID, Tool: "0.1.0", Kernel: "6.12.0", Tier: "1"})
	return s
}

func (s *script) add(e *Event) {
	s.t.Helper()
	s.mono += 1_000_000
	e.Mono = s.mono
	if e.Proc.Pid != 0 && e.Phase == "" {
		e.Phase = PhaseCommand
	}
	if err := s.w.Append(e); err != nil {
		s.t.Fatal(err)
	}
}

func args(a ...string) (out [][]byte) {
	for _, s := range a {
		out = append(out, []byte(s))
	}
	return out
}

// proc is a process that started pid milliseconds after boot.
func proc(pid, parent uint32) Proc {
	p := Proc{Pid: pid, Tid: pid, PPid: parent, Start: uint64(pid) * 1e6, UID: 1000}
	if parent != 0 {
		p.PStart = uint64(parent) * 1e6
	}
	return p
}

// story is the record of a run in which something of each sort happened.
func story(t *testing.T) *bytes.Buffer {
	b := &bytes.Buffer{}
	s := newScript(t, b)
	sh, evil, kid := proc(4242, 0), proc(4243, 4242), proc(4250, 4243)
	s.add(&Event{Kind: KindFork, Phase: PhaseEnvelope, Proc: proc(4000, 0), Child: sh})
	s.add(&Event{Kind: KindCanary, Phase: PhaseEnvelope, Proc: sh, Probe: "open", Verdict: VerdictDeny, Errno: 13, Layer: LayerLandlock})
	s.add(&Event{Kind: KindExec, Proc: sh, Path: []byte("/bin/sh"), Argv: args("sh", "-c", "make test; ./evil")})
	s.add(&Event{Kind: KindFork, Proc: sh, Child: proc(4243, 0)})
	s.add(&Event{Kind: KindExec, Proc: evil, Path: []byte("/srv/a\nb"), Argv: args("/sbin/init", "\x1b[2J\x1b]0;title\a", "\u202egpj.exe", "\xff", "")})
	s.add(&Event{Kind: KindExecFail, Proc: evil, Path: []byte("/usr/local/bin/ls"), Errno: 2, Syscall: "execve", SyscallNr: 59})
	s.add(&Event{Kind: KindExec, Proc: evil, Path: []byte("/bin/ls"), Argv: args("ls"), Argc: 7, ArgvLen: 900_000})
	s.add(&Event{Kind: KindFork, Proc: evil, Child: Proc{Pid: 4243, Tid: 4244, Start: 4243e6}})
	s.add(&Event{Kind: KindFork, Proc: evil, Child: proc(4250, 0)})
	s.add(&Event{Kind: KindExit, Proc: kid, Signal: 11, Core: true, UTime: 4e6, STime: 1e6, MaxRSS: 3 << 20})
	for range 3 {
		e := denyEvent()
		e.Proc = evil
		s.add(e)
	}
	s.add(&Event{Kind: KindOpen, Proc: evil, Path: []byte("/home/u/.ssh/id_ed25519"), Access: "r", Errno: 13, Verdict: VerdictDeny, Layer: LayerLandlock, Certainty: Inferred, Remedy: "--ro /home/u/.ssh/id_ed25519"})
	s.add(&Event{Kind: KindDeny, Proc: evil, Syscall: "ptrace", SyscallNr: 101, Errno: 1, Verdict: VerdictDeny, Layer: LayerSeccomp, Certainty: Certain, Rule: "process.seccomp_allow"})
	s.add(&Event{Kind: KindConnect, Proc: evil, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("169.254.169.254"), Port: 80, Errno: 1, Verdict: VerdictDeny, Layer: LayerBPF, Certainty: Certain, Rule: "network.egress", RuleSource: "default"})
	s.add(&Event{Kind: KindConnect, Proc: evil, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("127.0.0.1"), Port: 8080, Verdict: VerdictAllow})
	s.add(&Event{Kind: KindSend, Proc: evil, Family: "inet", Proto: "udp", Addr: netip.MustParseAddr("127.0.0.1"), Port: 53, Verdict: VerdictAllow, Bytes: 120, Count: 4})
	s.add(&Event{Kind: KindConnect, Proc: evil, Family: "unix", Path: []byte("\x00evil\n"), Verdict: VerdictAllow})
	s.add(&Event{Kind: KindLimit, Limit: "memory", LimitValue: 512 << 20, LimitHits: 2})
	s.add(&Event{Kind: KindLimit, Limit: "cpu", LimitValue: 30e9, LimitHits: 1})
	s.add(&Event{Kind: KindLoss, Loss: Loss{Class: "bulk", Cause: "ring", Count: 37, AfterSeq: 12, BeforeSeq: 14, CPU: 1}})
	s.add(&Event{Kind: KindOutput, Stream: "stdout", Bytes: 5_000_000, Kept: 1_000_000, SHA256: strings.Repeat("ab", 32)})
	s.add(&Event{Kind: KindExit, Proc: evil, ExitCode: 3, UTime: 12e6, STime: 7e6})
	s.add(&Event{Kind: KindExit, Proc: sh, ExitCode: 3, UTime: 1e6, STime: 1e6, MaxRSS: 900 << 10})
	if err := s.w.Close(&Event{
		Mono: s.mono + 1e6, Reason: "exit", ExitCode: 3, UTime: 17e6, STime: 9e6, MaxRSS: 5 << 20,
		Counts: []Count{{"syscall.read", 812}, {"syscall.openat", 90}, {"bytes.read", 123456}},
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestShow(t *testing.T) {
	b := story(t)
	show(t, "show.golden", b.Bytes(), Incomplete)

	lines := strings.SplitAfter(b.String(), "\n")
	torn := strings.Join(lines[:5], "") + "hello\n" + strings.Join(lines[7:9], "") + lines[9][:50]
	show(t, "show-torn.golden", []byte(torn), Unsealed)
	show(t, "show-empty.golden", nil, Unsealed)
}

func show(t *testing.T, file string, rec []byte, want Judgement) {
	t.Helper()
	var out bytes.Buffer
	j, err := Show(&out, bytes.NewReader(rec))
	if err != nil || j != want {
		t.Errorf("Show: %s, %v; want %s", j, err, want)
	}
	assertSafe(t, "view", strings.ReplaceAll(out.String(), "\n", ""))
	testenv.Golden(t, file, out.Bytes())
}

// TestShowIsBounded feeds records that were made to exhaust a viewer: a chain of
// many processes, and texts as long and as different as a record can hold.
func TestShowIsBounded(t *testing.T) {
	var b bytes.Buffer
	s := newScript(t, &b)
	for i := range uint32(3000) {
		s.add(&Event{Kind: KindFork, Proc: proc(10+i, 9+i), Child: proc(11+i, 0)})
	}
	for i := range 30 {
		long := bytes.Repeat([]byte{byte(i), 0xff}, MaxPath/2)
		s.add(&Event{Kind: KindExec, Proc: proc(10, 9), Path: long, Argv: [][]byte{long, long}})
		s.add(&Event{Kind: KindOpen, Proc: proc(10, 9), Path: long, To: long, Verdict: VerdictDeny})
	}
	s.w.Close(nil)
	rec := b.Bytes()
	for name, view := range map[string]func(io.Writer) error{
		"show":    func(w io.Writer) error { _, err := Show(w, bytes.NewReader(rec)); return err },
		"parts":   func(w io.Writer) error { _, err := Show(w, bytes.NewReader(rec), Parts()...); return err },
		"explain": func(w io.Writer) error { _, err := Explain(w, bytes.NewReader(rec), nil); return err },
		"diff":    func(w io.Writer) error { _, err := Diff(w, bytes.NewReader(rec), &bytes.Buffer{}, false); return err },
		"tail":    func(w io.Writer) error { _, err := Tail(w, bytes.NewReader(rec), 1000, nil); return err },
	} {
		var out bytes.Buffer
		if err := view(&out); err != nil {
			t.Fatal(err)
		}
		most := 4 << 20
		if name == "parts" { // the same long texts, whole in each part
			most *= 2
		}
		if out.Len() > most {
			t.Errorf("%s: %d bytes", name, out.Len())
		}
		for i, l := range strings.Split(out.String(), "\n") {
			if len(l) > 64<<10 {
				t.Errorf("%s: line %d has %d bytes", name, i, len(l))
			}
		}
	}
}

// TestTreeByPid links processes of a record that has no start times of parents,
// and does not loop on processes that claim to be each other's parents.
func TestTreeByPid(t *testing.T) {
	tree := newProcesses()
	p := func(pid, ppid uint32) *Event {
		return &Event{Kind: KindExec, Proc: Proc{Pid: pid, PPid: ppid, Start: uint64(pid)}, Path: fmt.Appendf(nil, "/p%d", pid)}
	}
	for _, e := range []*Event{p(2, 1), p(3, 2), p(4, 3), p(1, 4), p(5, 5)} {
		tree.add(e)
	}
	var out bytes.Buffer
	tree.writeTree(&out)
	want := "  -2-2  /p2  [no end recorded]\n" +
		"  -3-3    /p3  [no end recorded]\n" +
		"  -4-4      /p4  [no end recorded]\n" +
		"  -1-1        /p1  [no end recorded]\n" +
		"  -5-5  /p5  [no end recorded]\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}
