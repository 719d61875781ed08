package bpf

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// lines runs an act in the run's leaf and returns the numbers it reports by name.
func (r *recorder) lines(t *testing.T, name string, args ...string) map[string]int {
	t.Helper()
	cmd := act(r.leaf, name, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("act %s: %v", name, err)
	}
	got := map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), " ")
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("act %s: %s", name, s.Text())
		}
		got[key] = n
	}
	return got
}

// Every way out of FACTS that reaches these hooks: refused with EPERM at once,
// and recorded. Loopback goes through (ECONNREFUSED where nobody listens).
func TestEgress(t *testing.T) {
	const eperm, econnrefused = int(unix.EPERM), int(unix.ECONNREFUSED)
	want := map[string]int{
		"tcp4": eperm, "tcp6": eperm, "tcp-mapped": eperm, "tcp-nat64": eperm,
		"udp4-connect": eperm, "udp6-connect": eperm, "udp-mapped-connect": eperm,
		"udp4-sendto": eperm, "udp6-sendto": eperm, "udp-mapped-sendto": eperm, "udp-connected-other": eperm,
		"tcp-fastopen": eperm, "mptcp": eperm,
		"udplite-connect": eperm, "udplite-sendto": eperm, "udplite-loopback": eperm,
		"raw-icmp": eperm, "raw-hdrincl": eperm, "raw6": eperm, "ping": eperm,
		"sctp":    int(unix.EPROTONOSUPPORT), // EPERM where the kernel has it
		"lo-udp4": 0, "lo-udp6": 0, "lo-udp-zero": 0,
		"lo-tcp4": econnrefused, "lo-tcp6": econnrefused, "lo-tcp-zero": econnrefused,
		"lo-tcp6-zero": econnrefused, "lo-tcp-mapped": econnrefused,
	}
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{})
	got := rec.lines(t, "egress")
	for _, optional := range []string{"sctp", "mptcp", "ping", "udplite-connect", "udplite-sendto", "udplite-loopback"} {
		// Not in every kernel; ping sockets are for the groups of a sysctl.
		if e := got[optional]; e == int(unix.EPROTONOSUPPORT) || e == int(unix.EACCES) || e == eperm {
			want[optional] = e
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	events, stats := rec.finish(t)
	hooked := map[string]int{}
	for _, ev := range events {
		if ev.Type == Socket {
			hooked[hookKey(&ev)]++
		}
	}
	for key, n := range map[string]int{
		"1 false 192.0.2.1:443 t1 p6":         1 + 1, // tcp4, fast open
		"1 false 2001:db8::1:443 t1 p6":       1,
		"1 false ::ffff:192.0.2.1:443 t1 p6":  1,
		"1 false 64:ff9b::c000:201:443 t1 p6": 1,
		"1 false 192.0.2.1:443 t2 p17":        1,
		"1 false 2001:db8::1:443 t2 p17":      1,
		"1 false ::ffff:192.0.2.1:443 t2 p17": 1,
		"2 false 192.0.2.1:443 t2 p17":        3, // sendto; mapped, which is a datagram over IPv4; connected to another
		"2 false 2001:db8::1:443 t2 p17":      1,
		"4 false invalid IP:0 t2 p136":        3,
		"4 false invalid IP:0 t3 p1":          1,
		"4 false invalid IP:0 t3 p255":        1,
		"1 true 127.1.2.3:9 t1 p6":            1,
		"1 true ::1:9 t1 p6":                  1,
		"1 true 0.0.0.0:9 t1 p6":              1,
		"1 true ::ffff:127.0.0.1:9 t1 p6":     1,
		"2 true 127.1.2.3:9 t2 p17":           1,
	} {
		got := hooked[key]
		if strings.Contains(key, "192.0.2.1:443 t1") && !strings.Contains(key, "ffff") && want["mptcp"] == eperm {
			got-- // MPTCP connects through a TCP subflow
		}
		if strings.HasSuffix(key, "p136") && want["udplite-connect"] != eperm {
			continue
		}
		if got != n {
			t.Errorf("%d events of %s, want %d", got, key, n)
		}
	}
	if t.Failed() {
		for key, n := range hooked {
			t.Log(n, key)
		}
	}
	if stats.TxRefused != 0 || stats.Tx.Packets == 0 || stats.Rx.Packets == 0 || stats.Tx.Bytes < 20*stats.Tx.Packets {
		t.Errorf("traffic %+v %+v, refused %d", stats.Tx, stats.Rx, stats.TxRefused)
	}
}

func hookKey(ev *Event) string {
	s := ev.Socket
	addr := s.Addr.String()
	if s.Hook == HookSocket {
		addr = "invalid IP" // none was given
	}
	return fmt.Sprintf("%d %v %s:%d t%d p%d", s.Hook, s.Allowed, addr, s.Port, s.Type, s.Protocol)
}

func TestListen(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	for _, deny := range []bool{false, true} {
		t.Run(fmt.Sprint("deny=", deny), func(t *testing.T) {
			rec := h.start(p, RunConfig{DenyListen: deny})
			got := rec.lines(t, "listen")
			want := 0
			if deny {
				want = int(unix.EPERM)
			}
			if got["bind"] != want || got["bind6"] != want {
				t.Errorf("bind: errors %v", got)
			}
			// listen(2) without a bind is told and not refused: then no connection comes in.
			if want := map[bool]int{true: int(unix.EINPROGRESS)}[deny]; got["comes"] != want {
				t.Errorf("a connection to a socket that was not bound: error %d, want %d", got["comes"], want)
			}
			events, _ := rec.finish(t)
			binds, came := 0, 0
			for _, ev := range ofType(events, Socket) {
				if ev.Socket.Hook == HookIngress {
					came++
					if s := ev.Socket; s.Allowed || int(s.Port) != got["port"] || s.Addr.String() != "127.1.2.3" || s.Protocol != unix.IPPROTO_TCP || s.Family != unix.AF_INET {
						t.Errorf("what came in: %s", describe(&ev))
					}
				}
				if ev.Socket.Hook == HookBind {
					binds++
					if ev.Socket.Allowed == deny {
						t.Errorf("verdict of %s", describe(&ev))
					}
				}
			}
			if (came > 0) != deny {
				t.Errorf("%d connections were refused", came)
			}
			listens := ofType(events, Listen)
			if deny && (binds != 2 || len(listens) != 1) || !deny && (binds != 2 || len(listens) != 3) {
				t.Fatalf("%d bind and %d listen events", binds, len(listens))
			}
			auto := listens[len(listens)-1].Socket
			if int(auto.Port) != got["port"] || auto.Addr.String() != "0.0.0.0" || auto.Protocol != unix.IPPROTO_TCP {
				t.Errorf("autobind %+v, want port %d", auto, got["port"])
			}
		})
	}
}

func TestUnixSockets(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	if !p.UnixHooks() {
		testenv.Missing(t, "connect_unix", "needs Linux 6.7")
	}
	events, _ := h.observe(p, RunConfig{}, "unix")
	var got []string
	for _, ev := range ofType(events, Unix) {
		got = append(got, fmt.Sprintf("%d %v %q", ev.Socket.Hook, ev.Socket.Allowed, ev.Socket.Text))
	}
	want := []string{`1 true "relative/agent.sock\x00"`, `1 true "\x00agent"`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var failed []string // afterwards
	for _, ev := range ofType(events, Call) {
		if ev.NR == unix.SYS_CONNECT {
			failed = append(failed, fmt.Sprintf("%v %q", unix.Errno(-ev.Ret), bytes.TrimRight(ev.Call.Addr[2:], "\x00")))
		}
	}
	want = []string{`no such file or directory "relative/agent.sock"`, `connection refused "\x00agent"`}
	if fmt.Sprint(failed) != fmt.Sprint(want) {
		t.Errorf("failed %v, want %v", failed, want)
	}
}

// A cgroup below the parent that is no run is denied everything, loopback too.
func TestUnknownLeafIsDenied(t *testing.T) {
	h := sharedHost(t)
	h.open()
	out, err := act(h.leaf(), "egress").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("operation not permitted")) {
		t.Errorf("sockets are to be had: %v %s", err, out)
	}
}

// After Close too: what is left in the cgroup can do nothing.
func TestClosedRunIsDenied(t *testing.T) {
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{})
	rec.finish(t)
	out, err := act(rec.leaf, "egress").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("operation not permitted")) {
		t.Errorf("sockets are to be had: %v %s", err, out)
	}
}
