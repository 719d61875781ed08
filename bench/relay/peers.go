package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// The server's protocol: a byte says what is wanted, eight more how much.
const (
	wantDown = 'd' // so many bytes from the server
	wantUp   = 'u' // so many bytes to it; it answers with one byte
	wantPing = 'p' // a small answer
)

const (
	chunk  = 256 << 10 // of every read and write of a stream, at both ends
	answer = 1 << 10   // bytes of a small answer
)

func serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, chunk)
	block := make([]byte, chunk)
	for {
		var head [9]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		n := int64(binary.BigEndian.Uint64(head[1:]))
		var err error
		switch head[0] {
		case wantDown:
			for ; n > 0 && err == nil; n -= chunk {
				_, err = c.Write(block[:min(n, chunk)])
			}
		case wantUp:
			if _, err = io.CopyN(io.Discard, in, n); err == nil {
				_, err = c.Write(block[:1])
			}
		default:
			_, err = c.Write(block[:answer])
		}
		if err != nil {
			return
		}
	}
}

// serveSOCKS is a SOCKS5 relay (RFC 1928) for IPv4 without authentication. It
// copies as Go does by itself: with splice(2).
func serveSOCKS(c net.Conn) {
	defer c.Close()
	var b [10]byte
	if _, err := io.ReadFull(c, b[:3]); err != nil { // version, one method, none
		return
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return
	}
	if _, err := io.ReadFull(c, b[:]); err != nil || b[3] != 1 {
		return
	}
	to := &net.TCPAddr{IP: net.IP(b[4:8]), Port: int(binary.BigEndian.Uint16(b[8:]))}
	out, err := net.DialTCP("tcp4", nil, to)
	if err != nil {
		return
	}
	defer out.Close()
	if _, err := c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(out, c) // an end of either kind ends the direction
		_ = out.CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(c, out)
	_ = c.(*net.TCPConn).CloseWrite()
	<-done
}

// dial connects to the server, through the SOCKS relay where there is one.
func dial(o *options) (net.Conn, error) {
	if o.sock == "" {
		return net.Dial("tcp4", o.server)
	}
	to, err := net.ResolveTCPAddr("tcp4", o.server)
	if err != nil {
		return nil, err
	}
	c, err := net.Dial("tcp4", o.sock)
	if err != nil {
		return nil, err
	}
	b := append([]byte{5, 1, 0, 5, 1, 0, 1}, to.IP.To4()...)
	var reply [12]byte
	if _, err = c.Write(binary.BigEndian.AppendUint16(b, uint16(to.Port))); err == nil {
		_, err = io.ReadFull(c, reply[:])
	}
	if err == nil && reply[3] != 0 {
		err = errors.New("the SOCKS relay refused")
	}
	return c, err
}

func ask(c net.Conn, what byte, n int64) error {
	_, err := c.Write(binary.BigEndian.AppendUint64([]byte{what}, uint64(n)))
	return err
}

// measures are what a client is asked for by number: each returns values in the
// order of columns.
var measures = []struct {
	name string
	take func(o *options) ([]float64, error)
}{
	{"down", func(o *options) ([]float64, error) { return stream(o, wantDown, pull) }},
	{"up", func(o *options) ([]float64, error) { return stream(o, wantUp, push) }},
	{"requests", requests},
	{"fresh connections", fresh},
}

func pull(c net.Conn, n int64) error {
	block := make([]byte, chunk)
	for n > 0 {
		m, err := c.Read(block[:min(n, chunk)])
		if n -= int64(m); err != nil {
			return err
		}
	}
	return nil
}

func push(c net.Conn, n int64) error {
	block := make([]byte, chunk)
	for ; n > 0; n -= chunk {
		if _, err := c.Write(block[:min(n, chunk)]); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, block[:1])
	return err
}

// stream moves the megabytes once on a connection of its own: MB/s.
func stream(o *options, what byte, move func(c net.Conn, n int64) error) ([]float64, error) {
	c, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	began := time.Now()
	if err := errors.Join(ask(c, what, o.megabytes*1e6), move(c, o.megabytes*1e6)); err != nil {
		return nil, err
	}
	return []float64{float64(o.megabytes) / time.Since(began).Seconds()}, nil
}

// requests are small ones, one after the other: a second.
func requests(o *options) ([]float64, error) {
	c, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	began := time.Now()
	for range o.requests {
		if err := ping(c); err != nil {
			return nil, err
		}
	}
	return []float64{float64(o.requests) / time.Since(began).Seconds()}, nil
}

func ping(c net.Conn) error {
	if err := ask(c, wantPing, 0); err != nil {
		return err
	}
	var b [answer]byte
	_, err := io.ReadFull(c, b[:])
	return err
}

// fresh is the median time of a connect, and of one with a request, in microseconds.
func fresh(o *options) ([]float64, error) {
	var connects, took []time.Duration
	for range o.requests / 10 {
		began := time.Now()
		c, err := dial(o)
		if err != nil {
			return nil, err
		}
		connects = append(connects, time.Since(began))
		err = errors.Join(ping(c), c.Close())
		if err != nil {
			return nil, fmt.Errorf("a fresh connection: %w", err)
		}
		took = append(took, time.Since(began))
	}
	return []float64{middle(connects), middle(took)}, nil
}

func middle(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2].Microseconds())
}
