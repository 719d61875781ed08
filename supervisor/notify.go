package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/metadata"
	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/internal/seccomp"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// Where there is no sensor, the command's own filter reports to us:
//
//	supervisor                            PID 2
//	                                      seccomp(NEW_LISTENER)
//	  recvmsg <--- the listener --------- sendmsg
//	  answers <--- refused calls, execve  canary, execve, the command
//
// From the sendmsg on the command's calls wait for us, so we read before the list of
// calls is sent, and until nothing of the run is left. If we die, the calls fail, and
// PID 1's lifeline ends the run.

// notifier is the source of events of a run without a sensor.
type notifier struct {
	ours        *os.File      // of a socket
	theirs      *os.File      // its other end, which PID 2 has until execve
	closeTheirs func() error  // once
	ready       chan struct{} // closed when listener is there, or will not be
	listener    *notify.Listener
	died        bool              // PID 2 had ended before it sent one; after ready
	metadata    *metadata.Changer // nil: what the filter refuses of it stays refused
	done        sync.WaitGroup
	err         error        // why it reads no more; after done
	stop        func() error // nil: it was not started
}

// openNotify makes the way that the listener comes.
func (r *Run) openNotify() error {
	if !r.plan.Notify || r.asked != nil {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	r.asked = &notifier{ours: os.NewFile(uintptr(pair[0]), "listener"), theirs: os.NewFile(uintptr(pair[1]), "listener"), ready: make(chan struct{})}
	if err := r.asked.openMetadata(r.plan); err != nil {
		return errors.Join(err, r.asked.ours.Close(), r.asked.theirs.Close())
	}
	r.asked.closeTheirs = sync.OnceValue(r.asked.theirs.Close)
	r.materials.notify = r.asked.theirs
	r.release.push("notifications", r.asked.close)
	return nil
}

// startNotify reads from before PID 2 has a filter.
func (r *Run) startNotify() {
	n := r.asked
	if n == nil {
		return
	}
	n.stop = sync.OnceValue(n.end)
	proc := r.proc
	n.done.Go(func() {
		if n.err = n.serve(r.rec, r.plan.seccomp()); n.err != nil {
			r.cfg.Log.Error().Err(n.err).Msg("notifications")
			r.rec.blind.Store(true)
			if err := proc.Hangup(); err != nil { // what it asks from now on fails: it must not go on so
				r.cfg.Log.Error().Err(err).Msg("lifeline")
			}
		}
		r.rec.flushAll()
	})
}

// serve receives the listener and answers until it is stopped.
func (n *notifier) serve(rec *recorder, filter seccomp.Config) error {
	l, err := n.receive(filter)
	n.died = l == nil && err == nil
	close(n.ready)
	if l == nil {
		return err
	}
	return errors.Join(l.Serve(rec.notified), l.Close())
}

// receive makes a reader of the listener; nil without an error: the process died before.
func (n *notifier) receive(filter seccomp.Config) (*notify.Listener, error) {
	fd, err := receiveListener(n.ours)
	if err != nil || fd == nil {
		return nil, err
	}
	n.listener, err = notify.New(fd, notify.Config{
		Decide: func(nr int, args [6]uint64) unix.Errno { return filter.DecideNotified(nr, args).Errno() },
		Paths:  refusedPaths(), Instead: n.instead(filter),
	})
	return n.listener, err
}

// receiveListener waits for the message of PID 2; nil: it died before.
func receiveListener(f *os.File) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := unix.Recvmsg(int(f.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvmsg", err)
		}
		if n == 0 {
			return nil, nil
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(msgs) != 1 {
			return nil, fmt.Errorf("the listener's message: %w", errors.Join(err, unix.EPROTO))
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			return nil, fmt.Errorf("the listener's message: %w", errors.Join(err, unix.EPROTO))
		}
		return os.NewFile(uintptr(fds[0]), "listener"), nil
	}
}

// sent is called when PID 2 has its end of the socket, or will never have it: ours would keep
// the reader waiting for one that died.
func (n *notifier) sent() error {
	if n == nil {
		return nil
	}
	return n.closeTheirs()
}

// end stops the reader. The run's processes must be gone: one that lives waits for an answer.
func (n *notifier) end() error {
	err := n.closeTheirs()
	select {
	case <-n.ready:
	default: // no message will be waited for, whoever has the other end
		if serr := unix.Shutdown(int(n.ours.Fd()), unix.SHUT_RD); serr != nil && serr != unix.ENOTCONN {
			err = errors.Join(err, os.NewSyscallError("shutdown", serr))
		}
		<-n.ready
	}
	if n.listener != nil {
		err = errors.Join(err, n.listener.Stop())
	}
	n.done.Wait()
	return errors.Join(err, n.err)
}

// emptied waits until no process of the run is left, or for so long; false: that is not known.
func (n *notifier) emptied(limit time.Duration) bool {
	if n == nil || n.stop == nil {
		return false
	}
	late := time.After(limit)
	select {
	case <-n.ready:
	case <-late: // somebody may yet send it
		return false
	}
	if n.listener == nil {
		return n.died
	}
	select {
	case <-n.listener.Empty():
		return true
	case <-late:
		return false
	}
}

func (n *notifier) close() error {
	var err error
	if n.stop != nil {
		err = n.stop()
	} else {
		err = n.closeTheirs()
	}
	return errors.Join(err, n.ours.Close(), n.closeMetadata())
}

// openMetadata is for a run that is kept from changing metadata by path: where it may write,
// we change it. With capabilities we would be more than the command, and leave it.
func (n *notifier) openMetadata(p *Plan) (err error) {
	if p.Sharing == nil || p.Sharing.Metadata || metadata.Able() != nil {
		return nil
	}
	var trees []metadata.Tree
	for i := range p.View {
		if e := &p.View[i]; e.Op == "path" && e.Access == "rw" {
			trees = append(trees, metadata.Tree{FD: int(e.open.File.Fd()), Dir: e.open.Dir()})
		}
	}
	n.metadata, err = metadata.New(trees)
	return err
}

func (n *notifier) closeMetadata() error {
	if n.metadata == nil {
		return nil
	}
	return n.metadata.Close()
}

// instead is what makes such calls; nil: nothing does. What the tables refuse, as set-user-id,
// is not among them.
func (n *notifier) instead(filter seccomp.Config) func(int, uint32, [6]uint64, func() bool) (unix.Errno, bool) {
	if n.metadata == nil {
		return nil
	}
	return func(nr int, tid uint32, args [6]uint64, waits func() bool) (unix.Errno, bool) {
		if filter.RefusedBy(nr, args) != seccomp.BySharing {
			return 0, false
		}
		return n.metadata.Change(&metadata.Call{Name: seccomp.Name(nr), TID: tid, Args: args, Waits: waits})
	}
}

// counts say for the summary what was answered, and what is not known of it. Of a nil
// notifier, and before its end, there is nothing to say.
func (n *notifier) counts() []trace.Count {
	if n == nil || n.listener == nil {
		return nil
	}
	s := n.listener.Stats()
	return []trace.Count{{Name: "notify.calls", N: s.Calls}, {Name: "notify.made", N: s.Made}, {Name: "notify.exec_unknown", N: s.Unsettled}, {Name: "notify.hidden", N: s.Hidden}, {Name: "notify.untracked", N: s.Untracked}}
}

// tooMany reports whether ends of processes are not told, because there were too many at a time.
func (n *notifier) tooMany() bool {
	if n == nil {
		return false
	}
	select {
	case <-n.ready:
		return n.listener != nil && n.listener.TooMany()
	default:
		return false
	}
}

// findings are what makes its account incomplete.
func (n *notifier) findings() []string {
	if n == nil || n.listener == nil {
		return nil
	}
	var out []string
	s := n.listener.Stats()
	if s.Untracked > 0 {
		out = append(out, fmt.Sprintf("%d times there were too many processes to follow another to its end", s.Untracked))
	}
	if s.Hidden > 0 {
		out = append(out, fmt.Sprintf("of %d calls the caller's memory could not be read, and so neither path, address nor arguments as they were given: "+hides, s.Hidden))
	}
	if n.metadata != nil && n.metadata.Stuck() {
		out = append(out, fmt.Sprintf("a file system did not answer within %s when a file's metadata was to be changed for the command: the call was refused, though it may still come about, and so was every later one", metadata.Limit))
	}
	return out
}

// hides is why.
const hides = "it was not dumpable (prctl(PR_SET_DUMPABLE), or a program that cannot be read)"

// notifyStep installs the filter and sends its listener by a socket of ours. The
// descriptor is closed again at once, and by execve: the command never has it.
func (b *builder) notifyStep() {
	flags, _ := notify.InstallFlags()
	prog := b.Words(initproc.Value(len(b.m.filter)/8), b.Bytes(b.m.filter)) // struct sock_fprog
	control := make([]byte, unix.CmsgSpace(4))                              // struct cmsghdr, the descriptor
	binary.LittleEndian.PutUint64(control, uint64(unix.CmsgLen(4)))
	binary.LittleEndian.PutUint32(control[8:], unix.SOL_SOCKET)
	binary.LittleEndian.PutUint32(control[12:], unix.SCM_RIGHTS)
	rights := b.Bytes(control)
	listener := b.Slot(rights, unix.CmsgLen(0))
	iov := b.Words(b.Bytes([]byte{0}), initproc.Value(1)) // struct iovec
	message := b.Words(zero(), zero(), iov, initproc.Value(1), rights, initproc.Value(len(control)), zero())
	b.Call("seccomp", fmt.Sprintf("seccomp(SET_MODE_FILTER, NEW_LISTENER, %d instructions)", len(b.m.filter)/8), unix.SYS_SECCOMP,
		initproc.Value(unix.SECCOMP_SET_MODE_FILTER), initproc.Value(flags), prog).Save(listener)
	b.Call("seccomp", "sendmsg(supervisor, SCM_RIGHTS listener)", unix.SYS_SENDMSG, b.File(int(b.m.notify.Fd())), message, initproc.Value(unix.MSG_NOSIGNAL))
	b.Call("seccomp", "close(listener)", unix.SYS_CLOSE, b.Saved(listener))
}
