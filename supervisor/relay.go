package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"sync"
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

// budget is the number of bytes that stdout and stderr share; -1 is no bound.
type budget struct {
	mu   sync.Mutex
	left int64
}

// take returns how many of n bytes are still within the budget.
func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 0 {
		return n
	}
	got := min(int64(n), b.left)
	b.left -= got
	return int(got)
}

// relay copies what the command writes to the caller and into the record. The
// command never holds a descriptor of the caller's.
type relay struct {
	Stream
	from   *os.File // our end of the pipe
	to     *os.File // the caller's, or nil when it takes no more
	record io.Writer
	mu     sync.Mutex // of Stream and sum
	clean  *sanitizer // of what the caller's terminal gets; nil: passed as it is
	shown  []byte     // what clean has let through, reused
	broken bool       // the record takes no more
	final  bool       // given up: the numbers are in the result
	gone   bool       // the caller's reader has closed its end
	sum    hash.Hash
	keep   *budget // of the record
	pass   *budget // of the caller's copy; nil: everything
}

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
		if errors.Is(err, os.ErrDeadlineExceeded) { // the run is dead: what the pipe still holds is all there is
			r.rest(buf)
			break
		}
		if err != nil {
			if err != io.EOF && !errors.Is(err, os.ErrClosed) {
				r.fail(err)
			}
			break
		}
		if r.gone { // the command gets SIGPIPE, as without us
			r.fail(r.from.Close())
			break
		}
	}
	r.mu.Lock()
	r.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
	r.mu.Unlock()
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
		r.shown = r.clean.filter(r.shown[:0], b)
		b = r.shown
	}
	w, err := r.to.Write(b)
	r.mu.Lock()
	r.Passed += int64(w)
	r.mu.Unlock()
	if err != nil {
		r.to = nil
		broken := errors.Is(err, unix.EPIPE)
		r.gone = broken && r.pass == nil // a caller's copy that is cut anyway stops nothing
		if !broken {
			r.fail(err)
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

// stdio is the command's side of the relay and ours.
type stdio struct {
	childIn, childOut, childErr *os.File // given to the command, then closed here
	in                          *os.File // our end of stdin, nil when the command gets none
	outs                        []*relay
	wait                        sync.WaitGroup
}

// own gives the pipes to the command's user: programs reopen their streams by
// name (/dev/stdout), and the inode's mode is 0600.
func (s *stdio) own(id Identity) error {
	var errs []error
	for _, f := range []*os.File{s.childIn, s.childOut, s.childErr} {
		errs = append(errs, f.Chown(id.UID, id.GID))
	}
	return errors.Join(errs...)
}

// newStdio makes the pipes. stdout and stderr share one pipe when the caller's
// are one open file, so that the order of writes holds. Without stdin the
// command reads end of file at once.
func newStdio(stdin bool, stdout, stderr *os.File) (*stdio, error) {
	s := &stdio{}
	var err error
	if s.childIn, s.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	if !stdin {
		if err = s.in.Close(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.in = nil
	}
	out := &relay{Stream: Stream{Name: "stdout"}, to: stdout}
	if out.from, s.childOut, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.outs = []*relay{out}
	if sameFile(stdout, stderr) {
		s.childErr = s.childOut
		return s, nil
	}
	e := &relay{Stream: Stream{Name: "stderr"}, to: stderr}
	if e.from, s.childErr, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.outs = append(s.outs, e)
	return s, nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// kcmpFile is KCMP_FILE of kcmp(2): do two descriptors share one open file?
const kcmpFile = 0

func sameFile(a, b *os.File) bool {
	pid := uintptr(unix.Getpid())
	same, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, a.Fd(), b.Fd(), 0)
	return errno == 0 && same == 0
}

// start begins to copy. stdin is read from the caller until end of file; what
// the command does not read before it ends is lost, as with ssh(1).
func (s *stdio) start(stdin *os.File, limits Limits, files map[string]*os.File) {
	keep := &budget{left: limits.Stdout}
	var pass *budget
	if limits.CutHere {
		pass = &budget{left: limits.Stdout}
	}
	for _, r := range s.outs {
		if limits.Sanitize && isTerminal(r.to) {
			r.clean = &sanitizer{}
		}
		r.keep, r.pass, r.record, r.sum = keep, pass, files[r.Name], sha256.New()
		s.wait.Go(r.run)
	}
	if s.in != nil {
		go func(w *os.File) { // ends with the process when the caller never closes its end
			_, _ = io.Copy(w, stdin) // EPIPE: the command is gone, and so is its interest
			w.Close()
		}(s.in)
		s.in = nil
	}
}

// closeChild closes the command's ends, so that end of file can be seen.
func (s *stdio) closeChild() error {
	if s.childErr == s.childOut {
		s.childErr = nil
	}
	var errs []error
	for _, f := range []*os.File{s.childIn, s.childOut, s.childErr} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	s.childIn, s.childOut, s.childErr = nil, nil, nil
	return errors.Join(errs...)
}

// pipeGrace is how long a dead run's pipes may take to come to their end.
const pipeGrace = time.Second

// finish waits for the copies of a dead run. A slow reader is waited for, as
// without us, until giveUp says otherwise.
func (s *stdio) finish(giveUp <-chan struct{}) []Stream {
	done := make(chan struct{})
	go func() {
		s.wait.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-giveUp:
	case <-time.After(pipeGrace):
		for _, r := range s.outs {
			r.fail(ignoreClosed(r.from.SetReadDeadline(time.Now())))
		}
		select {
		case <-done:
		case <-giveUp:
		}
	}
	var out []Stream
	for _, r := range s.outs {
		out = append(out, r.abandon())
	}
	return out
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Close releases everything that start did not hand out.
func (s *stdio) Close() error {
	errs := []error{s.closeChild()}
	if s.in != nil {
		errs = append(errs, s.in.Close())
	}
	for _, r := range s.outs {
		errs = append(errs, ignoreClosed(r.from.Close()))
	}
	return errors.Join(errs...)
}
