package anchor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// depth is how many lines may wait. The oldest are the most worth: a line that
// does not fit is dropped.
const depth = 64

// Queue takes lines to their places. A nil Queue takes them nowhere.
type Queue struct {
	places Places
	lines  chan []byte
	done   chan struct{}
	cancel context.CancelFunc

	mu   sync.Mutex
	lost uint64
	err  error // first failure
}

// Start returns a queue for the places, nil when there is none.
func Start(p Places) *Queue {
	if !p.any() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{places: p, lines: make(chan []byte, depth), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(q.done)
		for line := range q.lines {
			if ctx.Err() != nil {
				q.fail(errors.New("no time was left"))
				continue
			}
			q.fail(q.deliver(ctx, line))
		}
	}()
	return q
}

// Checkpoints reports whether checkpoints are wanted.
func (q *Queue) Checkpoints() bool { return q != nil && q.places.Checkpoints }

// Offer queues a line. It never waits: a line that does not fit is counted.
func (q *Queue) Offer(line []byte) {
	if q == nil {
		return
	}
	select {
	case q.lines <- line:
	default:
		q.fail(errors.New("the queue was full"))
	}
}

func (q *Queue) fail(err error) {
	if err == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost++
	if q.err == nil {
		q.err = err
	}
}

// Lost returns how many lines did not reach a place so far, and the first
// reason.
func (q *Queue) Lost() (uint64, error) {
	if q == nil {
		return 0, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost, q.err
}

// Close waits for the lines that are queued, for at most the time limit of the
// places, and gives up on the rest.
func (q *Queue) Close() {
	if q == nil {
		return
	}
	close(q.lines)
	late := time.AfterFunc(q.places.timeout(), q.cancel)
	<-q.done // the context ends what is under way
	late.Stop()
	q.cancel()
}

// deliver takes one line to every place.
func (q *Queue) deliver(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, q.places.timeout())
	defer cancel()
	var errs []error
	if q.places.File != "" {
		errs = append(errs, within(ctx, func() error { return appendFile(q.places.File, line) }))
	}
	if q.places.Syslog {
		errs = append(errs, within(ctx, func() error { return syslog(line) }))
	}
	if len(q.places.Command) > 0 {
		errs = append(errs, command(ctx, q.places.Command, line))
	}
	return errors.Join(errs...)
}

// within gives up on work that the kernel cannot be made to end, such as a write
// to a file server that does not answer; its goroutine stays.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("anchor: %w", ctx.Err())
	}
}

// appendFile adds a line in one write, so that lines of several runs do not mix
// (O_APPEND, open(2)), and waits until it is on disk.
func appendFile(name string, line []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return fmt.Errorf("anchor: %w", err)
	}
	_, err = f.Write(line)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

const devLog = "/dev/log" // syslog(3)

// syslog sends a line as RFC 3164 has it: facility auth (4), severity notice (5).
// The socket does not block: a log daemon that hangs costs a line.
func syslog(line []byte) error { return syslogTo(devLog, line) }

func syslogTo(path string, line []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	msg := append(fmt.Appendf(nil, "<%d>%s agentguard[%d]: ", 4<<3|5, time.Now().Format(time.Stamp), os.Getpid()), bytes.TrimSuffix(line, []byte("\n"))...)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("anchor: syslog: %w", err)
	}
	return nil
}

// command runs the administrator's program with the line as its input and an
// environment of only PATH.
func command(ctx context.Context, argv []string, line []byte) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(line)
	cmd.WaitDelay = 100 * time.Millisecond
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("anchor: %s: %w", argv[0], err)
	}
	return nil
}
