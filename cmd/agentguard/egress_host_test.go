package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
)

// The stage's network namespace stands for the host: servers listen on public
// addresses that are lo's there, a name server of the test's own answers on
// 127.0.0.1:53, and nothing can leave.

// world is the world outside of a run.
type world struct {
	t   *testing.T
	dir string // of the run: its workspace
	bin string // of agentguard
	by  *loner // who runs it; nil: root

	mu      sync.Mutex
	hits    map[string]int      // connections and datagrams by address
	queries []string            // that reached the name server
	zone    map[string][]string // addresses by name; several answers are given one after the other
	silent  string              // for names below it there is no answer
	ca      *x509.Certificate
	caKey   *ecdsa.PrivateKey
}

// public is an address range of documentation that agentguard does not take for special.
const public = "203.0.113."

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.Root(t)
	if os.Getenv(stageVar) == "" {
		t.Fatal("not on the stage")
	}
	w := &world{t: t, bin: agentguard(), hits: map[string]int{}, zone: map[string][]string{}}
	var err error
	if w.dir, err = os.MkdirTemp("", "agentguard-egress-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(w.dir) })
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// By routes, and no addresses: those would be the host's own, where no name leads.
	if err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for i := 10; i < 14; i++ {
		w.ip("route", "replace", "local", fmt.Sprintf("%s%d/32", public, i), "dev", "lo")
		w.ip("route", "replace", "local", fmt.Sprintf("2001:db8:5::%d/128", i), "dev", "lo")
	}
	w.ip("addr", "replace", "169.254.169.254/32", "dev", "lo")
	w.resolver()
	return w
}

func (w *world) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// hit counts what reached a server.
func (w *world) hit(at string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits[at]++
}

func (w *world) hitsOf(at string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits[at]
}

// tcp serves connections at an address: each gets a greeting, and an echo.
func (w *world) tcp(at string) {
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
			w.hit("tcp " + at)
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "hello from %s\n", at)
				buf := make([]byte, 1000)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					_, _ = c.Write(buf[:n])
				}
			}()
		}
	}()
}

// udp answers datagrams at an address with the same.
func (w *world) udp(at string, answer func([]byte) []byte) {
	w.t.Helper()
	c, err := net.ListenPacket("udp", at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			w.hit("udp " + at)
			if b := answer(buf[:n]); b != nil {
				_, _ = c.WriteTo(b, from)
			}
		}
	}()
}

// resolver makes the host's names those of the zone.
func (w *world) resolver() {
	w.t.Helper()
	conf := filepath.Join(w.dir, ".resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.1\nsearch corp.example\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
	w.udp("127.0.0.1:53", w.answer)
}

func (w *world) answer(packet []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(packet) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queries = append(w.queries, name)
	if w.silent != "" && strings.HasSuffix(name, "."+w.silent) {
		return nil
	}
	m.Response, m.RecursionAvailable, m.Answers, m.Additionals = true, true, nil, nil
	list, ok := w.zone[name]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, s := range list {
		a := netip.MustParseAddr(s)
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

func (w *world) name(name string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone[name] = addrs
}

// asked reports whether a query for a name with this part reached the host.
func (w *world) asked(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queries {
		if strings.Contains(q, part) {
			return true
		}
	}
	return false
}

// certificate makes one for the names, of the world's own authority, whose own
// is in ca.pem of the workspace.
func (w *world) certificate(names ...string) tls.Certificate {
	w.t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			w.t.Fatal(err)
		}
		return k
	}
	issue := func(t *x509.Certificate, parent *x509.Certificate, pub any, by *ecdsa.PrivateKey) []byte {
		t.SerialNumber, t.NotBefore, t.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		b, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
		if err != nil {
			w.t.Fatal(err)
		}
		return b
	}
	if w.ca == nil {
		w.caKey = key()
		w.ca = &x509.Certificate{Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
		der := issue(w.ca, w.ca, w.caKey.Public(), w.caKey)
		if err := os.WriteFile(filepath.Join(w.dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
			w.t.Fatal(err)
		}
		w.ca, _ = x509.ParseCertificate(der)
	}
	k := key()
	der := issue(&x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, w.ca, k.Public(), w.caKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

// https serves a handler at an address with a certificate for the names.
func (w *world) https(at string, h http.Handler, names ...string) {
	w.t.Helper()
	s := &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{w.certificate(names...)}}, ReadHeaderTimeout: time.Minute}
	l, err := net.Listen("tcp", at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	go func() { _ = s.ServeTLS(l, "", "") }()
}

// write makes a file of the workspace.
func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// exec runs a command in a run with the policy flags.
func (w *world) exec(flags []string, argv ...string) (out string, res *runs.Result) {
	w.t.Helper()
	result := filepath.Join(w.t.TempDir(), "result.json")
	if w.by != nil {
		result = filepath.Join(w.by.home, "result.json")
	}
	args := append([]string{"exec", "-w", w.dir, "--json", result, "--wall", "60s"}, flags...)
	cmd := exec.Command(w.bin, append(append(args, "--"), argv...)...)
	if w.by != nil {
		cmd = w.by.as(cmd.Args...)
	}
	cmd.Dir = w.dir
	b, err := cmd.CombinedOutput()
	w.t.Logf("%q: %v", argv, err)
	j, err := os.ReadFile(result)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, b)
	}
	res = &runs.Result{}
	if err := json.Unmarshal(j, res); err != nil {
		w.t.Fatalf("%v\n%s\n%s", err, j, b)
	}
	return string(b), res
}

// denied returns how often a run's denials have this in their text.
func denied(res *runs.Result, part string) int {
	n := 0
	for _, d := range res.Denials.First {
		if strings.Contains(d.Text, part) {
			n += int(d.Count)
		}
	}
	return n
}

// neverReads accepts connections and never reads.
func (w *world) neverReads(at string) {
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
			w.t.Cleanup(func() { c.Close() })
		}
	}()
}
