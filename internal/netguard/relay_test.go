package netguard

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestHalfClose(t *testing.T) {
	r := newRig(t, nil)
	c, s := r.pair()
	mustWrite(t, c, "abc")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(s); err != nil || string(b) != "abc" {
		t.Fatalf("%q %v", b, err)
	}
	mustWrite(t, s, "TAIL")
	s.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "TAIL" {
		t.Fatalf("%q %v", b, err)
	}
	if e := r.ended(1)[0]; e.End != EndClosed || e.Sent != 3 || e.Received != 4 || e.Duration <= 0 {
		t.Errorf("%+v", e)
	}
}

// An urgent byte (MSG_OOB) in a stream does not stop it: splice(2) reads no further than there.
func TestUrgentByte(t *testing.T) {
	r := newRig(t, nil)
	c, s := r.pair()
	big := make([]byte, 4<<20) // goes through a pipe
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(big)
		for range 2 {
			rc, rerr := c.SyscallConn()
			var uerr error
			if rerr == nil {
				rerr = rc.Write(func(fd uintptr) bool {
					uerr = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil)
					return uerr != unix.EAGAIN
				})
			}
			_, werr := c.Write(big)
			err = errors.Join(err, rerr, uerr, werr)
		}
		sent <- errors.Join(err, c.CloseWrite())
	}()
	b, err := io.ReadAll(s)
	if err := errors.Join(err, <-sent); err != nil || len(b) < 3*len(big) {
		t.Errorf("%d bytes of %d, %v", len(b), 3*len(big), err)
	}
}

func TestResetGoesThrough(t *testing.T) {
	for _, fromClient := range []bool{true, false} {
		r := newRig(t, nil)
		c, s := r.pair()
		mustWrite(t, c, "x")
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if !fromClient {
			c, s = s, c
		}
		reset(c)
		if _, err := s.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("from the client %v: %v", fromClient, err)
		}
		if e := r.ended(1)[0]; e.End != EndReset {
			t.Errorf("%+v", e)
		}
	}
}

// A stream both ways at once, far beyond the point where pipes come in, with a
// reader that pauses: every byte arrives, in order, and no pipe is left.
func TestStream(t *testing.T) {
	r := newRig(t, nil)
	c, s := r.pair()
	const size = 8 << 20
	data := make([]byte, size)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{c, s}, {s, c}} {
		wait.Go(func() {
			if _, err := way[0].Write(data); err != nil {
				t.Error(err)
			}
			if err := way[0].CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			h := sha256.New()
			if _, err := io.CopyN(h, way[1], 1<<20); err != nil {
				t.Error(err)
			}
			time.Sleep(50 * time.Millisecond)
			if n, err := io.Copy(h, way[1]); err != nil || n != size-1<<20 {
				t.Errorf("%d %v", n, err)
			}
			if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
				t.Error("other bytes came out")
			}
		})
	}
	wait.Wait()
	if e := r.ended(1)[0]; e.Sent != size || e.Received != size || e.End != EndClosed {
		t.Errorf("%+v", e)
	}
	r.s.pipes.mu.Lock()
	defer r.s.pipes.mu.Unlock()
	if len(r.s.pipes.free) != r.s.pipes.made || r.s.pipes.made == 0 {
		t.Errorf("%d pipes of %d came back", len(r.s.pipes.free), r.s.pipes.made)
	}
}

func TestFailedDialResets(t *testing.T) {
	r := newRig(t, nil)
	r.back.Close()
	r.isReset()
	if e := r.ended(1)[0]; e.End != EndFailed || e.Errno != int(unix.ECONNREFUSED) || e.Text != "connection refused" || e.Denied {
		t.Errorf("%+v", e)
	}
}

func TestNotInTheTable(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Table = Table{} })
	r.isReset()
	if e := r.ended(1)[0]; e.Kind != KindDeny || !e.Denied {
		t.Errorf("%+v", e)
	}
}

func TestMaxConnections(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxConnections = 2 })
	r.pair()
	first, _ := r.pair()
	r.isReset()
	if e := r.ended(1)[0]; e.Kind != KindDeny || e.Limit != LimitConnections {
		t.Errorf("%+v", e)
	}
	reset(first) // gives its place back
	r.ended(2)
	r.pair()
}

// The limit is exact over all connections, and what is received does not count.
func TestMaxBytes(t *testing.T) {
	const limit = 1 << 20
	r := newRig(t, func(c *Config) { c.MaxBytes = limit })
	var got int64
	for i := range 2 {
		c, s := r.pair()
		mustWrite(t, s, "hello")
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = c.Write(make([]byte, limit*2/3)) // breaks at the limit
			_ = c.CloseWrite()
		}()
		n, err := io.Copy(io.Discard, s)
		got += n
		if i == 0 && err != nil || i == 1 && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%d: %v", i, err)
		}
		if i == 0 {
			s.Close()
			r.ended(1)
		}
	}
	list := r.ended(2)
	if e := list[1]; e.End != EndLimit || list[0].Sent+e.Sent != limit {
		t.Errorf("%+v", list)
	}
	if got > limit {
		t.Errorf("%d bytes came out", got)
	}
	r.isReset()
	if e := r.ended(3)[2]; e.Kind != KindDeny || e.Limit != LimitBytes {
		t.Errorf("%+v", e)
	}
}

func TestIdleIsBroken(t *testing.T) {
	r := newRig(t, nil)
	c, s := r.pair()
	move := func() {
		mustWrite(t, c, "x")
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	move()
	begun := time.Now()
	move()
	r.touched(begun)
	r.s.breakSilent(begun) // it was not silent since
	move()
	go r.s.breakIdle(time.Millisecond, 20*time.Millisecond)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v", err)
	}
	if e := r.ended(1)[0]; e.End != EndIdle || e.Sent != 3 {
		t.Errorf("%+v, want 3 sent", e)
	}
}

// touched waits until the one connection has noted a byte of after begun, which it
// does a moment after the byte has arrived.
func (r *rig) touched(begun time.Time) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r.s.mu.Lock()
		for c := range r.s.live {
			if c.touched.Load() >= begun.UnixNano() {
				r.s.mu.Unlock()
				return
			}
		}
		r.s.mu.Unlock()
		if time.Now().After(deadline) {
			r.t.Fatal("no byte is noted")
		}
	}
}

func TestEndOfTheRun(t *testing.T) {
	r := newRig(t, nil)
	c, _ := r.pair()
	r.s.end()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v", err)
	}
	if e := r.ended(1)[0]; e.End != EndRun {
		t.Errorf("%+v", e)
	}
}

// What a command has sent before it ended arrives, and then the end.
func TestEndPassesOnWhatWasSent(t *testing.T) {
	for range 20 {
		r := newRig(t, nil)
		r.s.pass = time.Minute // how long the machine takes is not the matter here
		c, s := r.pair()
		const size = 1 << 20
		written := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, size))
			err = errors.Join(err, c.Close())
			r.s.end()
			written <- err
		}()
		if n, err := io.Copy(io.Discard, s); n != size || err != nil {
			t.Errorf("%d of %d bytes arrived, %v", n, size, err)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		if e := r.ended(1)[0]; e.Sent != size || e.End != EndRun && e.End != EndClosed {
			t.Errorf("%+v", e)
		}
	}
}

// A peer that never reads holds up its own connection and nothing else; an idle
// connection holds its two sockets and no pipe.
func TestIdleConnectionsAreCheap(t *testing.T) {
	r := newRig(t, nil)
	before := testenv.Descriptors()
	const n = 200
	for range n {
		c, s := r.pair()
		mustWrite(t, c, "x")
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if made := testenv.Since(before); made != 4*n { // two of ours, and the test's two ends
		t.Errorf("%d descriptors for %d connections", made, n)
	}
	c, s := r.pair()
	go func() { _, _ = c.Write(make([]byte, 32<<20)) }() // nobody reads
	time.Sleep(100 * time.Millisecond)
	c2, s2 := r.pair()
	mustWrite(t, c2, "x")
	if _, err := io.ReadFull(s2, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	reset(s)
}

// goCopies relays as Go does by itself: the measure of what is here.
func goCopies(r *rig) {
	go func() {
		for {
			c, err := r.front.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				out, err := net.DialTCP("tcp4", nil, r.back.Addr().(*net.TCPAddr))
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(out, c) }()
				_, _ = io.Copy(c, out)
				c.Close()
			}()
		}
	}()
}

var relays = map[string]func(r *rig){
	"relay":   (*rig).accepts,
	"io.Copy": goCopies,
}

// BenchmarkStream moves one stream through the relay.
func BenchmarkStream(b *testing.B) {
	for name, serve := range relays {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, nil, serve)
			c, s := r.pair()
			const size = 4 << 20
			block := make([]byte, 256<<10)
			go func() {
				for {
					if _, err := s.Write(block); err != nil {
						return
					}
				}
			}()
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.CopyN(io.Discard, c, size); err != nil {
					b.Fatal(err)
				}
			}
			reset(c)
			s.Close()
		})
	}
}

// BenchmarkRequests sends small requests, one after the other, after a stream.
func BenchmarkRequests(b *testing.B) {
	for name, serve := range relays {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, nil, serve)
			c, s := r.pair()
			go func() {
				_, _ = s.Write(make([]byte, 4<<20))
				_, _ = io.Copy(s, s)
			}()
			var buf [1024]byte
			if _, err := io.CopyN(io.Discard, c, 4<<20); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(buf[:100]); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf[:100]); err != nil {
					b.Fatal(err)
				}
			}
			reset(c)
			s.Close()
		})
	}
}
