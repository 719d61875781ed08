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
	chunk  = 256 << 10
	answer = 1 << 10 // bytes of a small answer
)

func serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 64<<10)
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

func client(o *options) (result, error) {
	var r result
	c, err := dial(o)
	if err != nil {
		return r, err
	}
	defer c.Close()
	if r.Down, err = rate(o, func(n int64) error {
		_, err := io.CopyN(io.Discard, c, n)
		return errors.Join(err)
	}, func(n int64) error { return ask(c, wantDown, n) }); err != nil {
		return r, err
	}
	if r.Up, err = rate(o, func(n int64) error {
		block := make([]byte, chunk)
		for ; n > 0; n -= chunk {
			if _, err := c.Write(block[:min(n, chunk)]); err != nil {
				return err
			}
		}
		_, err := io.ReadFull(c, block[:1])
		return err
	}, func(n int64) error { return ask(c, wantUp, n) }); err != nil {
		return r, err
	}
	began := time.Now()
	for range o.requests {
		if err := ping(c); err != nil {
			return r, err
		}
	}
	r.Requests = float64(o.requests) / time.Since(began).Seconds()
	r.Connect, r.Fresh, err = fresh(o)
	return r, err
}

// rate times the transfer of a stream, in MB/s.
func rate(o *options, move, begin func(n int64) error) (float64, error) {
	n := o.megabytes * 1e6
	began := time.Now()
	if err := errors.Join(begin(n), move(n)); err != nil {
		return 0, err
	}
	return float64(o.megabytes) / time.Since(began).Seconds(), nil
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
func fresh(o *options) (connect, request float64, err error) {
	var connects, took []time.Duration
	for range o.requests / 10 {
		began := time.Now()
		c, err := dial(o)
		if err != nil {
			return 0, 0, err
		}
		connects = append(connects, time.Since(began))
		err = errors.Join(ping(c), c.Close())
		if err != nil {
			return 0, 0, fmt.Errorf("a fresh connection: %w", err)
		}
		took = append(took, time.Since(began))
	}
	return middle(connects), middle(took), nil
}

func middle(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2].Microseconds())
}
