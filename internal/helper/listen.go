package helper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
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

	spare *request // waits for the next caller
}

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
	// Only root can write to the directory: nobody else has put a socket there.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
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
	return &Listener{socket: socket, log: log, gate: newGate(), env: env}
}

// Serve accepts callers until ctx ends, and then returns: runs go on, each in a process of
// its own.
func (l *Listener) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = l.socket.Close() })()
	var err error
	if l.spare, err = l.start(); err != nil {
		return err
	}
	for {
		c, err := l.socket.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return l.spare.dismiss()
		case err != nil: // no descriptor or no memory is left for a moment
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.accept(c)
		if err := c.Close(); err != nil {
			return err
		}
	}
}

// accept hands a caller to the process that waits, and starts the next.
func (l *Listener) accept(c *net.UnixConn) {
	p, err := glimpse(c)
	if err != nil {
		e := Of(p, "refused", "")
		e.Why = err.Error()
		l.note(e)
		refuse(c, err)
		return
	}
	err, loud := l.gate.enter(p.UID)
	if err != nil {
		if loud {
			e := Of(p, "refused", "")
			e.Why = err.Error()
			l.note(e)
		}
		refuse(c, err)
		return
	}
	if err := l.hand(c, p.UID); err != nil {
		l.gate.leave(p.UID)
		e := Of(p, "refused", "")
		e.Why = err.Error()
		l.note(e)
		refuse(c, err)
	}
}

// hand gives the connection away. A spare that has died is replaced once.
func (l *Listener) hand(c *net.UnixConn, uid int) error {
	var err error
	for range 2 {
		r := l.spare
		if r == nil {
			if r, err = l.start(); err != nil {
				return err
			}
		}
		l.spare = nil
		if err = r.take(c); err == nil {
			go func() {
				_ = r.cmd.Wait() // it has told the caller and the log what it did
				l.gate.leave(uid)
			}()
			l.spare, _ = l.start() // else the next caller starts one, and hears why it cannot
			return nil
		}
		err = errors.Join(err, r.dismiss())
	}
	return err
}

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

// take gives the connection to the process.
func (r *request) take(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var fail error
	err = raw.Control(func(fd uintptr) {
		_, _, fail = r.give.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil)
	})
	if err = errors.Join(err, fail); err == nil {
		err = r.give.Close()
	}
	return err
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

// Receive is the other end of the handover: the connection of a caller, or nil when
// there is none to come.
func Receive(handover *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(handover)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), oob)
	if err != nil || n == 0 {
		return nil, nil // the listener has ended
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no connection was handed over: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no connection was handed over: %v", err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection of the caller")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the connection of the caller is no unix socket"), conn.Close())
	}
	return u, nil
}
