package helper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RequestMode is how the helper starts itself for one request. Descriptor 3 is where
// it gets the connection from.
const RequestMode = "helper-request"

// Listener accepts callers and hands each to a process of its own. It reads nothing
// from them: it knows who they are, and how much they have under way.
type Listener struct {
	socket *net.UnixListener
	log    *Log
	gate   *gate
	env    []string
	gone   shedder // connections that nobody will read

	mu    sync.Mutex
	spare *request // waits for the next caller
	ended bool     // there is no next
}

// restockAfter is how long after a caller the process for the next is started, unless the
// request has ended before or the next comes earlier: the start of a run has the CPUs to itself.
const restockAfter = 20 * time.Millisecond

// request is a process that serves one connection.
type request struct {
	cmd  *exec.Cmd
	give *net.UnixConn
}

// Listen returns the socket that systemd has opened (sd_listen_fds(3)), or makes one
// at path with that mode and group.
func Listen(path string, mode os.FileMode, group int) (*net.UnixListener, error) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		return inherited()
	}
	if err := clearFor(path); err != nil {
		return nil, err
	}
	old := unix.Umask(0o777) // nobody connects before owner and mode are right
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// clearFor removes a socket that a helper has left at path, and nothing else. Only root can
// write to the directory: nobody else puts anything there, then or later.
func clearFor(path string) error {
	dir := filepath.Dir(path)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only root can write", dir)
	}
	switch err := unix.Lstat(path, &st); {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s is there, and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		err = c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return errors.Join(fmt.Errorf("somebody listens at %s already", path), err)
	}
	return os.Remove(path)
}

// inherited takes over descriptor 3.
func inherited() (*net.UnixListener, error) {
	if n := os.Getenv("LISTEN_FDS"); n != "1" {
		return nil, fmt.Errorf("systemd has passed %q sockets: the helper listens on one", n)
	}
	f := os.NewFile(3, "socket of systemd")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("the socket of systemd is no unix socket"), l.Close())
	}
	u.SetUnlinkOnClose(false) // it is systemd's
	return u, nil
}

// NewListener serves a socket. env is the whole environment of the processes that it starts.
func NewListener(socket *net.UnixListener, log *Log, env []string) *Listener {
	l := &Listener{socket: socket, log: log, env: env, gone: newShedder()}
	l.gate = newGate((&owners{path: subuidFile}).of, func(uid, unsaid int) {
		l.note(Entry{
			Outcome: "refused", UID: uid, GID: -1, Unsaid: unsaid,
			Why: fmt.Sprintf("%d more requests of user %d were refused", unsaid, uid),
		})
	})
	return l
}

// Serve accepts callers until ctx ends, and then returns: runs go on, each in a process of
// its own.
func (l *Listener) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = l.socket.Close() })()
	defer l.gate.flushAll()
	if err := l.restock(); err != nil {
		return err
	}
	for {
		c, err := l.socket.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return l.end()
		case err != nil: // no descriptor or no memory is left for a moment
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.accept(c)
	}
}

// restock starts the process for the next caller, if there is none.
func (l *Listener) restock() (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare == nil && !l.ended {
		l.spare, err = l.start()
	}
	return err
}

// end lets the process go that waits. There is no other.
func (l *Listener) end() error {
	l.mu.Lock()
	r := l.spare
	l.spare, l.ended = nil, true
	l.mu.Unlock()
	return r.dismiss()
}

// take is the process that waits; nil when there is none.
func (l *Listener) take() *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.spare
	l.spare = nil
	return r
}

// accept hands a caller to the process that waits, and closes the connection.
func (l *Listener) accept(c *net.UnixConn) {
	p, err := glimpse(c)
	if err != nil {
		l.refuse(c, p, err, true)
		return
	}
	a, loud, err := l.gate.enter(p.UID)
	if err != nil {
		l.refuse(c, p, err, loud)
		return
	}
	r, err := l.hand(c, loud)
	if err != nil {
		l.gate.leave(a, true, true)
		l.refuse(c, p, err, true)
		return
	}
	again := time.AfterFunc(restockAfter, func() { _ = l.restock() }) // else the next caller starts one, and hears why it cannot
	go func() {
		if r, err = l.taken(r, c, loud); err != nil {
			l.gate.leave(a, true, true)
			l.refuse(c, p, err, true)
		} else {
			_ = c.Close()
			_ = r.cmd.Wait() // it has told the caller and the log what it did
			l.gate.leave(a, r.cmd.ProcessState.ExitCode() == RefusedStatus, loud)
		}
		again.Stop()
		_ = l.restock()
	}()
}

// refuse tells the caller why, and the log where the refusal has a line of it.
func (l *Listener) refuse(c *net.UnixConn, p *Peer, why error, loud bool) {
	if loud {
		e := Of(p, "refused", "")
		e.Why = why.Error()
		l.note(e)
	}
	refuse(c, why)
	l.gone <- c
}

// hand gives the connection to the process that waits, or to a new one.
func (l *Listener) hand(c *net.UnixConn, loud bool) (*request, error) {
	var err error
	for range 2 {
		r := l.take()
		if r == nil {
			if r, err = l.start(); err != nil {
				return nil, err
			}
		}
		if err = r.take(c, loud); err == nil {
			return r, nil
		}
		err = errors.Join(err, r.dismiss())
	}
	return nil, err
}

// taken waits until the process says that it has the connection. One that was killed before
// is replaced once. To write to it may have worked: what it bore may have held its
// end of the socket for a moment longer.
func (l *Listener) taken(r *request, c *net.UnixConn, loud bool) (*request, error) {
	for again := true; ; again = false {
		if n, _ := r.give.Read(make([]byte, 1)); n == 1 {
			return r, r.give.Close()
		}
		err := r.dismiss()
		if !again {
			return nil, errors.Join(errors.New("the process for this request has ended before it began"), err)
		}
		if r, err = l.hand(c, loud); err != nil {
			return nil, err
		}
	}
}

// RefusedStatus is the exit status of the process of a request that was refused.
const RefusedStatus = 3

// start starts a process that waits for a caller, in a session of its own: nobody's
// terminal is its own, and no signal to ours reaches it.
func (l *Listener) start() (*request, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "handover"), os.NewFile(uintptr(pair[1]), "handover")
	defer ours.Close()
	defer theirs.Close()
	give, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", RequestMode)
	cmd.Args[0] = "agentguard"
	cmd.Env, cmd.Dir, cmd.Stderr = l.env, "/", os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, give.Close())
	}
	return &request{cmd, give.(*net.UnixConn)}, nil
}

// Words that come with the connection.
const (
	quietWord = iota // a refusal has no line of the log: the listener counts it
	loudWord
)

// take gives the connection to the process.
func (r *request) take(c *net.UnixConn, loud bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	word := byte(quietWord)
	if loud {
		word = loudWord
	}
	var fail error
	err = raw.Control(func(fd uintptr) {
		_, _, fail = r.give.WriteMsgUnix([]byte{word}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, fail)
}

// dismiss ends a process that got no caller.
func (r *request) dismiss() error {
	if r == nil {
		return nil
	}
	err := r.give.Close()
	_ = r.cmd.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// refuse tells the caller why, if it can be told at once.
func refuse(c *net.UnixConn, why error) {
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = Write(c, Failure(why.Error(), 125)) // a caller that does not read needs no answer
}

// Failure is the answer to a request that was not granted or did not succeed.
func Failure(why string, status int) *Frame {
	return &Frame{Kind: Failed, Lists: [][]string{{why, strconv.Itoa(status)}}}
}

func (l *Listener) note(e Entry) {
	if err := l.log.Write(e); err != nil {
		fmt.Fprintln(os.Stderr, "agentguard helper: its log:", err)
	}
}
