package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A name that is public when it is allowed, and private when it is dialled
// again: the second connection is refused, before anything is dialled.
func TestEgressRebinding(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.tcp("169.254.169.254:8080")
	w.name("turn.test.example", "203.0.113.10")
	w.write("turn.py", `
import socket, time
for i in range(2):
    try:
        s = socket.create_connection(("turn.test.example", 8080), 30); print(i, s.recv(99)); s.close()
    except OSError as e: print(i, e.errno)
    if i == 0:
        print("FIRST", flush=True); time.sleep(4)
`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for w.hitsOf("tcp 203.0.113.10:8080") == 0 {
			unix.Nanosleep(&unix.Timespec{Nsec: 1e7}, nil)
		}
		w.name("turn.test.example", "169.254.169.254")
	}()
	out, res := w.exec([]string{"--allow", "turn.test.example:8080"}, "/usr/bin/python3", "turn.py")
	<-done
	if !strings.Contains(out, "0 b'hello") || !strings.Contains(out, "1 111") { // refused
		t.Error(out)
	}
	if w.hitsOf("tcp 169.254.169.254:8080") != 0 || denied(res, "network.allow_private") == 0 || len(res.Denials.First) != 1 || res.Denials.First[0].Count > 2 {
		t.Errorf("%+v", res.Denials)
	}
}

// Limits end what passes them, say so, and touch nothing else.
func TestEgressLimits(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.name("api.test.example", "203.0.113.10")
	w.write("policy.yaml", `
sandbox:
  filesystem: {workspace: {path: .}}
  network: {allowlist: ["api.test.example:8080"], max_connections: 3, max_egress_bytes: 100K}
`)
	w.write("limits.py", `
import socket, time
keep, refused = [], 0
for i in range(8):
    try:
        s = socket.create_connection(("api.test.example", 8080), 5)
        if s.recv(99): keep.append(s)
        else: refused += 1
    except OSError: refused += 1
print("kept", len(keep), "refused", refused)
sent = 0
try:
    while sent < 1 << 20:
        sent += keep[0].send(b"x" * 4096); keep[0].recv(4096)
except OSError as e: print("ended", e.errno)
`)
	out, res := w.exec([]string{"-p", "policy.yaml"}, "/usr/bin/python3", "limits.py")
	if !strings.Contains(out, "kept 3 refused 5") || !strings.Contains(out, "ended ") {
		t.Error(out)
	}
	limits := map[string]int64{}
	for _, l := range res.Limits {
		limits[l.Name] = l.Hits
	}
	if limits["max_connections"] < 5 || limits["max_egress_bytes"] != 1 {
		t.Errorf("%+v", res.Limits)
	}
	if len(res.Network) != 1 || res.Network[0].Sent != 100<<10 || res.Network[0].Host != "api.test.example" {
		t.Errorf("%+v", res.Network)
	}
}

// When the process that dials is killed, connects are refused at once, the
// record says what it lacks, and the run goes on.
func TestDiallerDies(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.name("api.test.example", "203.0.113.10")
	w.write("dies.py", `
import socket, time
def go():
    try: return socket.create_connection(("198.18.0.16", 8080), 5).recv(9).decode()
    except OSError as e: return e.errno
print(go(), flush=True)
for i in range(200):
    if go() != "hello fro": break
    time.sleep(0.05)
print("then", go())
`)
	killed := make(chan bool)
	go func() {
		for w.hitsOf("tcp 203.0.113.10:8080") == 0 {
			unix.Nanosleep(&unix.Timespec{Nsec: 1e7}, nil)
		}
		list := dialler()
		killed <- len(list) == 1 && unix.Kill(list[0], unix.SIGKILL) == nil
	}()
	out, res := w.exec([]string{"--allow", "api.test.example:8080"}, "/usr/bin/python3", "dies.py")
	if !<-killed || !strings.Contains(out, "hello fro") || !strings.Contains(out, "then 111") || res.Status != 0 {
		t.Error(out)
	}
	if res.Record.Verdict == "complete" || !strings.Contains(strings.Join(res.Record.Findings, " "), "network") {
		t.Errorf("%+v", res.Record)
	}
}

// dialler lists the processes of this stage that dial for runs.
func dialler() []int {
	var out []int
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range list {
		b, _ := os.ReadFile(f)
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil && strings.HasPrefix(string(b), "agentguard-net\x00") && sameNet(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// sameNet reports whether a process is on this test's stage.
func sameNet(pid int) bool {
	a, err1 := os.Readlink("/proc/self/ns/net")
	b, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err1 == nil && err2 == nil && a == b
}

// Many connections at once, and a peer that never reads: bounded memory and
// descriptors, and the others go on.
func TestEgressManyConnections(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.neverReads("203.0.113.11:8080")
	w.name("api.test.example", "203.0.113.10")
	w.name("silent.test.example", "203.0.113.11")
	w.write("many.py", `
import socket, threading
silent = socket.create_connection(("silent.test.example", 8080), 10); silent.setblocking(False)
stuck = 0
try:
    for i in range(4000): stuck += silent.send(b"x" * 65536)
except BlockingIOError: pass
socks, bad = [], 0
for i in range(1000):
    s = socket.socket(); s.settimeout(30)
    try: s.connect(("198.18.0.16", 8080)); socks.append(s)
    except OSError: bad += 1
for s in socks:
    try:
        if not s.recv(99): bad += 1
        s.send(b"x"); s.recv(1)
    except OSError: bad += 1
print("stuck", 0 < stuck < 100 << 20, "good", len(socks), "bad", bad)
`)
	out, res := w.exec([]string{"--allow", "api.test.example:8080", "--allow", "silent.test.example:8080"}, "/usr/bin/python3", "many.py")
	if !strings.Contains(out, "stuck True good 1000 bad 0") || res.Record.Verdict != "complete" {
		t.Error(out, res.Record)
	}
	for _, d := range res.Network {
		if d.Host == "api.test.example" && d.Connections != 1000 {
			t.Errorf("%+v", d)
		}
	}
}

// udpScript sends datagrams in all the ways that there are, and says what came back.
const udpScript = `
import socket
def go(to, n=5, connect=False, fam=socket.AF_INET):
    s = socket.socket(fam, socket.SOCK_DGRAM); s.settimeout(10)
    try:
        if connect: s.connect(to); s.send(b"x" * n); d, f = s.recv(65535), s.getpeername()
        else: s.sendto(b"x" * n, to); d, f = s.recvfrom(65535)
        return "%d from %s" % (len(d), f[0])
    except OSError as e: return e.errno
name = ("time.test.example", 9123)
print(go(name), "|", go(name, connect=True), "|", go(name, 4000), "|", go(name, fam=socket.AF_INET6), "|", go(("203.0.113.10", 9123)), "|",
    go(("::ffff:203.0.113.10", 9123), fam=socket.AF_INET6), "|", go(("2001:db8:5::10", 9123), fam=socket.AF_INET6), "|", go((name[0], 9124), connect=True), "|", go(("203.0.113.11", 9123)))
`

// Datagrams of an allowed name come back from the address that they went to,
// over both families, up to the largest.
func TestEgressUDP(t *testing.T) {
	w := newWorld(t)
	for _, at := range []string{"203.0.113.10:9123", "[2001:db8:5::10]:9123"} {
		w.udp(at, func(b []byte) []byte { return b })
	}
	w.name("time.test.example", "203.0.113.10")
	w.write("udp.py", udpScript)
	out, res := w.exec([]string{"--allow", "udp://time.test.example:9123", "--allow", "udp://203.0.113.10:9123", "--allow", "udp://[2001:db8:5::10]:9123"}, "/usr/bin/python3", "udp.py")
	want := "5 from 198.18.0.16 | 5 from 198.18.0.16 | 4000 from 198.18.0.16 | 5 from fd53:6167:7264::10 | 5 from 203.0.113.10 | 5 from ::ffff:203.0.113.10 | 5 from 2001:db8:5::10 | 1 | 1"
	if !strings.Contains(out, want) {
		t.Errorf("%s\nwant %s", out, want)
	}
	for _, d := range res.Network {
		if d.Proto != "udp" || d.Sent == 0 || d.Sent != d.Received {
			t.Errorf("%+v", d)
		}
	}
}

// The process that dials ends with its supervisor, however that ends.
func TestDiallerDiesWithSupervisor(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(agentguard(), "exec", "-q", "-w", w.dir, "--allow", "api.test.example:443", "--", "sh", "-c", "echo up; sleep 100")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if len(dialler()) != 1 {
		t.Fatalf("processes that dial: %v", dialler())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for range 500 {
		if len(dialler()) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("still there: %v", dialler())
}

// The process that dials is under limits of its own.
func TestDiallerIsBounded(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(agentguard(), "exec", "-q", "-w", w.dir, "--allow", "api.test.example:443", "--", "sh", "-c", "echo up; read x")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	list := dialler()
	if len(list) != 1 {
		t.Fatalf("processes that dial: %v", list)
	}
	for _, name := range [][]string{{"pids.max", "256"}, {"memory.max", "1073741824", "memory.limit_in_bytes", "1073741824"}} {
		if !limited(list[0], name) {
			t.Errorf("no %s", name)
		}
	}
	_, err := io.WriteString(in, "\n")
	if err = errors.Join(err, cmd.Wait()); err != nil {
		t.Error(err)
	}
}

// limited looks in a process's cgroups for a file with a value, of several.
func limited(pid int, files []string) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(b)) { // NUMBER:CONTROLLERS:PATH
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			for i := 0; i < len(files); i += 2 {
				found, _ := filepath.Glob(filepath.Join(root, path, files[i]))
				for _, f := range found {
					if v, _ := os.ReadFile(f); strings.Contains(path, "-net/") && strings.TrimSpace(string(v)) == files[i+1] {
						return true
					}
				}
			}
		}
	}
	return false
}

// Ten thousand names work as one does: the first, the last and one in the middle are
// reached, each with its own ports, and one that is not among them is not.
func TestEgressTenThousandNames(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	w.tcp("203.0.113.10:8081")
	var list strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&list, "      - n%d.test.example:%d\n", i, 8080+i%2)
	}
	for _, i := range []int{0, 4999, 9999} {
		w.name(fmt.Sprintf("n%d.test.example", i), "203.0.113.10")
	}
	w.name("n10000.test.example", "203.0.113.10")
	w.write("policy.yaml", "sandbox:\n  filesystem: {workspace: {path: .}}\n  network:\n    allowlist:\n"+list.String())
	w.write("names.py", `
import socket
def go(i, port):
    try: return socket.create_connection(("n%d.test.example" % i, port), 30).recv(5).decode()
    except socket.gaierror: return "no name"
    except OSError as e: return e.errno
print([go(i, p) for i in (0, 4999, 9999, 10000) for p in (8080, 8081)])
`)
	out, res := w.exec([]string{"-p", "policy.yaml"}, "/usr/bin/python3", "names.py")
	if !strings.Contains(out, "['hello', 1, 1, 'hello', 1, 'hello', 'no name', 'no name']") || res.Record.Verdict != "complete" {
		t.Errorf("%s %+v", out, res.Record)
	}
	if denied(res, "n4999.test.example:8080") == 0 || denied(res, "n10000.test.example") == 0 {
		t.Errorf("%+v", res.Denials)
	}
}
