package supervisor_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// greeters serve TCP and UDP at one port of loopback.
func greeters(t *testing.T) (port int) {
	t.Helper()
	for range 50 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		ok(t, err)
		port = l.Addr().(*net.TCPAddr).Port
		u, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			ok(t, l.Close())
			continue
		}
		t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, "hello")
				c.Close()
			}
		}()
		go func() {
			buf := make([]byte, 100)
			for {
				n, from, err := u.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(buf[:n], from)
			}
		}()
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// Without the look-up program, and without any BPF, an allowlist is kept by
// listeners for each address and port. With packets not held up, a failure is a reset.
func TestAllowlistWithoutLookup(t *testing.T) {
	bin := testenv.SeamBinary(t)
	port := greeters(t)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	ok(t, os.WriteFile(file, fmt.Appendf(nil, `sandbox:
  network:
    allowlist: ["api.example.com:%[1]d", "*.wild.example.com:%[1]d", "udp://api.example.com:%[1]d", "127.0.0.1:9", "api.example.com:9"]
    resolve: {api.example.com: 127.0.0.1, a.wild.example.com: 127.0.0.1, b.wild.example.com: 127.0.0.1}
    allow_private: [api.example.com, "*.wild.example.com"]
`, port), 0o644))
	try := fmt.Sprintf(`import socket
port = %d
def tcp(a, p, fam=socket.AF_INET):
    s = socket.socket(fam); s.settimeout(30)
    try: s.connect((a, p)); return s.recv(9).decode() or "closed"
    except OSError as e: return e.errno
def udp(a, p):
    s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(30)
    try: s.sendto(b"echo", (a, p)); d, f = s.recvfrom(9); return d.decode() + ("" if f == (a, p) else "!")
    except OSError as e: return e.errno
def name(n, fam=socket.AF_INET):
    try: return socket.getaddrinfo(n, 0, fam)[0][4][0]
    except OSError: return "none"
a = name("api.example.com")
print(tcp(a, port), tcp(name("api.example.com", socket.AF_INET6), port, socket.AF_INET6), tcp(name("a.wild.example.com"), port), tcp(name("b.wild.example.com"), port), udp(a, port),
  "|", tcp(a, port + 1), tcp("198.18.9.9", port), tcp("192.0.2.1", port), "|", name("other.example.com"), sum(name("n%%d.wild.example.com" %% i) != "none" for i in range(20)), "|", tcp(a, 9), tcp("127.0.0.1", 9))`, port)
	for _, c := range []struct{ off, want string }{
		{"", "hello hello hello hello echo | 1 1 1 | none 20 | 111 111"},
		{"lookup", "hello hello hello hello echo | 1 1 1 | none 6 | 111 111"},
		{"programs", "hello hello hello hello echo | 111 111 101 | none 6 | 111 111"},
		{"hold", "hello hello hello hello echo | 1 1 1 | none 20 | 104 104"},
		{"lookup,hold", "hello hello hello hello echo | 1 1 1 | none 6 | 104 104"},
	} {
		if testing.Short() && c.off != "lookup" && c.off != "programs" {
			continue
		}
		out, _ := seamExecWith(t, bin, c.off, []string{"-p", file, "--allow-gap", "record"}, "/usr/bin/python3", "-c", try)
		if first, _, _ := strings.Cut(out, "\n"); first != c.want {
			t.Errorf("without %q: %q, want %q", c.off, out, c.want)
		}
	}
}
