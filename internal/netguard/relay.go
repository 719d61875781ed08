package netguard

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IdleLimit is how long a connection may be silent in both directions before
// it is broken off.
const IdleLimit = time.Hour

const (
	acceptPause = 10 * time.Millisecond // after an accept that failed for want of descriptors
	idleLook    = 5 * time.Second       // how often idle connections are looked for
	burst       = 100                   // connections whose dials have left enough behind to be given back
)

// server is the process at work: the resolver and the relay of one run.
type server struct {
	cfg    *Config
	dir    *directory
	dialer *dialer
	events *reporter
	pipes  pipePool
	budget *budget
	open   atomic.Int64  // connections and flows
	opened atomic.Int64  // ever
	coming atomic.Int64  // connections that are accepted, and neither live nor refused yet
	pass   time.Duration // passLimit, but in tests

	ctx    context.Context // ends with the run
	stop   context.CancelFunc
	mu     sync.Mutex
	live   map[*connection]bool
	fronts []*os.File // where connections of the command arrive
	ended  bool
	wait   sync.WaitGroup

	flows   *flows
	holder  *holder
	brokers brokers
	raw     [2]atomic.Pointer[os.File] // send whole packets into the namespace, by family
	sockets chan int                   // of the namespace, for published ports
	inside  chan struct{}              // slots of connects to those
}

func newServer(cfg *Config, events *reporter) *server {
	s := &server{cfg: cfg, dir: newDirectory(&cfg.Table), events: events, live: map[*connection]bool{}, budget: newBudget(cfg.MaxBytes), pass: passLimit}
	if cfg.PerAddress {
		s.dir.most = FewNames
	}
	s.dialer = newDialer(cfg, s.dir)
	s.brokers.init(cfg)
	s.flows, s.holder, s.sockets = newFlows(s), newHolder(s), make(chan int, 4*spares)
	s.inside = make(chan struct{}, maxInside)
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// connection is one that is relayed: inside is the command's. It has no more than
// an idle one needs: there may be thousands.
type connection struct {
	inside, outside stream
	up, down        half
	touched         atomic.Int64 // ns; of the last byte
	why             atomic.Value // string: the end that was decided here
	ended           atomic.Int32 // upEnded, downEnded
	started         time.Time

	name        []byte // what is told of it at its end: see Event
	asked, addr netip.AddrPort
	via         bool
	published   bool
	broker      string
}

// Bits of connection.ended.
const (
	upEnded   = 1
	downEnded = 2
)

// newConnection is one that e begins to tell of.
func newConnection(inside, outside stream, e *Event, started time.Time) *connection {
	return &connection{
		inside: inside, outside: outside, started: started,
		name: e.Name, asked: e.Asked, addr: e.Addr, via: e.Via, published: e.Published, broker: e.Broker,
	}
}

// event tells how it was.
func (c *connection) event() Event {
	e := Event{
		Kind: KindConnect, Proto: "tcp", Name: c.name, Asked: c.asked, Addr: c.addr, Via: c.via, Published: c.published, Broker: c.broker,
		Sent: c.up.moved.Load(), Received: c.down.moved.Load(), Duration: time.Since(c.started), End: EndClosed,
	}
	if why, ok := c.why.Load().(string); ok {
		e.End = why
	}
	return e
}

// abort breaks both sides off with a reset.
func (c *connection) abort(why string) {
	c.why.CompareAndSwap(nil, why)
	reset(c.inside)
	reset(c.outside)
}

// close ends both sides in order: what was written to them is still delivered.
func (c *connection) close(why string) {
	c.why.CompareAndSwap(nil, why)
	_, _ = c.inside.Close(), c.outside.Close()
}

// stream is one side of a connection: of TCP, or a unix socket to the process of the brokers.
type stream interface {
	Close() error
	CloseWrite() error
	SyscallConn() (syscall.RawConn, error)
}

// reset breaks c off: the peer's next call fails.
func reset(c stream) {
	if rc, err := c.SyscallConn(); err == nil { // closed already: then there is nothing to reset
		_ = rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // socket(7): nothing lingers
		})
	}
	_ = c.Close()
}

// deny breaks off a connection that was never relayed.
func (s *server) deny(c stream, e Event) {
	reset(c)
	e.Kind, e.Denied = KindDeny, true
	s.events.emit(e)
}

// admit counts a connection in, or says which limit refuses it.
func (s *server) admit() string {
	if s.budget.spent() {
		return LimitBytes
	}
	if s.open.Add(1) > s.cfg.MaxConnections {
		s.open.Add(-1)
		return LimitConnections
	}
	s.opened.Add(1)
	return ""
}

func (s *server) failed(e *Event, err error) {
	e.End = EndFailed
	switch {
	case errors.Is(err, errPrivate), errors.Is(err, errWide), errors.Is(err, errInside):
		e.End, e.Denied, e.Text = EndRefused, true, err.Error()
	case s.ctx.Err() != nil:
		e.End = EndRun
	default:
		e.Errno, e.Text = reason(err)
	}
	s.events.emit(*e)
}

// relay moves bytes both ways until both have ended, and then reports it. It
// returns at once: two fresh goroutines, whose stacks have not grown by dialling,
// are all that an idle connection has.
func (s *server) relay(c *connection) {
	in, err1 := c.inside.SyscallConn()
	out, err2 := c.outside.SyscallConn()
	c.up.start(in, out, c.outside, &s.pipes, s.budget, &c.touched)
	c.down.start(out, in, c.inside, &s.pipes, nil, &c.touched)
	if err1 != nil || err2 != nil || !s.enter(c) {
		c.abort(EndRun)
		s.done(c)
		return
	}
	go s.move(c, &c.up, upEnded)
	go s.move(c, &c.down, downEnded)
}

// move is one direction.
func (s *server) move(c *connection, h *half, bit int32) {
	defer s.wait.Done()
	c.end(h.run())
	if c.ended.Or(bit)|bit == upEnded|downEnded {
		s.done(c)
	}
}

// done reports a connection that has ended.
func (s *server) done(c *connection) {
	_, _ = c.inside.Close(), c.outside.Close() // closed already where it was broken off
	s.leave(c)
	s.open.Add(-1)
	s.events.emit(c.event())
}

// end passes a direction's failure on to both sides.
func (c *connection) end(err error) {
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOTCONN): // the other side was gone when the end was to be passed on
	case errors.Is(err, errBytes):
		c.abort(EndLimit)
	default:
		c.abort(EndReset)
	}
}

// enter adds a connection, with its two directions, to those that end with the run.
func (s *server) enter(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	c.touched.Store(time.Now().UnixNano())
	s.live[c] = true
	s.wait.Add(2)
	return true
}

// work does something beside what else goes on, and the end of the run waits for it;
// false where that has come.
func (s *server) work(do func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.wait.Go(do)
	}
	return !s.ended
}

func (s *server) leave(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, c)
}

// breakIdle looks for silent connections until the run ends.
func (s *server) breakIdle(limit, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last, given int64
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		last, given = s.giveBack(last, given)
		s.breakSilent(time.Now().Add(-limit))
	}
}

// breakSilent breaks off what has been silent since before that time.
func (s *server) breakSilent(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.live {
		if c.touched.Load() < before.UnixNano() {
			c.abort(EndIdle)
		}
	}
}

// giveBack returns memory to the system when many connections have been opened since
// it did so last, and none since the last look: a third of what they took
// is stacks that have dialled. It returns what it is to be called with next.
func (s *server) giveBack(last, given int64) (now, back int64) {
	now = s.opened.Load()
	if now == last && now-given >= burst {
		debug.FreeOSMemory()
		given = now
	}
	return now, given
}

// passLimit bounds how long what the command has sent is passed on after its end:
// a peer that does not read would be waited for.
const passLimit = 2 * time.Second

// end breaks off what is still open, reports it, and waits until all is told. The
// command's processes are dead and their sockets closed: what they had written is
// passed on first, as the kernel would have done.
func (s *server) end() {
	for until := time.Now().Add(s.pass); s.passing() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	s.stop()
	s.mu.Lock()
	s.ended = true
	for c := range s.live {
		if c.ended.Load()&upEnded != 0 {
			c.close(EndRun)
		} else {
			c.abort(EndRun)
		}
	}
	s.mu.Unlock()
	s.wait.Wait()
	s.holder.end()
	s.events.flush()
}
