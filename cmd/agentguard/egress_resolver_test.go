package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// A name server that misbehaves, with no proxy between: what it does to one name
// is told there, in bounded time, and nothing else notices.

// bent are the names whose answers are not as they should be.
type bent struct {
	w *world
	// free says that the queries for late names are answered.
	free atomic.Bool
}

// resolvConf makes the host's resolver ask once, for two seconds.
func (b *bent) resolvConf() {
	b.w.t.Helper()
	conf := filepath.Join(b.w.dir, ".resolv.bent")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.53\noptions timeout:2 attempts:1\n"), 0o644); err != nil {
		b.w.t.Fatal(err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		b.w.t.Fatal(err)
	}
	b.w.t.Cleanup(func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
}

// serve answers on 127.0.0.53 by UDP and TCP.
func (b *bent) serve() {
	b.w.t.Helper()
	u, err := net.ListenPacket("udp", "127.0.0.53:53")
	if err != nil {
		b.w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.53:53")
	if err != nil {
		b.w.t.Fatal(err)
	}
	b.w.t.Cleanup(func() { u.Close(); l.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			query := bytes.Clone(buf[:n])
			go func() {
				for _, a := range b.answer(query, 1232) {
					_, _ = u.WriteTo(a, from)
				}
			}()
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.stream(c)
		}
	}()
}

// stream answers one query over TCP.
func (b *bent) stream(c net.Conn) {
	defer c.Close()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return
	}
	for _, a := range b.answer(query, 65535) {
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
	}
}

// answer makes the packets for a query, each of at most so many bytes.
func (b *bent) answer(query []byte, most int) [][]byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	switch kind, _, _ := strings.Cut(q.Name.String(), "."); kind {
	case "never":
		return nil
	case "fails":
		return [][]byte{header(query, dnsmessage.RCodeServerFailure)}
	case "refuses":
		return [][]byte{header(query, dnsmessage.RCodeRefused)}
	case "garbage":
		return [][]byte{bytes.Repeat([]byte{0xff}, 500), {}, query[:1], append(header(query, 0)[:7], 0xff, 0xff, 0xff, 0xff, 0xff)}
	case "late":
		for !b.free.Load() {
			time.Sleep(10 * time.Millisecond)
		}
	case "loop": // a name that is another name for itself
		return [][]byte{pack(m, []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.CNAMEResource{CNAME: q.Name},
		}})}
	}
	if q.Type != dnsmessage.TypeA {
		return [][]byte{pack(m, nil)}
	}
	whole := pack(m, addresses(q))
	if len(whole) > most {
		m.Truncated = true
		whole = pack(m, nil)
	}
	return [][]byte{whole}
}

// addresses are those of a name: four thousand for some, of which one or none is good.
func addresses(q dnsmessage.Question) (out []dnsmessage.Resource) {
	add := func(a, b, c, d byte) {
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		out = append(out, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte{a, b, c, d}}})
	}
	kind, _, _ := strings.Cut(q.Name.String(), ".")
	for i := range 4000 {
		switch kind {
		case "private", "mixed": // the good one comes last
			add(10, 1, byte(i>>8), byte(i))
		case "huge": // the good one comes first
			add(203, 0, 113, 10)
		}
	}
	if kind != "private" {
		add(203, 0, 113, 10)
	}
	return out
}

func header(query []byte, code dnsmessage.RCode) []byte {
	out := bytes.Clone(query)
	out[2], out[3] = out[2]|0x80, 0x80|byte(code)
	return out
}

func pack(m dnsmessage.Message, answers []dnsmessage.Resource) []byte {
	m.Response, m.RecursionAvailable, m.Answers, m.Additionals = true, true, answers, nil
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// bentNames tries all of them at once, and the good one while they are at it.
const bentNames = `
import socket, sys, threading, time
sometime = ("good", "late", "mixed", "huge", "private") # have an answer
out = {}
def go(name):
    for i in range(10 if name in sometime else 1): # the answer may be too late for one try
        try:
            s = socket.create_connection((name + ".test.example", 8080), 100); out[name] = s.recv(5).decode(); s.close(); return
        except OSError as e: out[name] = e.errno or str(e)
        if out[name] != 113: return
        time.sleep(2.5) # longer than a failure is remembered
threads = [threading.Thread(target=go, args=(n,)) for n in sys.argv[1:]]
for t in threads: t.start()
go("good")
for t in threads: t.join()
print(sorted(out.items()))
`

func TestEgressBentResolver(t *testing.T) {
	w := newWorld(t)
	w.tcp("203.0.113.10:8080")
	b := &bent{w: w}
	b.serve()
	b.resolvConf()
	go func() { // what is late waits until somebody else has been served
		for w.hitsOf("tcp 203.0.113.10:8080") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		b.free.Store(true)
	}()
	w.write("bent.py", bentNames)
	out, res := w.exec([]string{"--allow", "*.test.example:8080", "--wall", "10m"}, "/usr/bin/python3", "bent.py",
		"never", "fails", "refuses", "garbage", "late", "loop", "private", "mixed", "huge")
	const lost, refused = "113", "111" // EHOSTUNREACH, ECONNREFUSED
	for name, want := range map[string]string{
		"good": "'hello'", "late": "'hello'", "mixed": "'hello'", "huge": "'hello'", "private": refused,
		"never": lost, "fails": lost, "refuses": lost, "garbage": lost, "loop": lost,
	} {
		if !strings.Contains(out, fmt.Sprintf("('%s', %s)", name, want)) {
			t.Errorf("%s is not %s", name, want)
		}
	}
	for name, text := range map[string]string{
		"never": "could not resolve the name", "fails": "could not resolve the name", "refuses": "could not resolve the name", "garbage": "could not resolve the name",
		"private": "allow_private",
	} {
		if d := destinationOf(res, name+".test.example"); d.Failed == 0 || !strings.Contains(d.Error, text) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if denied(res, "network.allow_private") == 0 || res.Record.Verdict != "complete" || res.Status != 0 {
		t.Errorf("%+v %+v\n%s", res.Denials, res.Record, out)
	}
}

func destinationOf(res *runs.Result, host string) (d runs.Destination) {
	for _, d := range res.Network {
		if d.Host == host {
			return d
		}
	}
	return d
}
