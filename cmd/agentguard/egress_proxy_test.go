package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// proxy is a corporate proxy: it wants credentials and finds names that the
// host does not, at the address that it leads every one of them to.
func (w *world) proxy(at, credentials, leadsTo string) {
	w.t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.tunnel(c, credentials, leadsTo)
		}
	}()
}

func (w *world) tunnel(c net.Conn, credentials, leadsTo string) {
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	w.hit("CONNECT " + r.Host)
	if r.Header.Get("Proxy-Authorization") != credentials {
		_, _ = io.WriteString(c, "HTTP/1.1 407 who\r\n\r\n")
		return
	}
	_, port, _ := net.SplitHostPort(r.Host)
	out, err := net.Dial("tcp", net.JoinHostPort(leadsTo, port))
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 no\r\n\r\n")
		return
	}
	defer out.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 ok\r\n\r\n")
	go func() { _, _ = io.Copy(out, c); _ = out.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(c, out)
}

// A host that reaches the world by a proxy only: the command needs to know
// nothing of it, and learns nothing of it.
func TestEgressProxy(t *testing.T) {
	w := newWorld(t)
	w.proxy("203.0.113.12:3128", "Basic dXNlcjpwYSRzd29yZA==", "203.0.113.10")
	w.tcp("203.0.113.10:8080")
	w.tcp("203.0.113.11:8080")
	w.name("proxy.test.example", "203.0.113.12")
	w.name("near.test.example", "203.0.113.11")
	w.name("trap.test.example", "169.254.169.254")
	for name, value := range map[string]string{"https_proxy": "http://user:pa$sword@proxy.test.example:3128", "no_proxy": "near.test.example", "all_proxy": "socks5://unused.example"} {
		t.Setenv(name, value)
	}
	w.write("go.py", `
import os, socket
for host in ("far.test.example", "near.test.example", "203.0.113.10", "trap.test.example", "db.internal", "proxy.test.example"):
    try:
        s = socket.create_connection((host, 8080), 10); print(host, s.recv(99).decode().strip() or "closed"); s.close()
    except OSError as e: print(host, e.errno)
for family in (socket.AF_INET, socket.AF_INET6):
    try:
        s = socket.socket(family); s.settimeout(10); s.connect(socket.getaddrinfo("closed.test.example", 8081, family)[0][4]); print("reached by", family)
    except OSError as e: print("closed by", int(family), e.errno)
print(sorted(k for k in os.environ if "proxy" in k.lower()))
`)
	flags := []string{
		"--allow", "far.test.example:8080", "--allow", "near.test.example:8080", "--allow", "203.0.113.10:8080",
		"--allow", "trap.test.example:8080", "--allow", "db.internal:8080", "--allow", "closed.test.example:8081",
	}
	out, res := w.exec(flags, "/usr/bin/python3", "go.py")
	for _, want := range []string{
		"far.test.example hello from 203.0.113.10:8080", "near.test.example hello from 203.0.113.11:8080", "203.0.113.10 hello from 203.0.113.10:8080",
		"proxy.test.example -2", "\nclosed by 2 113\nclosed by 10 113\n[]\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, host := range []string{"trap.test.example", "db.internal"} {
		if strings.Contains(out, host+" hello") || strings.Contains(out, host+" -") {
			t.Errorf("%s in\n%s", host, out)
		}
	}
	for at, want := range map[string]int{
		"CONNECT far.test.example:8080": 1, "CONNECT 203.0.113.10:8080": 1, "CONNECT near.test.example:8080": 0,
		"CONNECT trap.test.example:8080": 0, "CONNECT db.internal:8080": 0, "CONNECT closed.test.example:8081": 2, // one for each family
	} {
		if got := w.hitsOf(at); got != want {
			t.Errorf("%s: %d times, want %d\n%s\n%s", at, got, want, out, w.lines(res, "\"phase\":\"command\""))
		}
	}
	if denied(res, "network.allow_private") != 4 {
		t.Errorf("%+v", res.Denials)
	}
	w.inRecord(res, "allow connect far.test.example:8080", "deny connect db.internal:8080")
	if err := noSecret(res.Record.Path, "pa$sword", "pa%24sword", "dXNlcjpw"); err != nil {
		t.Error(err)
	}
}

// noSecret looks for bytes in all files of a directory.
func noSecret(dir string, parts ...string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, p := range parts {
			if bytes.Contains(b, []byte(p)) {
				return fmt.Errorf("%s has %q", path, p)
			}
		}
		return err
	})
}
