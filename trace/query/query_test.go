package query

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

// sample is a record with much in it.
func sample() *trace.Event {
	return &trace.Event{
		Seq: 7, Mono: 5e9, Wall: 1_795_970_000_123_456_789, Kind: trace.KindOpen, Phase: trace.PhaseCommand,
		Proc: trace.Proc{Boot: "1a2b", Pid: 42, Tid: 43, PPid: 1, Start: 9, PStart: 3}, Comm: []byte("cat"),
		Syscall: "openat", SyscallNr: 257, Errno: 13, Ret: -5, Count: 3,
		Path: []byte("/home/u/a b\xff.txt"), Access: "r", Mode: 0o644, DevMajor: 8, DevMinor: 1, Ino: 1<<63 + 1,
		Argv: [][]byte{[]byte("cat"), []byte("-n"), []byte("x")}, Argc: 3,
		Addr: netip.MustParseAddr("::ffff:10.1.2.3"), Port: 443, Bytes: 5000,
		Verdict: trace.VerdictDeny, Layer: trace.LayerLandlock, UTime: 1_500_000_000,
	}
}

func TestMatch(t *testing.T) {
	tests := []struct {
		expr string
		want bool
	}{
		{`kind = open`, true},
		{`kind == "open" and verdict = deny`, true},
		{`kind = exec or verdict = deny`, true},
		{`kind = exec or kind = fork or verdict = allow`, false},
		{`not kind = exec and not (kind = open and verdict = allow)`, true},
		{`!(kind=open)`, false},
		{`! ! kind=open`, true},
		{`kind=exec and verdict=deny or layer=landlock`, true}, // and binds closer
		{`kind=exec and (verdict=deny or layer=landlock)`, false},
		{`KIND = open`, false}, // parse error, see below
		{`kind = open AND NOT kind = exec`, true},
		{`kind=open && verdict=deny || kind=fork`, true},
		{`kind in (exec, open)`, true},
		{`kind in ("exec",'fork')`, false},
		{`denied`, true},
		{`errno = EACCES`, true},
		{`errno != ENOENT`, true},
		{`signal != SIGKILL`, false}, // it has no signal
		{`not signal = SIGKILL`, true},
		{`signal`, false},
		{`path`, true},
		{`path = "/home/u/a b\xff.txt"`, true},
		{`path = '/home/u/a b'`, false},
		{`path glob "/home/*/a b*"`, true},
		{`path glob /home/*.txt`, false}, // * stays within a name
		{`path glob /home/**.txt`, true},
		{`path glob "/home/u/a?b??txt"`, true},
		{`path glob "/home/u/a\\ b\xff.txt"`, false}, // a pattern of bytes that are no text: refused
		{`path glob '/home/\u/**'`, true},
		{`path ~ '^/home/.*\.txt$'`, true},
		{`path !~ ssh`, true},
		{`path < /i and path >= /home`, true},
		{`argv = -n`, true},
		{`argv != -n`, false},
		{`argv != -q`, true},
		{`argv ~ '^-'`, true},
		{`argv in (-z, x)`, true},
		{`argv glob 'c?t'`, true},
		{`pid = 42 and tid = 43`, true},
		{`pid > 41 && pid <= 42 && pid < 0x2b && pid >= 42 && pid != 43`, true},
		{`ret = -5 and ret < 0 and ret > -6 and ret >= -5`, true},
		{`uid = 0`, true}, // written even when it is 0
		{`exit_code = 0`, false},
		{`nr = 257`, true},
		{`ino = 9223372036854775809`, true},
		{`ino > 9223372036854775808`, true},
		{`count = 3`, true},
		{`bytes > 4KiB and bytes < 5.5kB`, true},
		{`bytes = 5kB`, true},
		{`utime = 1.5s and utime < 1m and utime > 1ms`, true},
		{`mode = 0644`, true},
		{`dev = 8:1`, true},
		{`proc = 1a2b-9-42 and parent = 1a2b-3-1`, true},
		{`wall >= 2026-11-29T16 and wall < 2026-11-30`, true},
		{`addr = 10.1.2.3`, true},
		{`addr in 10.0.0.0/8`, true},
		{`addr in (192.0.2.0/24, 10.1.0.0/16)`, true},
		{`addr != 10.1.2.3`, false},
		{`addr != 192.0.2.0/24`, true},
		{`addr in ::/0`, false}, // an IPv4 address, however it was written
		{`port = 443`, true},
		{`cpu = 0`, false}, // it is not the kernel's
		{`fd = 0 or memfd`, false},
		{`core`, false},
		{`core = false and denied == true and denied != false`, true},
	}
	for _, tt := range tests {
		q, err := Parse(tt.expr)
		if err != nil {
			if tt.want {
				t.Errorf("%s: %v", tt.expr, err)
			}
			continue
		}
		for range 2 { // nothing of the first record may be left
			if got := q.Match(sample()); got != tt.want {
				t.Errorf("%s: got %t", tt.expr, got)
			}
			q.Match(&trace.Event{})
		}
	}
}

func TestErrors(t *testing.T) {
	var b strings.Builder
	for _, expr := range []string{
		``, `   `, `kind`, `knd = open`, `kind = opn`, `kind = `, `kind open`, `kind = open and`, `and`, `(kind = open`, `kind = open)`,
		`kind in open, exec`, `kind in (open exec)`, `kind in (open,`, `pid = many`, `pid ~ 1`, `bytes > 10XB`, `utime > 3 days`,
		`addr = 300.1.1.1`, `addr in 10.0.0.0/99`, `addr < 10.0.0.1`, `core = 1`, `core ~ x`, `argv < x`, `path = "abc`, `path = "\q"`, `path = "\x4"`,
		`path ~ "("`, `path = a b`, `path = = a`, "path = '\x1b'x", `errno.x = 1`, `πath = 1`, `kind = open or pth = "ä" and`,
		`layer = landlok`, `errno = TYPO`, `errno = ENOET`, `errno = 13`, `errno in (E41, EPERM)`, `errno = E13`, `errno < E5000`, `signal = SIGKIL`, `signal = 9`, `signal = SIG40`, `wall ==== 1`, `verdict = denied`, `(((((((`, strings.Repeat("(", 300), strings.Repeat("!", 300) + "kind",
	} {
		q, err := Parse(expr)
		if err == nil {
			fmt.Fprintf(&b, "%.60q is fine: %T\n\n", expr, q.root)
			continue
		}
		fmt.Fprintf(&b, "%s\n\n", err)
	}
	testenv.Golden(t, "errors.golden", []byte(b.String()))
}

// TestFieldsAreThoseOfTheRecord holds the table and docs/record.md together.
// For a new field of the record, add a line to fields in table.go.
func TestFieldsAreThoseOfTheRecord(t *testing.T) {
	doc, err := os.ReadFile("../../docs/record.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllSubmatch(doc, -1) {
		want = append(want, string(m[1]))
	}
	names, _ := Fields()
	if d := cmp.Diff(append(want, "denied"), names); d != "" {
		t.Errorf("docs/record.md and the fields of queries differ (add them to trace/query/table.go), -documented +fields:\n%s", d)
	}
}

func TestSkip(t *testing.T) {
	sum := &trace.Event{Kind: trace.KindSummary, Counts: []trace.Count{{Name: "denied", N: 0}, {Name: "kind.exec", N: 2}, {Name: "kind.open", N: 9}}}
	denials := &trace.Event{Kind: trace.KindSummary, Counts: []trace.Count{{Name: "denied", N: 1}, {Name: "kind.exec", N: 2}, {Name: "kind.open", N: 9}}}
	old := &trace.Event{Kind: trace.KindSummary, Counts: []trace.Count{{Name: "kind.open", N: 9}}}
	tests := []struct {
		expr string
		sum  *trace.Event
		want bool
	}{
		{"kind = connect", sum, true},
		{"kind = connect and port = 1", sum, true},
		{"kind = open", sum, false},
		{"kind in (connect, open)", sum, false},
		{"kind in (connect, bind)", sum, true},
		{"kind ~ '^c'", sum, true},
		{"port = 1", sum, false},
		{"not kind = open", sum, false},
		{"not kind in (open, exec, summary, start)", sum, true},
		{"denied", sum, true},
		{"denied", denials, false},
		{"denied and kind = connect", denials, true},
		{"denied", old, false},
		{"denied or kind = exec", sum, false},
		{"not denied", sum, false},
		{"kind = summary", sum, false},
		{"kind = start", sum, false},
		{"kind = connect", &trace.Event{Kind: trace.KindExit}, false},
		{"kind = connect", &trace.Event{Kind: trace.KindSummary}, false},
	}
	for _, tt := range tests {
		q, err := Parse(tt.expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Skip(tt.sum); got != tt.want {
			t.Errorf("%s: got %t", tt.expr, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`kind = open and not (path glob "/a*" or addr in 10.0.0.0/8)`, `argv ~ "x" && pid in (1,2)`, `!denied || bytes >= 1MiB`, `"`, `((`} {
		f.Add(s)
	}
	e := sample()
	f.Fuzz(func(t *testing.T, expr string) {
		q, err := Parse(expr)
		if err != nil {
			e, ok := err.(*Error)
			if !ok || e.Column < 1 || e.Column > len(expr)+1 {
				t.Fatalf("%#v", err)
			}
			return
		}
		got := q.Match(e)
		if again := q.Match(e); again != got {
			t.Fatal("a query is not the same twice")
		}
		inv, err := Parse("not (" + expr + ")")
		if err == nil && inv.Match(e) == got { // nested one deeper it may be refused
			t.Fatal("not does not turn it around")
		}
		// A record that matches is in a run that may not be skipped.
		sum := &trace.Event{Kind: trace.KindSummary, Counts: []trace.Count{{Name: "denied", N: 3}, {Name: "kind.open", N: 3}}}
		if got && q.Skip(sum) {
			t.Fatal("skipped although it matches")
		}
	})
}
