package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// userWorld is a world whose runs are those of a user without root.
func userWorld(t *testing.T, open func(t *testing.T) *world) *world {
	t.Helper()
	w := open(t)
	w.by = alone(t)
	if err := os.Chown(w.dir, w.by.uid(), lonerGID); err != nil {
		t.Fatal(err)
	}
	return w
}

// A user's allowlist is kept by listeners and by the namespace alone, and lets out no more than root's.
func TestUserNSEgressEvasions(t *testing.T) {
	w := userWorld(t, attemptEvasions)
	out, res := w.exec(evasionFlags, "/usr/bin/python3", "attempts.py", "0.2")
	got := map[string]any{}
	line, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil || len(got) < 40 {
		t.Fatalf("%d attempts, %v\n%s", len(got), err, out)
	}
	const hello = "hello from 203.0.113.10:8443"
	want := map[string]string{
		"allowed": hello, "allowed over IPv6": hello, "allowed, mapped": hello, "allowed, any case and a dot": hello, "allowed, fast open": hello,
		"the name, beside it": hello, "other port": "111", "other port over IPv6": "111", "other port, mapped": "111",
		"its own address": "101", "its own address as 3405803786": "101", "its own address as ::ffff:203.0.113.10": "101", "metadata": "101",
		"a neighbour's synthetic address": "111", "the address under another name": "no name", "a name below it": "no name",
		"QUIC": "timeout", "QUIC, connected": "111", "QUIC, mapped": "timeout", "outer DNS": "101", "outer DNS over TCP": "101",
		"tunnel": "[3]", "tunnel below the name": "[3]", "descriptors": "[]", "metadata by name": "111",
	}
	for key, value := range got {
		text := fmt.Sprint(value)
		if expect := want[key]; expect != "" && text != expect {
			t.Errorf("%s: %s, want %s", key, text, expect)
		}
		if strings.HasPrefix(text, "hello") && !strings.HasPrefix(key, "allowed") && !strings.HasPrefix(key, "the name, b") {
			t.Errorf("%s: %s", key, text)
		}
	}
	for _, at := range evaded {
		if n := w.hitsOf(at); n > 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
	if w.asked("secret") || w.asked("corp.example") || w.asked("cdn.test") {
		t.Errorf("the host was asked for %q", w.queries)
	}
	w.inRecord(res, "deny connect api.test.example:8444", "deny dns cdn.test.example:0", "deny connect moved.test.example:80", "allow connect api.test.example:8443")
}

// What is not a connection leads out for no user either.
func TestUserNSEgressAttacks(t *testing.T) {
	w := userWorld(t, newWorld)
	got, _ := w.attack()
	for key, value := range got {
		text := fmt.Sprint(value)
		if key == "allowed" && text == "hello" || key == "bind to device" && text == "set" {
			continue
		}
		if n, err := strconv.Atoi(text); (err != nil || n <= 0) && text != "timed out" {
			t.Errorf("%s: %s", key, text)
		}
	}
}

// UDP by name and by address over both families, a wildcard, curl, and a port that is published.
func TestUserNSEgressKinds(t *testing.T) {
	w := userWorld(t, newWorld)
	for _, at := range []string{"203.0.113.10:9123", "[2001:db8:5::10]:9123"} {
		w.udp(at, func(b []byte) []byte { return b })
	}
	w.tcp("203.0.113.11:8080")
	for _, n := range []string{"time.test.example", "a.wild.test.example"} {
		w.name(n, "203.0.113.10")
	}
	w.name("b.wild.test.example", "203.0.113.11")
	w.write("udp.py", udpScript)
	w.write("more.sh", `/usr/bin/python3 -c 'import socket; print(socket.create_connection(("b.wild.test.example", 8080), 20).recv(99))'; getent hosts wild.test.example || echo none
curl -sS -m 20 http://203.0.113.10:8080/; for i in 1 2 3 4 5 6 7 8 9; do getent ahostsv4 n$i.wild.test.example >/dev/null || echo full; done`)
	out, res := w.exec([]string{
		"--allow", "udp://time.test.example:9123", "--allow", "udp://203.0.113.10:9123", "--allow", "udp://[2001:db8:5::10]:9123", "--allow", "*.wild.test.example:8080",
	}, "sh", "-c", "/usr/bin/python3 udp.py; sh more.sh 2>&1")
	want := "5 from 198.18.0.16 | 5 from 198.18.0.16 | 4000 from 198.18.0.16 | 5 from fd53:6167:7264::10 | 5 from 203.0.113.10 | 5 from ::ffff:203.0.113.10 | 5 from 2001:db8:5::10 | 111 | 101"
	for _, part := range []string{want, "hello from 203.0.113.11:8080", "none\n", "Failed to connect to 203.0.113.10", "full\nfull\n"} {
		if !strings.Contains(out, part) {
			t.Errorf("%s\nwant %s", out, part)
		}
	}
	for _, d := range res.Network {
		if d.Proto == "udp" && (d.Sent == 0 || d.Sent != d.Received) {
			t.Errorf("%+v", d)
		}
	}
	// More than there can be listeners for is refused before anything runs.
	if _, res := w.exec([]string{"--allow", "203.0.113.0/24:8000-8010"}, "true"); res.Status != 125 || !strings.Contains(res.Error, "more than 400 addresses and ports") || !strings.Contains(res.Error, "helper") {
		t.Errorf("%d %s", res.Status, res.Error)
	}
}

// Programs that people use reach what is allowed, by name and over TLS.
func TestUserNSClients(t *testing.T) {
	w := userWorld(t, newWorld)
	w.nameServers()
	repo := w.gitRepository()
	w.serveHTTPS(repo)
	w.prepareMusl()
	w.prepareGo()
	w.write("policy.yaml", fmt.Sprintf(clientPolicy, "", w.dir, repo))
	for _, c := range clients {
		switch c.name {
		case "curl", "curl over IPv6", "curl, upload", "wget", "git", "musl", "urllib", "requests", "asyncio", "node fetch", "Go":
			t.Run(c.name, func(t *testing.T) { w.fetch(t, c) })
		}
	}
}

// The process that dials has the caller's user, no right, and nothing of the run's.
func TestUserNSDialler(t *testing.T) {
	w := userWorld(t, newWorld)
	cmd := w.by.as(agentguard(), "exec", "-q", "-w", w.dir, "--publish", "18099", "--allow", "api.test.example:443", "--",
		"/usr/bin/python3", "-uc", `
import socket
s = socket.socket(); s.bind(("127.0.0.1", 18099)); s.listen(); print("up")
c, _ = s.accept(); c.send(b"inside"); c.close(); input()`)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := cmd.Start(); err1 != nil || err2 != nil || err != nil {
		t.Fatal(err1, err2, err)
	}
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("%q %v", line, err)
	}
	list := dialler()
	if len(list) != 1 {
		t.Fatalf("processes that dial: %v", list)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", list[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{fmt.Sprintf("Uid:\t%d\t", w.by.uid()), "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), field) {
			t.Errorf("no %q in %s", field, status)
		}
	}
	// Root is not the caller, and is refused as any other user.
	if c, err := net.Dial("tcp4", "127.0.0.1:18099"); err == nil {
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("another user reads %q", b)
		}
		c.Close()
	}
	if out, errs, _ := w.by.finish(w.by.as("/usr/bin/python3", "-c", `import socket; print(socket.create_connection(("127.0.0.1", 18099), 20).recv(9))`)); out != "b'inside'\n" {
		t.Errorf("the caller reads %q %q", out, errs)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil { // and then nothing is left: see alone
		t.Fatal(err)
	}
	_ = cmd.Wait()
	w.by.until("the process that dials has ended", func() bool { return len(dialler()) == 0 })
}

// A user's brokers work as root's do, and the key stays out of the run.
func TestUserNSBroker(t *testing.T) {
	w := userWorld(t, newWorld)
	m := &model{w: w, auth: map[string]int{}, proceed: make(chan struct{}, 10)}
	w.https("203.0.113.10:443", m, "api.model.example")
	w.name("api.model.example", "203.0.113.10")
	key, file := filepath.Join(w.by.home, "key"), filepath.Join(w.by.home, "brokers.yaml")
	for name, text := range map[string]string{key: brokerCanary + "\n", file: fmt.Sprintf(brokerFile, key, filepath.Join(w.dir, "ca.pem"))} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chown(name, w.by.uid(), lonerGID)); err != nil {
			t.Fatal(err)
		}
	}
	if out, errs, status := w.by.guard("actions", "approve", file); status != 0 {
		t.Fatalf("%d %q %q", status, out, errs)
	}
	w.write("program.py", sdk)
	out, res := w.exec([]string{"--broker", "model", "--actions", file, "--env", "OPENAI_BASE_URL=http://model.broker.internal/v1", "--env", "OPENAI_API_KEY=unused"}, "/usr/bin/python3", "program.py")
	if !strings.Contains(out, "answer: hi there\n") || !strings.Contains(out, "stream: one two three\n") || strings.Contains(out, brokerCanary) {
		t.Errorf("%d: %s", res.Status, out)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.auth["Bearer "+brokerCanary] != 3 || len(m.auth) != 1 {
		t.Errorf("%d credentials, ours %d times", len(m.auth), m.auth["Bearer "+brokerCanary])
	}
}
