// Package reexec starts this program again, or its companion, as a process that
// serves a run: one without root, with a configuration in memory, a socket to its supervisor, and
// a filter of its own. It parses what hostile programs write, or holds what they
// must not see.
package reexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Identity is who a process runs as: never root.
type Identity struct {
	UID, GID int
	Groups   []int
}

// Spec is what to start.
type Spec struct {
	Exe    *os.File   // another program of ours; nil: this one
	Name   string     // argv[0]
	What   string     // the process in errors, as "the network process"
	Mode   string     // the argument by which the program's main function knows it
	Config []byte     // it reads this from its standard input
	Who    Identity   //
	Files  []*os.File // its descriptors after [ControlFD]; they stay the caller's
}

// ControlFD is the process's socket to its supervisor (unix(7), SOCK_SEQPACKET).
const ControlFD = 3

// Process is a running process, as its supervisor sees it.
type Process struct {
	what   string
	cmd    *exec.Cmd
	conn   *net.UnixConn
	stderr tail
	ended  sync.Once
	err    error
}

// Start starts the program.
func Start(spec *Spec) (*Process, error) {
	var p *Process
	err := Executable(spec.Exe, func(path string) (err error) {
		p, err = start(path, spec)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.What, err)
	}
	return p, nil
}

// Executable calls start with a path of exe, or of this program where exe is nil. Where only
// root may execute that (EACCES), start is called again with the path of a copy in memory.
func Executable(exe *os.File, start func(path string) error) error {
	path := "/proc/self/exe"
	if exe != nil {
		path = fdPath(exe)
	}
	err := start(path)
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	copied, err := copyOf(path)
	if err != nil {
		return err
	}
	return errors.Join(start(fdPath(copied)), copied.Close())
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func start(exe string, spec *Spec) (*Process, error) {
	ours, theirs, err := Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	in, err := memfd(spec.Name, bytes.NewReader(spec.Config))
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer in.Close()
	// What our own caller left open is not for the process (Linux 5.11; before it, it is no danger but a leak).
	_ = unix.CloseRange(ControlFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	p := &Process{what: spec.What, conn: ours}
	p.cmd = &exec.Cmd{
		Path: exe, Args: []string{spec.Name, spec.Mode}, Env: spec.Who.Environ(), Dir: "/",
		Stdin: in, Stderr: &p.stderr, ExtraFiles: append([]*os.File{theirs}, spec.Files...),
		WaitDelay: time.Second,
		// A group of its own, for the terminal's signals, and no session: each has a share of the
		// CPU of its own (sched(7), autogroup), and every byte would wait for two shares. leaveTerminal does the rest.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return p, nil
}

// Credential is what a process of who is started with. It is nil where that is who we are: a user without root can
// take no ids, and in a user namespace give up no groups either.
func Credential(who Identity) *syscall.Credential {
	if who.UID == os.Geteuid() && who.GID == os.Getegid() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(who.UID), Gid: uint32(who.GID), Groups: ids(who.Groups)}
}

func ids(list []int) []uint32 {
	out := make([]uint32, 0, len(list))
	for _, n := range list {
		out = append(out, uint32(n))
	}
	return out
}

// Pair makes a pair of connected sockets of packets, the second for another process.
func Pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	c, err := Conn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c, theirs, nil
}

// Conn makes a connection of a unix socket's file, which it closes.
func Conn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is not a unix socket", f.Name()), c.Close())
	}
	return u, nil
}

func memfd(name string, r io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(f, r)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func copyOf(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return memfd("agentguard", f)
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// MaxRights is how many descriptors go in one message.
const MaxRights = 64

// Send sends a message with descriptors, which stay open here.
func (p *Process) Send(message string, files []*os.File) error {
	var fds []int
	var rights []byte
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := p.conn.WriteMsgUnix([]byte(message), rights, nil)
	if err != nil {
		return fmt.Errorf("handing sockets to %s: %w", p.what, err)
	}
	return nil
}

// Read calls fn for each message of up to most bytes until the process has ended
// or fn fails.
func (p *Process) Read(most int, fn func([]byte) error) error {
	buf := make([]byte, most+1)
	for {
		n, err := p.conn.Read(buf)
		if errors.Is(err, io.EOF) || err == nil && n == 0 || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err == nil {
			err = fn(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}

// Ready waits for the process's first message, which fn takes for the one that
// says that it serves, or not.
func (p *Process) Ready(limit time.Duration, most int, fn func([]byte) bool) error {
	if err := p.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	buf := make([]byte, most+1)
	n, err := p.conn.Read(buf)
	if err == nil && n > 0 && fn(buf[:n]) {
		return p.conn.SetReadDeadline(time.Time{})
	}
	if cerr := p.Close(time.Second); cerr != nil { // what it said itself tells more than that it is gone
		return cerr
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s does not serve: %w", p.what, err)
}

// Kill ends the process at once.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Finish tells the process that the run has ended. It breaks off what is open,
// reports it and exits; [Process.Read] returns when all is told.
func (p *Process) Finish() error { return p.conn.CloseWrite() }

// Close ends the process and collects it; what it said on standard error is
// part of the error. It may be called twice.
func (p *Process) Close(limit time.Duration) error {
	p.ended.Do(func() {
		_ = p.conn.Close()
		kill := time.AfterFunc(limit, func() { _ = p.cmd.Process.Kill() })
		defer kill.Stop()
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%s: %w%s", p.what, err, p.stderr.text())
		}
	})
	return p.err
}

// tail keeps the first bytes of what the process says when it fails.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const maxTail = 1024

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b[:min(len(b), maxTail-len(t.b))]...)
	return len(b), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.b) == 0 {
		return ""
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(t.b), []byte("\n\n")) // of a crash: what it was, without the stacks
	return ": " + string(first)
}
