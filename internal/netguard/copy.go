package netguard

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How bytes move. A direction that is idle holds neither buffer nor pipe: both
// are taken when the socket is readable and given back when all is written.
// Requests and answers go through a buffer; a direction that has filled it
// streamAfter times is a stream, and goes through a pipe without being
// copied to user space until the source has no more than a request's worth.
// Nothing is allocated for a step: the collector would otherwise run all the time.
// What a peer does not read is held here, a buffer for each such connection: when many are
// held, the next ones are small, so that thousands of them take little and stop nobody.
const (
	bufferSize  = 32 << 10
	requestSize = 4 << 10 // less is cheaper copied
	streamAfter = 2
	spliceChunk = 1 << 20
	maxPipes    = 128 // at once; a stream that finds none uses a buffer
	maxBuffers  = 512 // at once; then they are small ones
	smallSize   = 2 << 10
)

var (
	buffers      = sync.Pool{New: func() any { return new([bufferSize]byte) }}
	smallBuffers = sync.Pool{New: func() any { return new([smallSize]byte) }}
)

// pipePool lends pipes. Empty ones come back; one that still holds bytes, of a
// connection that was broken off, is closed. It counts the buffers that are lent.
type pipePool struct {
	mu   sync.Mutex
	free [][2]int
	made int
	lent atomic.Int64 // whole buffers
}

// buffer lends one, a whole one while there are few.
func (p *pipePool) buffer() (big *[bufferSize]byte, small *[smallSize]byte) {
	if p.borrow() {
		return buffers.Get().(*[bufferSize]byte), nil
	}
	return nil, smallBuffers.Get().(*[smallSize]byte)
}

// borrow counts one more whole buffer, if there may be one.
func (p *pipePool) borrow() bool {
	for {
		n := p.lent.Load()
		if n >= maxBuffers {
			return false
		}
		if p.lent.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (p *pipePool) giveBack(big *[bufferSize]byte, small *[smallSize]byte) {
	if big != nil {
		p.lent.Add(-1)
		buffers.Put(big)
	}
	if small != nil {
		smallBuffers.Put(small)
	}
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

// half is one direction of a connection. It is run by one goroutine.
type half struct {
	dst     stream
	in, out syscall.RawConn
	pipes   *pipePool
	budget  *budget // of what the command sends; nil the other way
	moved   atomic.Uint64
	touched *atomic.Int64 // time of the last byte, of both directions

	full int // steps that had a whole buffer's worth, since the last that had little

	// What a step holds, and what it calls: made once, as closures of each step they would be garbage.
	big         *[bufferSize]byte
	small       *[smallSize]byte
	buf         []byte // one of these
	pipe        [2]int
	piped       bool
	n, done     int
	err         error
	fetch, give func(fd uintptr) bool
}

// start makes it ready to run: from in to out, which is dst's.
func (h *half) start(in, out syscall.RawConn, dst stream, pipes *pipePool, b *budget, touched *atomic.Int64) {
	h.in, h.out, h.dst, h.pipes, h.budget, h.touched = in, out, dst, pipes, b, touched
	h.fetch, h.give = h.receive, h.send
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
func (h *half) step() (int, error) {
	h.n, h.done, h.err = 0, 0, nil
	if err := h.in.Read(h.fetch); err != nil {
		h.err = err
	}
	if h.err == nil {
		if err := h.out.Write(h.give); err != nil {
			h.err = err
		}
	}
	switch {
	case h.n >= bufferSize, h.small != nil && h.n == smallSize:
		h.full++
	case h.n < requestSize:
		h.full = 0
	}
	h.release(h.done == h.n)
	return h.done, h.err
}

// release gives back what the step holds; empty says that the pipe is.
func (h *half) release(empty bool) {
	if h.piped {
		h.pipes.put(h.pipe, empty)
		h.piped = false
	}
	h.pipes.giveBack(h.big, h.small)
	h.big, h.small, h.buf = nil, nil, nil
}

// receive takes what the source has; false waits for more, with nothing held.
func (h *half) receive(fd uintptr) bool {
	if h.full >= streamAfter {
		h.pipe, h.piped = h.pipes.take()
	}
	if !h.piped {
		h.lend()
	}
	h.n, h.err = h.within(int(fd))
	if h.piped && (h.err == unix.EAGAIN || h.err == io.EOF) && readable(int(fd)) {
		h.release(true)
		h.lend()
		h.n, h.err = h.within(int(fd))
	}
	if h.err != unix.EAGAIN {
		return true
	}
	h.release(true)
	return false
}

// lend takes a buffer.
func (h *half) lend() {
	if h.big, h.small = h.pipes.buffer(); h.big != nil {
		h.buf = h.big[:]
	} else {
		h.buf = h.small[:]
	}
}

// readable reports whether a socket has bytes, where splice(2) had none: it stops before
// an urgent one (tcp(7)), for ever, and as if that were the end where the end has come
// behind it. recv(2) passes over it.
func readable(fd int) bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n > 0
}

// within reads as far as the budget reaches. When that is used up, a source
// that has no more to send may still end in order.
func (h *half) within(fd int) (int, error) {
	want := len(h.buf)
	if h.piped {
		want = spliceChunk
	}
	most := h.budget.take(want)
	if most == 0 {
		var b [1]byte // h.buf is not there when the step is piped
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK)
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return 0, errBytes
		}
		return 0, err
	}
	n, err := h.get(fd, most)
	h.budget.give(most - n)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// get reads at most so many bytes into the buffer or the pipe.
func (h *half) get(fd, most int) (n int, err error) {
	for {
		if h.piped {
			var moved int64
			moved, err = unix.Splice(fd, nil, h.pipe[1], nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			n = int(moved)
		} else {
			n, err = receiveNow(fd, h.buf[:most])
		}
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// send writes what the step holds; false waits until the destination takes more.
func (h *half) send(fd uintptr) bool {
	for h.done < h.n {
		var m int
		if h.piped {
			var moved int64
			moved, h.err = unix.Splice(h.pipe[0], nil, int(fd), nil, h.n-h.done, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			m = int(moved)
		} else {
			m, h.err = sendNow(int(fd), h.buf[h.done:h.n])
		}
		switch h.err {
		case nil:
			h.done += m
		case unix.EINTR:
		case unix.EAGAIN:
			h.err = nil
			return false
		default:
			return true
		}
	}
	h.err = nil
	return true
}
