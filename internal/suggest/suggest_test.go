package suggest

import (
	"bytes"
	"net/netip"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

var me = trace.Proc{Pid: 42, Tid: 42, Start: 9}

func record(t *testing.T, events ...*trace.Event) *bytes.Buffer {
	t.Helper()
	b := &bytes.Buffer{}
	w := trace.NewWriter(b, trace.Options{BootID: "1a2b3c4d", Mono: 1, Wall: time.Unix(1_795_970_000, 0)})
	for _, e := range events {
		e.Mono = 1
		if e.Phase == "" {
			e.Phase = trace.PhaseCommand
		}
		if e.Kind != trace.KindLimit {
			e.Proc = me
		}
		if err := w.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(&trace.Event{Mono: 2}); err != nil {
		t.Fatal(err)
	}
	return b
}

func open(p, access string) *trace.Event {
	return &trace.Event{Kind: trace.KindOpen, Path: []byte(p), Access: access, Ret: 3}
}

func refused(e *trace.Event, errno int32) *trace.Event {
	e.Errno, e.Ret, e.Verdict, e.Layer = errno, 0, trace.VerdictDeny, trace.LayerMount
	return e
}

func missing(p string) *trace.Event { return refused(open(p, "r"), enoent) }

// view is of a run with grants of every sort.
var view = &Plan{
	Env: []string{"PATH", "CI", "API_TOKEN"},
	View: []Entry{
		{Op: "dir", At: "/data"},
		{Op: "bind", At: "/usr", From: "/usr", Access: "ro", Clause: "default"},
		{Op: "scratch", At: "/tmp", From: "tmp", Access: "rw", Clause: "default"},
		{Op: "bind", At: "/home/u/src/app", From: "/home/u/src/app", Access: "ro", Clause: "filesystem.workspace (default)"},
		{Op: "bind", At: "/data/in", From: "/srv/in", Access: "ro", Clause: "filesystem.read_only_mounts (p.yaml:3:4)"},
		{Op: "bind", At: "/data/out", From: "/data/out", Access: "rw", Clause: "filesystem.writable_mounts (flag --rw)"},
		{Op: "bind", At: "/data/read", From: "/data/read", Access: "rw", Clause: "filesystem.writable_mounts (flag --rw)"},
		{Op: "bind", At: "/data/unused", From: "/data/unused", Access: "rw", Clause: "filesystem.writable_mounts (flag --rw)"},
		{Op: "bind", At: "/run/granted.sock", From: "/run/granted.sock", Access: "rw", Clause: "network.unix (flag --unix)"},
		{Op: "cow", At: "/data/cow", From: "/data/cow", Access: "rw", Clause: "filesystem.cow_mounts (flag --cow)"},
	},
}

// host is everything but what has "none" in its name.
func host(p string) string {
	switch {
	case strings.Contains(p, "none"):
		return ""
	case path.Ext(p) == "":
		return "a directory"
	}
	return "a file"
}

func deeds() []*trace.Event {
	list := []*trace.Event{
		{Kind: trace.KindOpen, Phase: trace.PhaseEnvelope, Path: []byte("/opt/envelope")},
		open("/usr/lib/libc.so", "r"), open("/tmp/x", "rw"),
		open("/home/u/src/app/a.c", "r"), refused(&trace.Event{Kind: trace.KindCreate, Path: []byte("/home/u/src/app/a.o")}, 30),
		open("/data/in/x", "r"),
		{Kind: trace.KindUnlink, Path: []byte("/data/out/x")},
		open("/data/read/y", "r"),
		{Kind: trace.KindRename, Path: []byte("/data/cow/x"), To: []byte("/data/cow/y")},
		refused(open("/usr/lib/x", "w"), 30),
		missing("/opt/none/x"), missing("/opt/tool/conf.ini"), missing("/opt/tool/none"), missing("relative"),
		missing("/home/u/.ssh/id_ed25519"), missing("/home/u/.config/a.toml"), missing("/"), missing("/home/u"),
		refused(&trace.Event{Kind: trace.KindMkdir, Path: []byte("/srv/cache/new")}, enoent),
		refused(&trace.Event{Kind: trace.KindExecFail, Path: []byte("/opt/run.sh")}, enoent),
		{Kind: trace.KindExecFail, Path: []byte("/usr/local/bin/tool"), Errno: enoent},
		{Kind: trace.KindOpen, Path: []byte("/etc/app.conf"), Errno: enoent},
		refused(&trace.Event{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}, 1),
		refused(&trace.Event{Kind: trace.KindSend, Family: "inet6", Proto: "udp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 53}, 1),
		refused(&trace.Event{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("127.0.0.1"), Port: 1}, 111),
		{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.9"), Port: 443, Name: []byte("api.example.com.")},
		{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.8"), Port: 5432},
		{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.7"), Port: 1, Errno: 111},
		{Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("198.18.0.16"), Port: 80, Name: []byte("model.broker.internal")},
		{Kind: trace.KindConnect, Family: "inet", Proto: "udp", Addr: netip.MustParseAddr("198.18.0.16"), Port: 80, Name: []byte("model.broker.internal")},
		{Kind: trace.KindConnect, Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.66"), Port: 443, Name: []byte("upstream.example"), Rule: "network.broker", End: "closed"},
		{Kind: trace.KindConnect, Family: "unix", Path: []byte("/run/granted.sock")},
		{Kind: trace.KindConnect, Family: "unix", Path: []byte("/tmp/own.sock")},
		refused(&trace.Event{Kind: trace.KindConnect, Family: "unix", Path: []byte("/run/db.sock")}, 2),
		refused(&trace.Event{Kind: trace.KindConnect, Family: "unix", Path: []byte("/var/run/docker.sock")}, 2),
		refused(&trace.Event{Kind: trace.KindDeny, Syscall: "ptrace", Remedy: "process.seccomp_allow: [ptrace] in a policy file"}, 1),
		{Kind: trace.KindLimit, Limit: "memory", LimitValue: 512 << 20, LimitHits: 2},
		{Kind: trace.KindLimit, Limit: "wall", LimitValue: 5e9, LimitHits: 1},
		{Kind: trace.KindLimit, Limit: "tasks", LimitValue: 64},
		{Kind: trace.KindLimit, Limit: "output", LimitValue: 1 << 30, LimitHits: 1},
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		list = append(list, missing("/opt/sdk/lib/"+name+".so"), missing("/opt/sdk/bin/"+name), missing("/home/u/.config/x/"+name+".x"), missing("/var/lib/"+name+".x"))
	}
	return list
}

func TestYAML(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		n := New(host, unsafe)
		if j, err := n.Add(view, record(t, deeds()...)); err != nil || j != trace.Complete {
			t.Fatal(j, err)
		}
		got := n.YAML("for a test")
		file := "safe.golden"
		if unsafe {
			file = "unsafe.golden"
		}
		testenv.Golden(t, file, got)
		mustMerge(t, got)
	}
}

// mustMerge holds that what is suggested is a policy.
func mustMerge(t *testing.T, src []byte) *policy.Policy {
	t.Helper()
	f, err := policy.Parse("/p.yaml", src)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	p, err := policy.Merge(policy.Defaults(policy.Context{Cwd: "/w"}), f)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return p
}

// TestNothing is a run that needs nothing.
func TestNothing(t *testing.T) {
	n := New(host, false)
	if _, err := n.Add(&Plan{}, record(t)); err != nil {
		t.Fatal(err)
	}
	mustMerge(t, n.YAML("nothing\x1b[2J"))
}

// TestMerged takes two runs: what either needs is there, the wider mode wins.
func TestMerged(t *testing.T) {
	n := New(host, false)
	for _, e := range []*trace.Event{open("/data/in/x", "r"), refused(open("/data/in/x", "w"), 30)} {
		if _, err := n.Add(view, record(t, e)); err != nil {
			t.Fatal(err)
		}
	}
	p := mustMerge(t, n.YAML("two"))
	if len(p.Cow) != 1 || p.Cow[0].Path != "/srv/in" || p.Cow[0].At != "/data/in" || len(p.ReadOnly) != 0 {
		t.Errorf("cow %v, ro %v", p.Cow, p.ReadOnly)
	}
}

// TestNeverBroad is hostile: a command that asks for every place there is gets
// none of those that a policy calls broad, and no credentials.
func TestNeverBroad(t *testing.T) {
	var list []*trace.Event
	for _, dir := range []string{"", "/etc", "/root", "/home", "/home/u", "/var", "/var/lib", "/usr", "/run", "/boot", "/opt", "/srv", "/etc/ssh", "/home/u/.aws", "/home/u/.config"} {
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "id_rsa", "x\ny", "a:b", "\xff"} {
			list = append(list, missing(dir+"/"+name), refused(&trace.Event{Kind: trace.KindMkdir, Path: []byte(dir + "/" + name)}, enoent))
		}
	}
	n := New(func(string) string { return "a directory" }, false)
	if _, err := n.Add(view, record(t, list...)); err != nil {
		t.Fatal(err)
	}
	p := mustMerge(t, n.YAML("x"))
	for _, m := range append(p.ReadOnly, p.Writable...) {
		if m.Path == "/" || m.Path == "/home/u" || !trace.Advisable([]byte(m.Path)) || len(p.Unsafe) > 0 {
			t.Errorf("suggested %s", m.Path)
		}
	}
}

// Toolchains of PATH are a default, and need no word; those that were named and
// caches are suggested as what they are, when they were used.
func TestToolchainsAndCaches(t *testing.T) {
	p := &Plan{
		Env: []string{"PATH", "CI", "PYENV_ROOT"}, Told: []string{"PYENV_ROOT"},
		View: []Entry{
			{Op: "bind", At: "/h/.pyenv", From: "/h/.pyenv", Access: "ro", Clause: "filesystem.toolchains (default)"},
			{Op: "bind", At: "/opt/x", From: "/opt/x", Access: "ro", Clause: "filesystem.toolchains (flag --toolchains)"},
			{Op: "bind", At: "/opt/idle", From: "/opt/idle", Access: "ro", Clause: "filesystem.toolchains (flag --toolchains)"},
			{Op: "cow", At: "/h/.npm", From: "/h/.npm", Access: "rw", Clause: "filesystem.caches (flag --cache)", Cache: "npm"},
		},
	}
	n := New(func(string) string { return "a directory" }, false)
	if _, err := n.Add(p, record(t, open("/h/.pyenv/bin/python", "r"), open("/opt/x/bin/y", "r"), open("/h/.npm/z", "w"), refused(open("/opt/x/new", "w"), 30))); err != nil {
		t.Fatal(err)
	}
	want := `# it
# left out: writing /opt/x: toolchains are read-only
sandbox:
  filesystem:
    toolchains:
      - "/opt/x"
    caches:
      - "npm"
  env:
    allowlist:
      - "CI"
`
	got := string(n.YAML("it"))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if _, err := policy.Parse("/p.yaml", []byte(got)); err != nil {
		t.Error(err)
	}
}
