package netguard

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// checkLimit bounds what a healthy namespace answers at once.
const checkLimit = 10 * time.Second

// Identity is who the process runs as: never root.
type Identity struct {
	UID, GID int
	Groups   []int
}

// Process is the running process, as its supervisor sees it.
type Process struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	stderr tail
	ended  sync.Once
	err    error
}

// Start starts this program's own file again in the process's [Mode]. The
// program's main function must call [Main] for it.
func Start(cfg *Config, who Identity) (*Process, error) {
	p, err := start("/proc/self/exe", cfg, who)
	if errors.Is(err, unix.EACCES) { // a program that only root may execute
		var exe *os.File
		if exe, err = copyOfSelf(); err == nil {
			p, err = start(fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), cfg, who)
			err = errors.Join(err, exe.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("starting the network process: %w", err)
	}
	return p, nil
}

func start(exe string, cfg *Config, who Identity) (*Process, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	b, err := cfg.encode()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	in, err := memfd("agentguard network", bytes.NewReader(b))
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer in.Close()
	p := &Process{conn: ours}
	p.cmd = &exec.Cmd{
		Path: exe, Args: []string{"agentguard-net", Mode}, Env: []string{}, Dir: "/",
		Stdin: in, Stderr: &p.stderr, ExtraFiles: []*os.File{theirs},
		WaitDelay: time.Second,
		// A group of its own, for the terminal's signals, and no session: each has a share of the
		// CPU of its own (sched(7), autogroup), and every byte would wait for two shares. leaveTerminal does the rest.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{
			Uid: uint32(who.UID), Gid: uint32(who.GID), Groups: ids(who.Groups),
		}},
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return p, nil
}

func ids(list []int) []uint32 {
	out := make([]uint32, 0, len(list))
	for _, n := range list {
		out = append(out, uint32(n))
	}
	return out
}

func socketpair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "network"), os.NewFile(uintptr(fds[1]), "network")
	c, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c.(*net.UnixConn), theirs, nil
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

func copyOfSelf() (*os.File, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	return memfd("agentguard", self)
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Send hands over the sockets of the namespace.
func (p *Process) Send(n *Namespace) error {
	var roles []string
	var files []*os.File
	for _, f := range n.Spares {
		roles, files = append(roles, string(Spare)), append(files, f)
	}
	for role, f := range n.Sockets {
		roles, files = append(roles, string(role)), append(files, f)
	}
	for _, s := range n.Each {
		roles, files = append(roles, string(s.Role)), append(files, s.File)
	}
	for len(files) > 0 {
		k := min(len(files), maxRights)
		if err := p.send(roles[:k], files[:k]); err != nil {
			return err
		}
		roles, files = roles[k:], files[k:]
	}
	return p.send([]string{allSent}, nil)
}

// maxRights is how many descriptors go in one message; allSent is the message
// after the last of them.
const (
	maxRights = 64
	allSent   = "all"
)

// SendSpare hands over one more socket for a published port.
func (p *Process) SendSpare(f *os.File) error { return p.send([]string{string(Spare)}, []*os.File{f}) }

func (p *Process) send(roles []string, files []*os.File) error {
	var fds []int
	var rights []byte
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := p.conn.WriteMsgUnix([]byte(strings.Join(roles, " ")), rights, nil)
	if err != nil {
		return fmt.Errorf("handing sockets to the network process: %w", err)
	}
	return nil
}

// Read calls fn for each event until the process has ended.
func (p *Process) Read(fn func(*Event)) error {
	buf := make([]byte, maxEvent+1)
	for {
		n, err := p.conn.Read(buf)
		if errors.Is(err, io.EOF) || err == nil && n == 0 || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := parseEvent(buf[:n])
		if err != nil {
			return err
		}
		fn(&e)
	}
}

// Ready waits until the process serves.
func (p *Process) Ready(limit time.Duration) error {
	if err := p.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	buf := make([]byte, maxEvent+1)
	n, err := p.conn.Read(buf)
	if err == nil && n > 0 {
		var e Event
		if e, err = parseEvent(buf[:n]); err == nil && e.Kind == KindReady {
			return p.conn.SetReadDeadline(time.Time{})
		}
	}
	if cerr := p.Close(time.Second); cerr != nil { // what it said itself tells more than that it is gone
		return cerr
	}
	return fmt.Errorf("the network process does not serve: %w", cmp.Or(err, io.ErrUnexpectedEOF))
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
			p.err = fmt.Errorf("the network process: %w%s", err, p.stderr.text())
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
