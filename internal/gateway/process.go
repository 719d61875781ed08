package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/broker"
	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/internal/reexec"
)

// dialFD is the process's socket to the one that dials. What they say to each
// other is in internal/netguard's broker.go.
const dialFD = reexec.ControlFD + 1

// Bounds of the process's memory: what the collector aims at, and what the
// kernel allows (RLIMIT_DATA: writable private memory).
const (
	softMemory = 64 << 20
	hardMemory = 1 << 30
)

// Main is the process; it returns its exit status.
func Main() int { return reexec.Main(serveProcess) }

func serveProcess() error {
	// Before the credentials come: nobody but root reads the memory of this process (ptrace(2)).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	b, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if err := os.Stdin.Close(); err != nil { // the last descriptor of that memory
		return err
	}
	cfg, err := broker.ParseConfig(b)
	clear(b)
	if err != nil {
		return err
	}
	control, err := reexec.Control()
	if err != nil {
		return err
	}
	conn, err := reexec.Conn(os.NewFile(dialFD, "dial"))
	if err != nil {
		return err
	}
	events := newReporter(func(b []byte) error { _, err := control.Write(b); return err })
	l := &link{conn: conn, waiting: map[string]chan answer{}}
	s, err := newServer(cfg, l.dial, events) // reads the host's certificates: no file is opened later
	if err != nil {
		return err
	}
	if err := lockdown.Enter(cfg.Seccomp, softMemory, hardMemory); err != nil {
		return err
	}
	s.serve()
	go l.follow(s.admit)
	events.emit(broker.Event{Kind: broker.KindReady})
	err = reexec.Receive(control, func(string, []int) error { return nil }) // until the run has ended
	s.end()
	return err
}

// link is the socket to the process that dials.
type link struct {
	conn *net.UnixConn

	mu      sync.Mutex
	next    uint64
	waiting map[string]chan answer
	gone    bool
}

// answer is what came of a dial.
type answer struct {
	conn net.Conn
	text string // why not
}

// DialError says why an upstream was not reached.
type DialError struct{ Text string }

func (e *DialError) Error() string { return e.Text }

// dial asks for a connection to an endpoint's upstream.
func (l *link) dial(ctx context.Context, e *broker.Endpoint) (net.Conn, error) {
	l.mu.Lock()
	l.next++
	n, come := strconv.FormatUint(l.next, 10), make(chan answer, 1)
	l.waiting[n] = come
	gone := l.gone
	l.mu.Unlock()
	defer l.forget(n, come)
	if gone {
		return nil, &DialError{"the process that dials has ended"}
	}
	if _, err := l.conn.Write([]byte("dial " + n + " " + e.Inside())); err != nil {
		return nil, &DialError{"the process that dials has ended"}
	}
	select {
	case a := <-come:
		if a.conn == nil {
			return nil, &DialError{a.text}
		}
		return a.conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// forget drops a dial that is over; a connection that comes too late is closed.
func (l *link) forget(n string, come <-chan answer) {
	l.mu.Lock()
	delete(l.waiting, n)
	l.mu.Unlock()
	select {
	case a := <-come:
		if a.conn != nil {
			a.conn.Close()
		}
	default:
	}
}

// follow takes connections from the process that dials.
func (l *link) follow(admit func(host string, c net.Conn)) {
	_ = reexec.Receive(l.conn, func(message string, fds []int) error {
		var c net.Conn
		for _, fd := range fds {
			if c != nil { // there is one at most
				unix.Close(fd)
				continue
			}
			var err error
			if c, err = connOf(fd); err != nil {
				return err
			}
		}
		word, rest, _ := strings.Cut(message, " ")
		switch {
		case word == "conn" && c != nil:
			go admit(rest, c)
		case word == "dialled" && c != nil:
			l.answer(rest, answer{conn: c})
		case word == "failed" && c == nil:
			n, text, _ := strings.Cut(rest, " ")
			l.answer(n, answer{text: text})
		default:
			return fmt.Errorf("%.16q from the process that dials", message)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for n, come := range l.waiting {
		come <- answer{text: "the process that dials has ended"}
		delete(l.waiting, n)
	}
}

func (l *link) answer(n string, a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if come := l.waiting[n]; come != nil {
		come <- a
		delete(l.waiting, n)
		return
	}
	if a.conn != nil {
		a.conn.Close()
	}
}
