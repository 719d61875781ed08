package supervisor

import (
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is the outcome of one relayed output stream.
type Stream struct {
	Name   string `json:"name"`   // "stdout", "stderr", or "stdout" for both when they are one file
	Total  int64  `json:"bytes"`  // what the command wrote
	Kept   int64  `json:"kept"`   // in the record
	Passed int64  `json:"passed"` // to the caller
	SHA256 string `json:"sha256"` // of all that was written
	Error  string `json:"error,omitempty"`
}

// budget is the number of bytes that stdout and stderr share; -1 is no bound. Each of both may have floor
// bytes besides what the other has left of it, so that who floods one does not silence the other.
type budget struct {
	mu    sync.Mutex
	left  int64
	floor int64
}

// maxFloor is enough for what a program says of its own failure.
const maxFloor = 64 << 10

func newBudget(most int64) *budget { return &budget{left: most, floor: min(most/16, maxFloor)} }

// share is one stream's part of a budget.
type share struct {
	*budget
	had int64
}

// take returns how many of n bytes are still within the budget.
func (s *share) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < 0 {
		return n
	}
	got := min(int64(n), s.left)
	s.left -= got
	s.had += got
	if more := min(int64(n)-got, s.floor-s.had); more > 0 {
		got, s.had = got+more, s.had+more
	}
	return int(got)
}

// relay copies what the command writes to the caller and into the record. The
// command never holds a descriptor of the caller's.
type relay struct {
	Stream
	from   *os.File   // our end of the pipe
	to     *os.File   // the caller's, or nil when it takes no more
	own    *ownWriter // writes to it, if not nil
	record io.Writer
	mu     sync.Mutex // of Stream and sum
	clean  cleaner    // of what the caller's terminal gets; nil: passed as it is
	tty    bool       // from is the master of the run's own terminal
	held   atomic.Pointer[hold]
	dead   atomic.Bool // the run is: it has had its time for end of file
	shown  []byte      // what clean has let through, reused
	broken bool        // the record takes no more
	cut    bool        // there was more than the budget
	final  bool        // given up: the numbers are in the result
	gone   bool        // the caller's reader has closed its end
	sum    hash.Hash
	keep   *share // of the record
	pass   *share // of the caller's copy; nil: everything
}

// cleaner appends what of src may be shown to dst.
type cleaner interface{ Append(dst, src []byte) []byte }

// relayChunk is what is read at once: a pipe's default size (pipe(7)).
const relayChunk = 64 << 10

// run copies until end of file: until no process of the run holds the pipe.
func (r *relay) run() {
	buf := make([]byte, relayChunk)
	for {
		n, err := r.from.Read(buf)
		if n > 0 {
			r.chunk(buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.rest(buf)
			if h := r.held.Load(); h != nil {
				h.wait()
			} else if r.dead.Load() {
				break // what the pipe still held is all there is
			}
			continue // the stop may have been over before we came to it
		}
		if err != nil {
			if err != io.EOF && !errors.Is(err, os.ErrClosed) && !(r.tty && errors.Is(err, unix.EIO)) { // EIO: nobody has the slave
				r.fail(err)
			}
			break
		}
		if r.gone { // the command gets SIGPIPE, as without us
			r.fail(r.from.Close())
			break
		}
	}
	r.endOwn()
	r.mu.Lock()
	r.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
	r.mu.Unlock()
}

func (r *relay) endOwn() {
	if r.own != nil {
		r.own.end()
		r.own = nil
	}
}

// rest copies what the pipe holds without waiting for more: a process outside
// of the run may have opened the other end (/proc/PID/fd) and keep it.
func (r *relay) rest(buf []byte) {
	rc, err := r.from.SyscallConn()
	if err != nil {
		r.fail(err)
		return
	}
	for {
		var n int
		if err = rc.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }); err != nil || n <= 0 {
			r.fail(err)
			return
		}
		r.chunk(buf[:n])
	}
}

// hold is a stop that a relay makes once it has passed on what there is.
type hold struct{ reached, over chan struct{} }

func (h *hold) wait() {
	close(h.reached)
	<-h.over
}

// holdLimit is how long a relay may take to its stop. A caller who does not read
// is not waited for.
const holdLimit = time.Second

// hold stops the relay. The copying goes on when the function that it returns is called.
func (r *relay) hold() (release func()) {
	h := &hold{reached: make(chan struct{}), over: make(chan struct{})}
	r.held.Store(h)
	if r.from.SetReadDeadline(time.Now()) == nil {
		select {
		case <-h.reached:
		case <-time.After(holdLimit):
		}
	}
	return func() {
		r.held.Store(nil)
		_ = r.from.SetReadDeadline(time.Time{}) // closed: nothing is read any more
		close(h.over)
	}
}

// chunk takes one read: first into the record, then to the caller, which may be
// slow or never read.
func (r *relay) chunk(b []byte) {
	r.keepChunk(b)
	if r.to == nil {
		return
	}
	n := len(b)
	if r.pass != nil {
		n = r.pass.take(n)
	}
	if n == 0 {
		return
	}
	b = b[:n]
	if r.clean != nil {
		r.shown = r.clean.Append(r.shown[:0], b)
		b = r.shown
	}
	var w int
	var err error
	if r.own != nil {
		w, err = r.own.Write(b)
	} else {
		w, err = writeAll(r.to, b)
	}
	r.mu.Lock()
	r.Passed += int64(w)
	r.mu.Unlock()
	if err != nil {
		r.to = nil
		broken := errors.Is(err, unix.EPIPE) || r.tty && errors.Is(err, unix.EIO) // the reader, or the terminal, is gone
		r.gone = broken && r.pass == nil                                          // a caller's copy that is cut anyway stops nothing
		if !broken {
			r.fail(err)
		}
	}
}

// Whoever shares an open file with us can make it non-blocking at any time, which is of the open file and not of
// the descriptor (fcntl(2), O_NONBLOCK); ssh(1) and node do that to their standard streams. Go knows of it only
// where it was so before.

// writeAll is a write that waits for its reader.
func writeAll(f *os.File, b []byte) (int, error) {
	n, err := f.Write(b)
	for errors.Is(err, unix.EAGAIN) && awaitFile(f, unix.POLLOUT) == nil {
		var more int
		more, err = f.Write(b[n:])
		n += more
	}
	return n, err
}

// copyAll copies until end of file, and waits for it.
func copyAll(w io.Writer, f *os.File) error {
	_, err := io.Copy(w, f)
	for errors.Is(err, unix.EAGAIN) && awaitFile(f, unix.POLLIN) == nil {
		_, err = io.Copy(w, f)
	}
	return err
}

func awaitFile(f *os.File, events int16) error {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: events}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return err
		}
	}
}

func (r *relay) keepChunk(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.final {
		return
	}
	r.Total += int64(len(b))
	r.sum.Write(b)
	n := r.keep.take(len(b))
	r.cut = r.cut || n < len(b)
	if n == 0 || r.broken { // after a failed write the copy ends: it has no holes
		return
	}
	w, err := r.record.Write(b[:n])
	r.Kept += int64(w)
	if err != nil {
		r.broken = true
		if r.Error == "" {
			r.Error = "record: " + err.Error()
		}
	}
}

// fail keeps the first error.
func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.Error == "" {
		r.Error = err.Error()
	}
}

// abandon gives up on a caller that does not read. The relay's goroutine may
// stay in its write until the process ends; its numbers are final now.
func (r *relay) abandon() Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.Stream
	r.final = true
	if s.SHA256 == "" {
		s.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
		if s.Error == "" {
			s.Error = "the caller did not read: the rest of the output was given up"
		}
	}
	return s
}

// kcmpFile is KCMP_FILE of kcmp(2): do two descriptors share one open file?
const kcmpFile = 0

func sameFile(a, b *os.File) bool {
	pid := uintptr(unix.Getpid())
	same, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, a.Fd(), b.Fd(), 0)
	return errno == 0 && same == 0
}
