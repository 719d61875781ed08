package netguard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// proxyServer answers CONNECT with what answer gives, and then echoes. The
// first bytes of the destination come with the answer.
func proxyServer(t *testing.T, answer string) (addr string, asked func() []string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var list []string
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				mu.Lock()
				list = append(list, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
				mu.Unlock()
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

func TestProxy(t *testing.T) {
	const ok = "HTTP/1.1 200 Connection established\r\nX-A: b\r\n\r\nfirst"
	addr, asked := proxyServer(t, ok)
	table := compile(t, "tcp a.example 443", "tcp *.w.example 443", "tcp 203.0.113.9/32 22", "tcp 10.0.0.0/4 22", "tcp db 1", "udp a.example 443")
	for _, c := range []struct {
		dest    destination
		proto   string
		answers []string // of the host's resolver; nil: it finds nothing
		noProxy string
		names   []string
		want    string // what the proxy was asked for; "" is none
		err     error
	}{
		{dest: destination{name: "a.example", port: 443}, want: "a.example:443"},
		{dest: destination{name: "a.example", port: 443}, answers: []string{"203.0.113.1"}, want: "a.example:443"},
		{dest: destination{name: "a.example", port: 443}, answers: []string{"169.254.169.254"}, err: errPrivate},
		{dest: destination{name: "a.example", port: 443}, answers: []string{"10.0.0.1"}, names: []string{"a.example"}, want: "a.example:443"},
		{dest: destination{name: "db", port: 443}, err: errInside},
		{dest: destination{name: "db.internal", port: 443}, err: errInside},
		{dest: destination{name: "db.home.arpa", port: 443}, err: errInside},
		{dest: destination{name: "db.internal", port: 443}, names: []string{"*.internal"}, want: "db.internal:443"},
		{dest: destination{name: "pinned.example", port: 443}, want: "203.0.113.7:443"},
		{dest: destination{name: "private.example", port: 443}, err: errPrivate},
		{dest: destination{addr: netip.MustParseAddr("203.0.113.9"), port: 22}, want: "203.0.113.9:22"},
		{dest: destination{addr: netip.MustParseAddr("10.1.1.1"), port: 22}, err: errWide},
		{dest: destination{name: "a.example", port: 443}, answers: []string{"203.0.113.1"}, noProxy: ".example", err: unix.ECONNREFUSED},
		{dest: destination{addr: netip.MustParseAddr("203.0.113.9"), port: 22}, noProxy: "203.0.113.0/24", err: unix.ECONNREFUSED},
		{dest: destination{name: "a.example", port: 443}, proto: "udp", answers: []string{"203.0.113.1"}, err: unix.ECONNREFUSED},
	} {
		cfg := &Config{
			Table: *table, Proxy: &Proxy{URL: "http://user:pass%20word@" + addr, NoProxy: c.noProxy}, PrivateNames: c.names,
			Resolve: map[string]netip.Addr{"pinned.example": netip.MustParseAddr("203.0.113.7"), "private.example": netip.MustParseAddr("10.0.0.1")},
		}
		d := testDialer(t, cfg, &fakeNet{}, func() []string { return c.answers })
		if c.answers == nil {
			d.lookup = func(context.Context, string) ([]netip.Addr, error) {
				return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
			}
		}
		if c.proto == "" {
			c.proto = "tcp"
		}
		before := len(asked())
		conn, to, err := d.connect(t.Context(), c.proto, c.dest)
		if !errors.Is(err, c.err) {
			t.Errorf("%+v: %v", c.dest, err)
		}
		got := asked()[before:]
		if c.want == "" {
			if len(got) != 0 || err == nil {
				t.Errorf("%+v: the proxy was asked: %q, %v", c.dest, got, err)
			}
			continue
		}
		if len(got) != 1 || got[0] != "CONNECT "+c.want+" Basic dXNlcjpwYXNzIHdvcmQ=" || !to.via {
			t.Errorf("%+v: %q, %+v", c.dest, got, to)
		}
		var b [9]byte
		mustWrite(t, conn, "echo")
		if _, err := io.ReadFull(conn, b[:]); err != nil || string(b[:]) != "firstecho" {
			t.Errorf("%+v: %q, %v", c.dest, b, err)
		}
		conn.Close()
	}
}

// What a proxy can answer besides yes.
func TestProxyAnswers(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 403 Forbidden \x1b[31m\r\n\r\n":              "the proxy does not allow it (403)",
		"HTTP/1.0 407 secret\r\n\r\n":                          "the proxy asks for credentials (407)",
		"HTTP/1.1 503 x\r\n\r\n":                               "the proxy cannot reach it (503)",
		"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1\r\n\r\n": "the proxy answers 301",
		"SSH-2.0-hello\r\n\r\n":                                "the proxy does not speak HTTP",
		"HTTP/1.1 200 " + strings.Repeat("x", maxHead+1024):    "the proxy's answer: it is too long",
	} {
		addr, _ := proxyServer(t, answer)
		cfg := &Config{Table: *compile(t, "tcp 203.0.113.9/32 22"), Proxy: &Proxy{URL: addr}}
		d := testDialer(t, cfg, &fakeNet{}, nil)
		c, _, err := d.connect(t.Context(), "tcp", destination{addr: netip.MustParseAddr("203.0.113.9"), port: 22})
		if err == nil || err.Error() != want {
			t.Errorf("%.20q: %v", answer, err)
		}
		if c != nil && err == nil {
			c.Close()
		}
	}
}

// A proxy that says nothing ends with the run, and one that is not there is an error with its number.
func TestProxySilent(t *testing.T) {
	addr, asked := proxyServer(t, "")
	d := testDialer(t, &Config{Table: *compile(t, "tcp 203.0.113.9/32 22"), Proxy: &Proxy{URL: addr}}, &fakeNet{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for len(asked()) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, _, err := d.connect(ctx, "tcp", destination{addr: netip.MustParseAddr("203.0.113.9"), port: 22}); err == nil {
		t.Error("connected")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.proxy.URL = l.Addr().String()
	l.Close()
	if _, _, err := d.connect(t.Context(), "tcp", destination{addr: netip.MustParseAddr("203.0.113.9"), port: 22}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}

// A resolver that does not answer holds up one connection a minute.
func TestProxySlowResolver(t *testing.T) {
	addr, _ := proxyServer(t, "HTTP/1.1 200 ok\r\n\r\n")
	d := testDialer(t, &Config{Table: *compile(t, "tcp *.a.example 22"), Proxy: &Proxy{URL: addr}}, &fakeNet{}, nil)
	looks := 0
	d.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		looks++
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i := range 3 {
		c, _, err := d.connect(t.Context(), "tcp", destination{name: fmt.Sprintf("n%d.a.example", i), port: 22})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if looks != 1 {
		t.Errorf("asked %d times", looks)
	}
}

func TestProxyAddress(t *testing.T) {
	for url, want := range map[string]string{
		"http://u:p@proxy.example:3128/": "proxy.example:3128", "proxy.example:8080": "proxy.example:8080", "http://[2001:db8::1]": "[2001:db8::1]:80",
		"http://u:p@proxy.example": "proxy.example:80",
	} {
		if got, err := (&Proxy{URL: url}).Address(); got != want || err != nil {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
	for _, url := range []string{"socks5://u:secret@h:1", "https://u:secret@h", "http://u:secret@:1", "http://u:secret@h:x\x00", "://secret"} {
		if got, err := (&Proxy{URL: url}).Address(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
}
