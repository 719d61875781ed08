package trace

import (
	"bytes"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

// work is the record of a run that reads, writes and moves files; differently
// makes it another one.
func work(t *testing.T, differently bool) *bytes.Buffer {
	b := &bytes.Buffer{}
	s := newScript(t, b)
	sh, cc := proc(100, 0), proc(101, 100)
	open := func(path, access string, flags uint64) *Event {
		return &Event{Kind: KindOpen, Proc: cc, Path: []byte(path), PathSource: PathFDExit, Access: access, Flags: flags, Ret: 3}
	}
	s.add(&Event{Kind: KindFork, Phase: PhaseEnvelope, Proc: proc(90, 0), Child: sh})
	s.add(&Event{Kind: KindOpen, Phase: PhaseEnvelope, Proc: sh, Path: []byte("/etc/passwd"), Access: "r"})
	s.add(&Event{Kind: KindExec, Proc: sh, Path: []byte("/usr/bin/dash"), Argv: args("sh", "build.sh"), SHA256: strings.Repeat("0a", 32)})
	s.add(&Event{Kind: KindFork, Proc: sh, Child: proc(101, 0)})
	s.add(&Event{Kind: KindExecFail, Proc: cc, Path: []byte("/usr/local/bin/cc"), Syscall: "execve", SyscallNr: 59, Errno: enoent})
	s.add(&Event{Kind: KindExec, Proc: cc, Path: []byte("/usr/bin/cc"), Argv: args("cc", "a.c")})
	s.add(&Event{Kind: KindMmapExec, Proc: cc, Path: []byte("/usr/lib/libc.so.6"), DevMajor: 8, DevMinor: 1, Ino: 77})
	s.add(&Event{Kind: KindInherit, Proc: sh, Path: []byte("/dev/null"), Access: "r"})
	s.add(&Event{Kind: KindCode, Proc: cc, Path: []byte("/memfd:x"), Memfd: true, HashState: "memfd"})
	s.add(&Event{Kind: KindExec, Proc: cc, Path: []byte("/usr/bin/perl"), Script: []byte("/src/x\a"), Argv: args("perl", "x"), Deleted: true})
	for range 3 {
		s.add(open("/src/a.c", "r", 0))
	}
	s.add(open("/src/\x1b[31m", "rw", 2))
	s.add(&Event{Kind: KindOpen, Proc: cc, Path: []byte("/opt/inc/a.h"), Access: "r", Errno: enoent, Count: 4})
	s.add(&Event{Kind: KindOpen, Proc: cc, Path: []byte("/root/.ssh/id_rsa"), Access: "r", Errno: enoent})
	s.add(&Event{Kind: KindCreate, Proc: cc, Path: []byte("/src/a.tmp"), Access: "w", Mode: 0o600})
	s.add(&Event{Kind: KindRename, Proc: cc, Path: []byte("/src/a.tmp"), To: []byte("/src/a.o")})
	s.add(&Event{Kind: KindSetxattr, Proc: cc, Path: []byte("/src/a.o"), Name: []byte("user.x\n")})
	e := denyEvent()
	e.Proc, e.Count, e.RuleSource = cc, 2, "policy.yaml:7:5"
	s.add(e)
	s.add(&Event{Kind: KindDeny, Proc: cc, Syscall: "ptrace", SyscallNr: 101, Errno: 1, Verdict: VerdictDeny, Layer: LayerSeccomp, Certainty: Certain, Rule: "process.seccomp_allow", RuleSource: "default"})
	s.add(&Event{Kind: KindOpen, Proc: sh, Path: []byte("/etc/shadow"), Access: "r", Errno: 13, Verdict: VerdictDeny, Layer: LayerDAC, Certainty: Inferred})
	s.add(&Event{Kind: KindOpen, Proc: cc, Path: []byte("/opt/sdk/x"), Access: "r", Errno: enoent, Verdict: VerdictDeny, Layer: LayerMount, Certainty: Inferred, Rule: "filesystem.read_only_mounts", RuleSource: "default", Remedy: "--ro /opt/sdk/x"})
	s.add(&Event{Kind: KindConnect, Proc: cc, Family: "inet", Proto: "udp", Addr: netip.MustParseAddr("127.0.0.1"), Port: 53, Verdict: VerdictAllow})
	if differently {
		s.add(&Event{Kind: KindUnlink, Proc: cc, Path: []byte("/src/a.c")})
		s.add(&Event{Kind: KindExec, Proc: cc, Path: []byte("/usr/bin/as"), Argv: args("as")})
		s.add(&Event{Kind: KindConnect, Proc: cc, Family: "unix", Path: []byte("/run/x"), Errno: 13, Verdict: VerdictDeny, Layer: LayerBPF, Rule: "network.unix"})
		s.add(&Event{Kind: KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.7"), Port: 443, Name: []byte("a.example"), Bytes: 7, Received: 9, Duration: 5e6, End: "closed"})
		s.add(&Event{Kind: KindExit, Proc: cc, ExitCode: 1})
	}
	if err := s.w.Close(&Event{Mono: s.mono + 1e6, Reason: "exit", ExitCode: int32(len(s.w.o.BootID)) % 2}); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParts(t *testing.T) {
	var out bytes.Buffer
	for _, part := range Parts() {
		j, err := Show(&out, bytes.NewReader(work(t, false).Bytes()), part)
		if err != nil || j != Complete {
			t.Errorf("%s: %s, %v", part, j, err)
		}
		out.WriteByte('\n')
	}
	assertSafe(t, "view", strings.ReplaceAll(out.String(), "\n", ""))
	testenv.Golden(t, "parts.golden", out.Bytes())
	if _, err := Show(io.Discard, work(t, false), "file\x1b"); err == nil || !strings.Contains(err.Error(), "files") {
		t.Errorf("an unknown part: %v", err)
	}
}

func TestDiff(t *testing.T) {
	var out bytes.Buffer
	same, err := Diff(&out, work(t, false), work(t, true), false)
	if err != nil || same {
		t.Errorf("%t, %v", same, err)
	}
	testenv.Golden(t, "diff.golden", out.Bytes())
	out.Reset()
	if _, err := Diff(&out, work(t, false), work(t, true), true); err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "diff.json.golden", out.Bytes())
	if same, err := Diff(io.Discard, work(t, true), work(t, true), true); err != nil || !same {
		t.Errorf("the same record twice: %t, %v", same, err)
	}
	torn := work(t, true)
	torn.Truncate(torn.Len() - 20)
	if same, err := Diff(io.Discard, torn, work(t, true), true); err != nil || same {
		t.Errorf("a torn record is the same as a whole one: %v", err)
	}
}

func TestExplain(t *testing.T) {
	var out bytes.Buffer
	var asked []string
	j, err := Explain(&out, work(t, true), func(p string) string {
		asked = append(asked, p)
		if p == "/opt/inc/a.h" {
			return "a file"
		}
		return ""
	})
	if err != nil || j != Complete {
		t.Errorf("%s, %v", j, err)
	}
	// Nobody is asked about credentials.
	if d := cmp.Diff([]string{"/opt/sdk/x", "/opt/inc/a.h", "/usr/local/bin/cc"}, asked); d != "" {
		t.Errorf("asked, -want +got:\n%s", d)
	}
	testenv.Golden(t, "explain.golden", out.Bytes())
	out.Reset()
	if _, err := ExplainJSON(&out, work(t, true), nil); err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "explain.json.golden", out.Bytes())
	out.Reset()
	if _, err := Explain(&out, story(t), nil); err != nil {
		t.Fatal(err)
	}
	assertSafe(t, "view", strings.ReplaceAll(out.String(), "\n", ""))
	testenv.Golden(t, "explain-story.golden", out.Bytes())
}

// growing gives one more line each time its end is looked at again.
type growing struct {
	lines []string
	have  strings.Reader
	polls int
}

func (g *growing) Read(p []byte) (int, error) { return g.have.Read(p) }

func (g *growing) more() bool {
	g.polls++
	if len(g.lines) == 0 {
		return false
	}
	g.have.Reset(g.lines[0])
	g.lines = g.lines[1:]
	return true
}

func TestTail(t *testing.T) {
	all := strings.SplitAfter(work(t, true).String(), "\n")
	whole := strings.Join(all, "")
	var out bytes.Buffer
	for _, n := range []int{0, 1, 3, 1000} {
		if _, err := Tail(&out, strings.NewReader(whole), n, nil); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Golden(t, "tail.golden", out.Bytes())

	// A line that is not whole yet is waited for, and after the summary nothing is.
	out.Reset()
	g := &growing{lines: []string{all[20][:9], all[20][9:] + all[21][:1], all[21][1:], strings.Join(all[22:], ""), "never read\n"}}
	g.have.Reset(strings.Join(all[:20], ""))
	j, err := Tail(&out, g, 2, g.more)
	if err != nil || j != Complete || g.polls != 4 {
		t.Errorf("%s, %v, %d polls", j, err, g.polls)
	}
	testenv.Golden(t, "tail-live.golden", out.Bytes())

	// The writer died.
	out.Reset()
	g = &growing{lines: []string{all[20][:9]}}
	g.have.Reset(strings.Join(all[:20], ""))
	if j, err := Tail(&out, g, 1, g.more); err != nil || j != Unsealed || !strings.Contains(out.String(), "torn") {
		t.Errorf("%s, %v:\n%s", j, err, out.String())
	}
}
