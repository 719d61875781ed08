package netguard

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How bytes move. A direction that is idle holds neither buffer nor pipe: both
// are taken when the socket is readable and given back when all is written.
// What is small goes through a buffer; a direction that has moved spliceAfter
// bytes is a stream, and goes through a pipe without being copied to user space.
const (
	bufferSize  = 32 << 10
	spliceAfter = 256 << 10
	spliceChunk = 1 << 20
	maxPipes    = 128 // at once; a stream that finds none uses a buffer
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// pipePool lends pipes. Empty ones come back; one that still holds bytes, of a
// connection that was broken off, is closed.
type pipePool struct {
	mu   sync.Mutex
	free [][2]int
	made int
}

func (p *pipePool) take() ([2]int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		pipe := p.free[n-1]
		p.free = p.free[:n-1]
		return pipe, true
	}
	if p.made >= maxPipes {
		return [2]int{}, false
	}
	var pipe [2]int
	if unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return pipe, false
	}
	// More than the default of 64 KiB; refused where the user has too many pipes already.
	_, _ = unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, spliceChunk)
	p.made++
	return pipe, true
}

func (p *pipePool) put(pipe [2]int, empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if empty {
		p.free = append(p.free, pipe)
		return
	}
	p.made--
	unix.Close(pipe[0])
	unix.Close(pipe[1])
}

// budget is the number of bytes that the run may still send; below 0 at the
// start means that there is no limit.
type budget struct {
	unlimited bool
	left      atomic.Int64
}

func newBudget(n int64) *budget {
	b := &budget{unlimited: n < 0}
	b.left.Store(n)
	return b
}

// take reserves up to n bytes, and give returns what was not used.
func (b *budget) take(n int) int {
	if b == nil || b.unlimited {
		return n
	}
	for {
		left := b.left.Load()
		got := min(int64(n), left)
		if got <= 0 {
			return 0
		}
		if b.left.CompareAndSwap(left, left-got) {
			return int(got)
		}
	}
}

func (b *budget) give(n int) {
	if b != nil && !b.unlimited {
		b.left.Add(int64(n))
	}
}

func (b *budget) spent() bool { return !b.unlimited && b.left.Load() <= 0 }

// errBytes ends a connection when the run has sent all that it may.
var errBytes = errors.New("max_egress_bytes is reached")

// half is one direction of a connection.
type half struct {
	src, dst *net.TCPConn
	in, out  syscall.RawConn
	pipes    *pipePool
	budget   *budget // of what the command sends; nil the other way
	moved    atomic.Uint64
	touched  *atomic.Int64 // time of the last byte, of both directions
}

func newHalf(src, dst *net.TCPConn, pipes *pipePool, b *budget, touched *atomic.Int64) (*half, error) {
	in, err := src.SyscallConn()
	if err != nil {
		return nil, err
	}
	out, err := dst.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &half{src: src, dst: dst, in: in, out: out, pipes: pipes, budget: b, touched: touched}, nil
}

// run moves bytes until the source has ended, and passes the end on.
func (h *half) run() error {
	for {
		n, err := h.step()
		h.moved.Add(uint64(n))
		h.touched.Store(time.Now().UnixNano())
		if err == io.EOF {
			return h.dst.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}

// step waits until the source is readable and moves what it has.
func (h *half) step() (n int, err error) {
	buf, pipe, piped := (*[bufferSize]byte)(nil), [2]int{}, false
	rerr := h.in.Read(func(fd uintptr) bool {
		if h.moved.Load() >= spliceAfter {
			pipe, piped = h.pipes.take()
		}
		if piped {
			n, err = h.fill(int(fd), pipe[1])
		} else {
			buf = buffers.Get().(*[bufferSize]byte)
			n, err = h.read(int(fd), buf[:])
		}
		if err != unix.EAGAIN {
			return true
		}
		h.release(buf, pipe, &piped, true) // idle: nothing is held while waiting
		buf = nil
		return false
	})
	if rerr != nil {
		err = rerr
	}
	moved := 0
	if err == nil && piped {
		moved, err = h.drain(pipe[0], n)
	} else if err == nil {
		moved, err = h.write(buf[:n])
	}
	h.release(buf, pipe, &piped, moved == n || err == io.EOF)
	return moved, err
}

func (h *half) release(buf *[bufferSize]byte, pipe [2]int, piped *bool, empty bool) {
	if *piped {
		h.pipes.put(pipe, empty)
		*piped = false
	}
	if buf != nil {
		buffers.Put(buf)
	}
}

// read fills buf as far as the budget reaches.
func (h *half) read(fd int, buf []byte) (int, error) {
	return h.within(fd, len(buf), func(most int) (int, error) { return unix.Read(fd, buf[:most]) })
}

// fill moves bytes from the socket into the pipe.
func (h *half) fill(fd, pipe int) (int, error) {
	return h.within(fd, spliceChunk, func(most int) (int, error) {
		n, err := unix.Splice(fd, nil, pipe, nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		return int(n), err
	})
}

// within calls get for at most want bytes of the budget. When that is used up,
// a source that has no more to send may still end in order.
func (h *half) within(fd, want int, get func(most int) (int, error)) (int, error) {
	most := h.budget.take(want)
	if most == 0 {
		n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK)
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return 0, errBytes
		}
		return 0, err
	}
	for {
		n, err := get(most)
		if err == unix.EINTR {
			continue
		}
		h.budget.give(most - max(n, 0))
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// write writes all of b; drain moves all n bytes of the pipe.
func (h *half) write(b []byte) (int, error) {
	return h.push(len(b), func(fd, from int) (int, error) { return unix.Write(fd, b[from:]) })
}

func (h *half) drain(pipe, n int) (int, error) {
	return h.push(n, func(fd, from int) (int, error) {
		m, err := unix.Splice(pipe, nil, fd, nil, n-from, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		return int(m), err
	})
}

func (h *half) push(n int, put func(fd, from int) (int, error)) (int, error) {
	done := 0
	var err error
	werr := h.out.Write(func(fd uintptr) bool {
		for done < n {
			var m int
			m, err = put(int(fd), done)
			switch err {
			case nil:
				done += m
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
		err = nil
		return true
	})
	if werr != nil {
		err = werr
	}
	return done, err
}
