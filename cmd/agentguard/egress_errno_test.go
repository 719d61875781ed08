package main

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// errnos prints what connect(2) comes to, blocking and not, for each HOST:PORT
// of its arguments: a greeting or an errno.
const errnos = `
import errno, select, socket, sys
def blocking(at, fam, wait):
    s = socket.socket(fam); s.settimeout(wait)
    s.connect(at); return s.recv(5).decode()
def later(at, fam, wait):
    s = socket.socket(fam); s.setblocking(False)
    e = s.connect_ex(at)
    if e != errno.EINPROGRESS: raise OSError(e, "at once")
    if not select.select([], [s], [], wait)[1]: raise TimeoutError()
    e = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if e: raise OSError(e, "later")
    s.setblocking(True); return s.recv(5).decode()
for at in sys.argv[1:]:
    host, port = at.rsplit(":", 1)
    fam = socket.AF_INET6 if host.endswith("6") or ":" in host else socket.AF_INET
    got = []
    for f in blocking, later:
        try:
            got.append(f(socket.getaddrinfo(host.strip("[]"), int(port), fam, socket.SOCK_STREAM)[0][4], fam, 2 if host.startswith("silent") else 30))
        except TimeoutError: got.append("timeout")
        except OSError as e: got.append(errno.errorcode.get(e.errno, str(e.errno)))
    print(at, *got, flush=True)
`

// A connect inside fails as the one outside does, by both families, and is not
// done before that one is.
func TestEgressErrno(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.tcp("[2001:db8:5::10]:8080")
	w.full("203.0.113.11:80")
	for _, r := range [][]string{
		{"unreachable", "198.51.100.8/32"}, {"prohibit", "198.51.100.7/32"}, {"unreachable", "2001:db8:9::8/128"},
	} {
		w.ip(append([]string{"route", "replace"}, r...)...)
		t.Cleanup(func() { w.ip(append([]string{"route", "del"}, r...)...) })
	}
	var flags, args, want []string
	for _, c := range []struct{ name, addr, port, want string }{
		{"up.test.example", "203.0.113.10", "8080", "hello hello"},
		{"up6", "2001:db8:5::10", "8080", "hello hello"},
		{"closed.test.example", "203.0.113.10", "9", "ECONNREFUSED ECONNREFUSED"},
		{"closed6", "2001:db8:5::10", "9", "ECONNREFUSED ECONNREFUSED"},
		{"nonet.test.example", "198.51.100.6", "80", "ENETUNREACH ENETUNREACH"},
		{"nonet6", "2001:db8:9::6", "80", "ENETUNREACH ENETUNREACH"},
		{"nohost.test.example", "198.51.100.8", "80", "EHOSTUNREACH EHOSTUNREACH"},
		{"nohost6", "2001:db8:9::8", "80", "EHOSTUNREACH EHOSTUNREACH"},
		{"prohibited.test.example", "198.51.100.7", "80", "ECONNREFUSED ECONNREFUSED"},
		{"private.test.example", "169.254.169.254", "80", "ECONNREFUSED ECONNREFUSED"},
		{"nobody.test.example", "", "80", "EHOSTUNREACH EHOSTUNREACH"},
		{"silent.test.example", "203.0.113.11", "80", "timeout timeout"},
	} {
		if c.addr != "" {
			w.name(c.name, c.addr)
		}
		flags = append(flags, "--allow", c.name+":"+c.port)
		args = append(args, c.name+":"+c.port)
		want = append(want, c.name+":"+c.port+" "+c.want)
	}
	flags = append(flags, "--allow", "203.0.113.10:9", "--allow", "[2001:db8:5::10]:9", "--allow", "127.0.0.1:9")
	args = append(args, "203.0.113.10:9", "[2001:db8:5::10]:9", "127.0.0.1:9")
	want = append(want, "203.0.113.10:9 ECONNREFUSED ECONNREFUSED", "[2001:db8:5::10]:9 ECONNREFUSED ECONNREFUSED", "127.0.0.1:9 ECONNREFUSED ECONNREFUSED")
	w.write("errnos.py", errnos)
	out, res := w.exec(flags, append([]string{"/usr/bin/python3", "errnos.py"}, args...)...)
	for _, line := range want {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
	if res.Record.Verdict != "complete" {
		t.Errorf("%+v", res.Record)
	}
	for _, d := range res.Network {
		if d.Host == "closed.test.example" && (d.Failed != 2 || d.Error != "connection refused") {
			t.Errorf("%+v", d)
		}
	}
}

// What waits for a server to come up sees it come up, and no earlier.
func TestEgressWaitsForServer(t *testing.T) {
	w := newWorld(t)
	w.name("db.test.example", "203.0.113.10")
	w.write("wait.py", `
import socket, time
refused = 0
for i in range(600):
    try:
        s = socket.create_connection(("db.test.example", 8080), 10); break
    except ConnectionRefusedError: refused += 1; time.sleep(0.05)
    if refused == 1: open("/tmp/first", "w"); print("refused", flush=True)
print("up", refused > 0, s.recv(5))
`)
	go func() {
		for !w.asked("db.test.example") {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond) // sooner or later is as good
		w.tcp("203.0.113.10:8080")
	}()
	out, _ := w.exec([]string{"--allow", "db.test.example:8080"}, "/usr/bin/python3", "wait.py")
	if !strings.Contains(out, "up True b'hello'") {
		t.Error(out)
	}
}

// full listens and has no room for a connection: what is sent to it is not answered.
func (w *world) full(at string) {
	w.t.Helper()
	to := netip.MustParseAddrPort(at)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}), unix.Listen(fd, 0)); err != nil {
		w.t.Fatal(err)
	}
	c, err := net.Dial("tcp", at) // the one that is queued
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
}
