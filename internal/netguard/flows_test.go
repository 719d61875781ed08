package netguard

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"
)

// A datagram that max_egress_bytes drops is in the account of its flow.
func TestFlowLimit(t *testing.T) {
	s, events := newTestServer(t, &Config{Table: *compile(t, "udp 127.0.0.1/32 9"), MaxConnections: 10, MaxBytes: 10})
	back, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	s.dialer.dial = func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, back.LocalAddr().String())
	}
	to := netip.MustParseAddrPort("127.0.0.1:9")
	for _, from := range []string{"127.0.0.1:1001", "127.0.0.1:1002"} {
		fl := s.flows.find(flowKey{netip.MustParseAddrPort(from), to})
		if fl == nil {
			t.Fatal("no flow")
		}
		select {
		case <-fl.ready:
		case <-time.After(time.Minute):
			t.Fatal("not dialled")
		}
		s.flows.forward(fl, []byte("12345678"))
	}
	buf := make([]byte, 100)
	if err := back.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := back.ReadFrom(buf); err != nil || string(buf[:n]) != "12345678" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	s.end()
	ends := map[string]uint64{}
	for _, e := range events() {
		ends[e.End] += e.Sent + 1
	}
	if len(ends) != 2 || ends[EndRun] != 9 || ends[EndLimit] != 1 {
		t.Errorf("%+v", events())
	}
}
