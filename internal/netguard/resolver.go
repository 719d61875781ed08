package netguard

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// Bounds of the resolver's TCP side: a client inside gains nothing by more.
const (
	dnsConnections = 64
	dnsIdle        = 10 * time.Second
	maxDNSMessage  = 4096 // a question never needs more; RFC 1035 4.2.2 allows 65535
)

// serveUDP answers datagrams until the socket is closed.
func (s *server) serveUDP(c net.PacketConn) {
	buf := make([]byte, maxDNSMessage)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error of an earlier reply
		}
		if reply := s.resolve(buf[:n]); reply != nil {
			_, _ = c.WriteTo(reply, from) // a client that is gone needs no answer
		}
	}
}

// serveTCP answers queries over TCP (RFC 7766).
func (s *server) serveTCP(l net.Listener) {
	slots := make(chan struct{}, dnsConnections)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { c.Close(); <-slots }()
				s.serveStream(c)
			}()
		default:
			c.Close()
		}
	}
}

func (s *server) serveStream(c net.Conn) {
	buf := make([]byte, maxDNSMessage)
	for {
		if c.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(buf))
		if n > len(buf) {
			return
		}
		if _, err := io.ReadFull(c, buf[:n]); err != nil {
			return
		}
		reply := s.resolve(buf[:n])
		if reply == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// resolve answers one message. The event goes out before the answer: whoever
// sees the address in use can know its name.
func (s *server) resolve(packet []byte) []byte {
	reply, q, ok := s.dir.answer(packet, s.cfg.IPv6)
	if ok && !q.quiet {
		s.events.query(q)
	}
	return reply
}
