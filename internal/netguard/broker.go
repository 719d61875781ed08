package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/reexec"
)

// A broker's endpoint is a name of the namespace that leads nowhere: its
// connections are handed over to a process that holds credentials and has no
// sockets (internal/broker). That process asks for connections to the upstreams,
// by number; they are dialled and judged as any other, and relayed, so that the run's
// limits hold. In words, one a message:
//
//	to it:   "conn NAME" with the connection; "dialled N" with a socket; "failed N WHY"
//	from it: "dial N NAME"

// Broker is an endpoint's upstream.
type Broker struct {
	Name    string         `json:"name"` // inside, a name of the table
	Host    string         `json:"host"`
	Port    uint16         `json:"port"`
	Private []netip.Prefix `json:"private,omitempty"` // special addresses that it may have
	Resolve netip.Addr     `json:"resolve,omitzero"`  // its address; invalid: the host's resolver is asked
}

// BrokerPort is where endpoints are. brokerDomain has no other names.
const (
	BrokerPort   = 80
	brokerDomain = ".broker.internal"
)

type brokers struct {
	conn atomic.Pointer[net.UnixConn] // to the process that serves them
	by   map[string]*upstream
}

type upstream struct {
	Broker
	dest   destination
	dialer *dialer
}

// init makes what dials for brokers: what the run's policy says about names and
// private addresses is not for them.
func (b *brokers) init(cfg *Config) {
	b.by = map[string]*upstream{}
	for _, one := range cfg.Brokers {
		own, table := &Config{Proxy: cfg.Proxy, PrivateNets: one.Private}, &Table{}
		u := &upstream{Broker: one, dest: destination{name: one.Host, port: one.Port}}
		if a, err := netip.ParseAddr(one.Host); err == nil { // it was meant, whatever it is
			u.dest = destination{addr: a, port: one.Port}
			table.Nets = []Net{{Prefix: netip.PrefixFrom(a, a.BitLen())}}
		}
		if one.Resolve.IsValid() {
			own.Resolve = map[string]netip.Addr{one.Host: one.Resolve}
			own.PrivateNames = []string{one.Host}
		}
		u.dialer = newDialer(own, newDirectory(table))
		b.by[one.Name] = u
	}
}

// useBrokers begins to serve the process of the brokers.
func (s *server) useBrokers(file *os.File) error {
	c, err := net.FileConn(file)
	if err != nil {
		return err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("not a unix socket")
	}
	s.brokers.conn.Store(conn)
	go func() {
		_ = reexec.Receive(conn, s.askedBy) // it ends with that process, which the supervisor watches
		conn.Close()
	}()
	return nil
}

// handOver passes a connection of the command's on.
func (s *server) handOver(c stream, dest destination, e Event) {
	defer c.Close()
	e.Broker, e.End = dest.name, EndClosed
	conn := s.brokers.conn.Load()
	if conn == nil {
		s.deny(c, e)
		return
	}
	rc, err := c.SyscallConn()
	if err == nil {
		cerr := rc.Control(func(fd uintptr) {
			_, _, err = conn.WriteMsgUnix([]byte("conn "+dest.name), unix.UnixRights(int(fd)), nil)
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		s.deny(c, e)
		return
	}
	s.events.emit(e)
}

// askedBy dials for the process of the brokers.
func (s *server) askedBy(message string, fds []int) error {
	for _, fd := range fds {
		unix.Close(fd)
	}
	n, name, _ := strings.Cut(strings.TrimPrefix(message, "dial "), " ")
	b, ok := s.brokers.by[name]
	if !ok {
		return fmt.Errorf("%.64q is no broker", name)
	}
	s.work(func() { s.dialUpstream(n, b) }) // at the end of the run nobody waits for the answer
	return nil
}

func (s *server) dialUpstream(n string, b *upstream) {
	started := time.Now()
	e := Event{Kind: KindConnect, Broker: b.Name, Name: []byte(b.Host), Proto: "tcp", Asked: netip.AddrPortFrom(netip.IPv4Unspecified(), b.Port)}
	if e.Limit = s.admit(); e.Limit != "" {
		e.Kind, e.Denied = KindDeny, true
		s.events.emit(e)
		s.tellBrokers("failed "+n+" "+e.Limit+" is reached", -1)
		return
	}
	out, to, err := b.dialer.connect(s.ctx, "tcp", b.dest)
	e.Addr, e.Via = to.addr, to.via
	var inside *net.UnixConn
	if err == nil {
		if inside, err = s.passSocket(n); err != nil {
			reset(out.(stream))
		}
	}
	if err != nil {
		s.open.Add(-1)
		e.Duration = time.Since(started)
		s.failed(&e, err)
		_, text := reason(err)
		s.tellBrokers("failed "+n+" "+text, -1)
		return
	}
	s.relay(newConnection(inside, out.(*net.TCPConn), &e, started))
}

// passSocket gives the process of the brokers one end of a new connection.
func (s *server) passSocket(n string) (*net.UnixConn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	err = s.tellBrokers("dialled "+n, fds[1])
	unix.Close(fds[1])
	ours := os.NewFile(uintptr(fds[0]), "broker")
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return reexec.Conn(ours)
}

func (s *server) tellBrokers(message string, fd int) error {
	conn := s.brokers.conn.Load()
	if conn == nil {
		return context.Canceled
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err := conn.WriteMsgUnix([]byte(message[:min(len(message), maxText)]), rights, nil)
	return err
}
