package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// attacks try other ways out than a connection, beside an allowed one. Each
// prints the number of its error, or what it has won.
const attacks = `
import ctypes, json, os, socket, struct
out = {}
def note(key, f):
    try: out[key] = f()
    except OSError as e: out[key] = e.errno or str(e)
libc = ctypes.CDLL(None, use_errno=True)
def sock(*a): socket.socket(*a).close(); return "made"
note("ping socket", lambda: sock(socket.AF_INET, socket.SOCK_DGRAM, 1))
note("ping socket, IPv6", lambda: sock(socket.AF_INET6, socket.SOCK_DGRAM, 58))
note("raw ICMP", lambda: sock(socket.AF_INET, socket.SOCK_RAW, 1))
note("raw IPv6", lambda: sock(socket.AF_INET6, socket.SOCK_RAW, 255))
note("packet", lambda: sock(socket.AF_PACKET, socket.SOCK_DGRAM, 0x300))
note("vsock", lambda: sock(40, socket.SOCK_STREAM))
note("xdp", lambda: sock(44, socket.SOCK_RAW))
note("bluetooth", lambda: sock(31, socket.SOCK_RAW, 1))
note("alg", lambda: sock(38, socket.SOCK_SEQPACKET))
note("smc", lambda: sock(43, socket.SOCK_STREAM))
note("tipc", lambda: sock(30, socket.SOCK_STREAM))
note("netlink audit", lambda: sock(socket.AF_NETLINK, socket.SOCK_RAW, 9))
def netlink(kind, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.sendto(struct.pack("=IHHII", 16 + len(body), kind, 5, 1, 0) + body, (0, 0))
    e = struct.unpack("=i", s.recv(4096)[16:20])[0]
    if e: raise OSError(-e, "")
    return "done"
# RTM_NEWROUTE default dev lo, RTM_NEWADDR 203.0.113.99 on lo, RTM_NEWLINK lo down
note("route", lambda: netlink(24, struct.pack("=8BI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)))
note("address", lambda: netlink(20, struct.pack("=4BI", 2, 32, 0, 0, 1) + struct.pack("=HH4B", 8, 2, 203, 0, 113, 99)))
note("link down", lambda: netlink(16, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)))
t = socket.socket()
note("mark", lambda: t.setsockopt(1, 36, 0x6167) or "set")
note("mark by message", lambda: socket.socket(type=socket.SOCK_DGRAM).sendmsg([b"x"], [(1, 36, struct.pack("=I", 0x6167))], 0, ("127.0.0.1", 9)) and "sent")
note("transparent", lambda: t.setsockopt(0, 19, 1) or "set")
note("bind to device", lambda: socket.socket().setsockopt(1, 25, b"lo") or "set")
note("repair", lambda: t.setsockopt(6, 19, 1) or "set")
def routed(hop, at):
    s = socket.socket(); s.setsockopt(0, 4, bytes([131, 7, 4]) + socket.inet_aton(hop) + b"\0"); s.settimeout(1); s.connect((at, 8080)); return "connected"
note("source route by an address that is not allowed", lambda: routed("203.0.113.10", "198.18.0.16"))
note("source route to one", lambda: routed("198.18.0.16", "203.0.113.11"))
def spoofed():
    s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("198.18.0.16", 0)); s.sendto(b"x", ("203.0.113.10", 53)); return "sent"
note("from a synthetic address", spoofed)
def abstract():
    s = socket.socket(socket.AF_UNIX); s.connect("\0agentguard-egress-test"); return s.recv(5).decode()
note("abstract socket of the host", abstract)
def path(p):
    s = socket.socket(socket.AF_UNIX); s.connect(p); return s.recv(5).decode()
note("unix socket in the workspace", lambda: path("host.sock"))
note("another namespace", lambda: libc.unshare(0x40000000) and (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")) or "made")
def broadcast():
    s = socket.socket(type=socket.SOCK_DGRAM); s.setsockopt(1, 6, 1); s.sendto(b"x", ("255.255.255.255", 9)); return "sent"
note("broadcast", broadcast)
def multicast():
    s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b"x", ("224.0.0.251", 5353)); return "sent"
note("multicast", multicast)
def cgroups():
    err = OSError(2, "there is none")
    for root, dirs, files in os.walk("/sys/fs/cgroup"):
        for d in [root]:
            try: os.mkdir(d + "/nested"); return "made"
            except OSError as e: err = e
        for f in files:
            if f in ("cgroup.procs", "tasks"):
                try: open(root + "/" + f, "w").write("0"); return "moved"
                except OSError: pass
    raise err
note("nested cgroup", cgroups)
s = socket.create_connection(("api.test.example", 8080), 10); out["allowed"] = s.recv(5).decode()
print(json.dumps(out))
`

// attack makes a world for the attacks and runs them.
func (w *world) attack() (got map[string]any, res *runs.Result) {
	t := w.t
	t.Helper()
	w.tcp("203.0.113.10:8080")
	w.tcp("203.0.113.11:8080")
	w.udp("203.0.113.10:53", func(b []byte) []byte { return b })
	w.name("api.test.example", "203.0.113.10")
	for _, at := range []string{"@agentguard-egress-test", filepath.Join(w.dir, "host.sock")} {
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				w.hit(at)
				fmt.Fprint(c, "hello")
				c.Close()
			}
		}()
	}
	if err := os.Chmod(filepath.Join(w.dir, "host.sock"), 0o777); err != nil {
		t.Fatal(err)
	}
	w.write("attacks.py", attacks)
	out, res := w.exec([]string{"--allow", "api.test.example:8080"}, "/usr/bin/python3", "attacks.py")
	line, _, _ := strings.Cut(out, "\n")
	t.Log(line)
	got = map[string]any{}
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(got) < 25 {
		t.Errorf("only %d attacks", len(got))
	}
	for _, at := range []string{"tcp 203.0.113.11:8080", "udp 203.0.113.10:53", "@agentguard-egress-test", filepath.Join(w.dir, "host.sock")} {
		if n := w.hitsOf(at); n > 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
	return got, res
}

// What is not a connection does not lead out either, and nothing of it breaks
// what is allowed.
func TestEgressAttacks(t *testing.T) {
	w := newWorld(t)
	got, res := w.attack()
	// Allowed by the kernel to anybody, and without effect beyond the namespace.
	harmless := map[string]string{"allowed": "hello", "bind to device": "set"}
	for key, value := range got {
		text := fmt.Sprint(value)
		if want := harmless[key]; want != "" {
			if text != want {
				t.Errorf("%s: %s", key, text)
			}
			continue
		}
		if n, err := strconv.Atoi(text); (err != nil || n <= 0) && text != "timed out" {
			t.Errorf("%s: %s", key, text)
		}
	}
	if res.Record.Verdict != "complete" || res.Denials.Count < 10 {
		t.Errorf("%+v, %d denials", res.Record, res.Denials.Count)
	}
}

// hostileDNS floods the resolver of the run and asks it for nonsense; whoever
// asks properly then has an answer.
const hostileDNS = `
import os, random, socket, struct, threading
random.seed(1)
def q(name, kind=1, cls=1, flags=0x100, counts=(1, 0, 0, 0)):
    return struct.pack("!6H", 7, flags, *counts) + name + struct.pack("!2H", kind, cls)
api = b"\x03api\x04test\x07example\x00"
bad = [b"", b"\0", b"\xff" * 12, q(b"\xc0\x0c"), q(b"\xc0\x00" * 50), q(api[:-1]), q(b"\x3f" + b"a" * 63 + b"\x3f"), q(b"\x80abc\0"), q((b"\x3f" + b"a" * 63) * 5 + b"\0"),
  q(api, counts=(0, 0, 0, 0)), q(api, counts=(65535, 65535, 65535, 65535)), q(api, flags=0x8180), q(api, flags=0x2800), q(api, cls=3), q(api, kind=255), q(api, kind=252), q(b"\0"), q(b"\x03a\x00b\0"),
  q(api) + b"\0\0\x29\xff\xff\xff\xff\xff\xff\xff\xff", q(api, counts=(2, 0, 0, 0)) + api + b"\0\1\0\1"]
u = socket.socket(type=socket.SOCK_DGRAM)
for b in bad: u.sendto(b, ("127.0.0.1", 53))
for i in range(5000): u.sendto(os.urandom(random.randrange(600)), ("127.0.0.1", 53))
for i in range(3000): u.sendto(q(b"\x06%06d" % i + b"\x04evil\x07example\x00"), ("127.0.0.1", 53))
keep = []
for i in range(200):
    try:
        s = socket.socket(); s.settimeout(5); s.connect(("127.0.0.1", 53)); keep.append(s)
        s.send([b"\xff\xff" + b"x" * 1000, b"\0", b"\0\x05abcde", struct.pack("!H", len(q(api))) + q(api)][i % 4])
    except OSError: pass
a = socket.getaddrinfo("api.test.example", 8080, socket.AF_INET, socket.SOCK_STREAM)[0][4]
print("resolved", a[0])
# names that the host's resolver does not answer for, a lot of them, beside one that is there
def slow(i):
    s = socket.socket(); s.settimeout(1); keep.append(s)
    try: s.connect(slows[i % len(slows)])
    except OSError: pass
slows = [socket.getaddrinfo("n%d.slow.test.example" % i, 8080, socket.AF_INET, socket.SOCK_STREAM)[0][4] for i in range(40)]
threads = [threading.Thread(target=slow, args=(i,)) for i in range(200)]
for t in threads: t.start()
s = socket.create_connection(a, 20); print("beside", s.recv(5))
for t in threads: t.join()
`

func TestEgressHostileDNS(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.name("api.test.example", "203.0.113.10")
	w.silence("slow.test.example")
	w.write("dns.py", hostileDNS)
	out, res := w.exec([]string{"--allow", "api.test.example:8080", "--allow", "*.slow.test.example:8080"}, "/usr/bin/python3", "dns.py")
	if !strings.Contains(out, "resolved 198.18.0.16") || !strings.Contains(out, "beside b'hello'") || res.Status != 0 {
		t.Error(out)
	}
	if w.asked("evil") || res.Record.Verdict != "complete" {
		t.Errorf("asked %v, %+v", w.asked("evil"), res.Record)
	}
}

// oddNames asks for names below a wildcard that are addresses to what resolves them, or end early to a
// proxy, and connects to what it is given; and to a name that leads to the host itself.
const oddNames = `
import socket, struct
def ask(name):
    q = struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l for l in name.split(b".")) + struct.pack(">BHH", 0, 1, 1)
    u = socket.socket(type=socket.SOCK_DGRAM); u.settimeout(20); u.sendto(q, ("127.0.0.1", 53)); r = u.recv(999)
    if not r[7]: return r[3] & 15
    try: return socket.create_connection((socket.inet_ntoa(r[-4:]), 8080), 20).recv(5).decode()
    except OSError as e: return "errno %d" % e.errno
for n in (b"a.w.test.example", b"::ffff:203.0.113.11%x.w.test.example", b"2001:db8:5::11%x.w.test.example", b"203.0.113.11:8080/x.w.test.example", b"x\r\n.w.test.example", b"own.test.example"):
    print(n, ask(n))
`

// Names that no host has, and a name of the host itself, lead nowhere.
func TestEgressOddNames(t *testing.T) {
	w := newWorld(t)
	const own = "203.0.113.19"
	w.ip("addr", "replace", own+"/32", "dev", "lo")
	t.Cleanup(func() { w.ip("addr", "del", own+"/32", "dev", "lo") })
	for _, at := range []string{"203.0.113.10:8080", "203.0.113.11:8080", "[2001:db8:5::11]:8080", own + ":8080"} {
		w.tcp(at)
	}
	w.name("a.w.test.example", "203.0.113.10")
	w.name("own.test.example", own)
	w.write("names.py", oddNames)
	out, _ := w.exec([]string{"--allow", "*.w.test.example:8080", "--allow", "own.test.example:8080"}, "/usr/bin/python3", "names.py")
	want := `b'a.w.test.example' hello
b'::ffff:203.0.113.11%x.w.test.example' 3
b'2001:db8:5::11%x.w.test.example' 3
b'203.0.113.11:8080/x.w.test.example' 3
b'x\r\n.w.test.example' 3
b'own.test.example' errno 111
`
	if !strings.HasPrefix(out, want) {
		t.Errorf("%s\nwant %s", out, want)
	}
	for _, at := range []string{"203.0.113.11:8080", "[2001:db8:5::11]:8080", own + ":8080"} {
		if n := w.hitsOf("tcp " + at); n != 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
}

// silence makes the host's name server not answer for names below a domain.
func (w *world) silence(domain string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = domain
}

// The process that dials stays within its bounds while a command holds 5000
// connections, or as many as the host lets that process have: two descriptors each.
func TestEgressStorm(t *testing.T) {
	w := newWorld(t)
	n := 5000
	if testing.Short() {
		n = 1500
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if room := int(min(files.Max, 1<<20))/2 - 500; n > room {
		t.Logf("%d descriptors: %d connections", files.Max, room)
		n = room
	}
	w.tcp("203.0.113.10:8080")
	w.name("api.test.example", "203.0.113.10")
	w.write("storm.py", `
import errno, os, select, socket, sys
n, got, open_, ended = int(sys.argv[1]), 0, {}, {}
p = select.epoll()
for i in range(n):
    s = socket.socket(); s.setblocking(False); e = s.connect_ex(("198.18.0.16", 8080))
    if e not in (0, errno.EINPROGRESS): ended[e] = ended.get(e, 0) + 1; continue
    p.register(s, select.EPOLLIN); open_[s.fileno()] = s
while open_ and got + sum(ended.values()) < n:
    events = p.poll(300)
    if not events: break
    for fd, _ in events:
        try: got += bool(open_[fd].recv(99))
        except OSError as e: ended[errno.errorcode[e.errno]] = ended.get(errno.errorcode[e.errno], 0) + 1
        p.unregister(fd)
print("got", got, ended, flush=True)
sys.stdin.readline()
`)
	file := filepath.Join(w.dir, "policy.yaml")
	w.write("policy.yaml", "sandbox:\n  filesystem: {workspace: {path: .}}\n  process: {max_open_files: 10000}\n  network: {allowlist: [\"api.test.example:8080\"]}\n")
	peak := make(chan int, 1)
	stop := make(chan struct{})
	go func() { peak <- w.peakOfDialler(stop) }()
	out, res := w.exec([]string{"-p", file, "--wall", "10m"}, "/usr/bin/python3", "storm.py", strconv.Itoa(n))
	close(stop)
	most := <-peak
	if !strings.Contains(out, fmt.Sprintf("got %d {}", n)) || res.Record.Verdict != "complete" {
		t.Errorf("%s %+v", out, res.Record)
	}
	t.Logf("%d connections: the process that dials had %d KiB at most", n, most)
	if most == 0 || most > 256<<10 {
		t.Errorf("the process that dials had %d KiB", most)
	}
}

// peakOfDialler is the largest VmHWM that was seen, in KiB.
func (w *world) peakOfDialler(stop chan struct{}) (most int) {
	for {
		select {
		case <-stop:
			return most
		case <-time.After(20 * time.Millisecond):
		}
		for _, pid := range dialler() {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			for line := range strings.Lines(string(b)) {
				if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
					n, _ := strconv.Atoi(strings.Fields(rest)[0])
					most = max(most, n)
				}
			}
		}
	}
}
