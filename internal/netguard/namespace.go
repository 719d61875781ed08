package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// Role is what a socket of the namespace is for.
type Role string

// The sockets that the supervisor makes in the run's namespace. Those with a 4
// or a 6 at their end are of that family.
const (
	DNSUDP4, DNSUDP6 Role = "dns-udp4", "dns-udp6"
	DNSTCP4, DNSTCP6 Role = "dns-tcp4", "dns-tcp6"
	TCP4, TCP6       Role = "tcp4", "tcp6" // listeners that sk_lookup hands connections to
	UDP4, UDP6       Role = "udp4", "udp6" // likewise, datagrams
	Raw4, Raw6       Role = "raw4", "raw6" // whole packets: answers from the address that was asked
	SYN4, SYN6       Role = "syn4", "syn6" // hear the first packet of each connection
	Spare            Role = "spare"        // unconnected, for a published port
	Brokers          Role = "brokers"      // no socket of the namespace: it leads to the process of the brokers
)

// spares is how many unconnected sockets are kept ready for published ports.
const spares = 16

// Namespace is a run's network namespace made ready.
type Namespace struct {
	Sockets map[Role]*os.File
	Each    []Socket // without a look-up program: for each address and port
	Spares  []*os.File
	ns      *os.File
}

// Socket is one of several with a role.
type Socket struct {
	Role Role
	File *os.File
}

// OpenNamespace makes the addresses, routes and sockets of a run in its network
// namespace, in which lo is up. ns must stay open until Close. It needs
// CAP_SYS_ADMIN in the user namespace that owns ns.
func OpenNamespace(ns *os.File, cfg *Config) (*Namespace, error) {
	n := &Namespace{Sockets: map[Role]*os.File{}, ns: ns}
	err := inNamespace(ns, func() error { return n.make(cfg) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the run's network namespace: %w", err), n.Close())
	}
	return n, nil
}

func (n *Namespace) make(cfg *Config) error {
	unpaced()
	if err := addRoutes(&cfg.Table, cfg.IPv6); err != nil {
		return err
	}
	families := []string{"4"}
	if cfg.IPv6 {
		families = append(families, "6")
	}
	for _, f := range families {
		if err := n.makeFamily(f, cfg); err != nil {
			return err
		}
	}
	if cfg.PerAddress {
		if err := n.makeEndpoints(cfg); err != nil {
			return err
		}
	}
	if !cfg.AcceptFirst {
		if err := n.holdAll(families); err != nil {
			return err
		}
	}
	if len(cfg.Publish) == 0 {
		return nil
	}
	for range spares {
		s, err := spareSocket()
		if err != nil {
			return err
		}
		n.Spares = append(n.Spares, s)
	}
	return nil
}

// unpaced gives the namespace's connections a congestion control that does not
// pace (tcp(7)): nothing is congested between the command and the relay, and a
// host's bbr, which a new namespace has too, halves what they move. The relay's
// connections outside have the host's. Where /proc/sys is read-only it stays as it is.
func unpaced() {
	_ = os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0) // of the thread's namespace; both families'
}

func (n *Namespace) makeFamily(f string, cfg *Config) error {
	dns := map[string]string{"4": "127.0.0.1:53", "6": "[::1]:53"}[f]
	own := netip.AddrPortFrom(map[string]netip.Addr{"4": Own4, "6": Own6}[f], 0).String() // nothing allows it
	errs := []error{
		n.packet(Role("dns-udp"+f), "udp"+f, dns, freeBind),
		n.listener(Role("dns-tcp"+f), "tcp"+f, dns),
		n.raw(Role("raw"+f), f),
	}
	if cfg.PerAddress {
		return errors.Join(errs...)
	}
	errs = append(errs, n.listener(Role("tcp"+f), "tcp"+f, own))
	if cfg.Table.UDP() {
		errs = append(errs, n.packet(Role("udp"+f), "udp"+f, own, wantDestination(f)))
	}
	return errors.Join(errs...)
}

// wantDestination makes recvmsg(2) tell where a datagram was sent to, and keeps our own from it.
func wantDestination(f string) func(fd int) error {
	return func(fd int) error {
		if err := attachFilter(fd, unmarkedOnly); err != nil {
			return err
		}
		if f == "4" {
			return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVORIGDSTADDR, 1))
		}
		return errors.Join(freeBind(fd), os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR, 1)))
	}
}

func (n *Namespace) listener(role Role, network, at string) error {
	l, err := listen(network, at, freeBind)
	if err != nil {
		return err
	}
	f, err := l.File()
	return n.keep(role, f, errors.Join(err, l.Close()))
}

func listen(network, at string, set func(fd int) error) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: controlled(set)}
	lc.SetMultipathTCP(false) // Go's default; a socket map takes no MPTCP socket
	l, err := lc.Listen(context.Background(), network, at)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func (n *Namespace) packet(role Role, network, at string, set func(fd int) error) error {
	c, err := receive(network, at, set)
	if err != nil {
		return err
	}
	f, err := c.File()
	return n.keep(role, f, errors.Join(err, c.Close()))
}

func receive(network, at string, set func(fd int) error) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: controlled(set)}
	c, err := lc.ListenPacket(context.Background(), network, at)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// raw makes a socket that sends whole IP packets and receives none.
func (n *Namespace) raw(role Role, f string) error {
	family := unix.AF_INET
	if f == "6" {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW) // implies IP_HDRINCL
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	return n.keep(role, os.NewFile(uintptr(fd), string(role)), setMark(fd))
}

func (n *Namespace) keep(role Role, f *os.File, err error) error {
	if err != nil {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return fmt.Errorf("%s: %w", role, err)
	}
	n.Sockets[role] = f
	return nil
}

// NewSpare makes one more unconnected socket.
func (n *Namespace) NewSpare() (f *os.File, err error) {
	err = inNamespace(n.ns, func() error {
		f, err = spareSocket()
		return err
	})
	return f, err
}

func spareSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), string(Spare)), nil
}

// checkLimit bounds what a healthy namespace answers at once.
const checkLimit = 10 * time.Second

// Check shows that the namespace's look-up program is in place: a listener on
// all addresses must not be reached at a synthetic one that is not allowed.
// Without the program it would be.
func (n *Namespace) Check() error {
	return inNamespace(n.ns, func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		d := net.Dialer{Timeout: checkLimit, Control: controlled(setMark)} // marked: nobody is told of it
		c, err := d.Dial("tcp4", net.JoinHostPort(Own4.String(), strconv.Itoa(port)))
		if err == nil {
			c.Close()
			return errors.New("a connection to an address that is not allowed was made")
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("a connection to an address that is not allowed: %w, and not refused", err)
		}
		return nil
	})
}

// Close closes the supervisor's copies of the sockets.
func (n *Namespace) Close() error {
	var errs []error
	for role, f := range n.Sockets {
		errs = append(errs, f.Close())
		delete(n.Sockets, role)
	}
	for _, s := range n.Each {
		errs = append(errs, s.File.Close())
	}
	for _, f := range n.Spares {
		errs = append(errs, f.Close())
	}
	n.Spares, n.Each = nil, nil
	return errors.Join(errs...)
}

// inNamespace runs fn on a thread that is in the network namespace ns.
func inNamespace(ns *os.File, fn func() error) error {
	return lostthread.Run(func() error {
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		runtime.KeepAlive(ns)
		if err != nil {
			return os.NewSyscallError("setns", err)
		}
		return fn()
	})
}

// addRoutes makes the synthetic ranges and the allowed addresses local to the
// namespace, and gives lo an address of each synthetic range.
func addRoutes(t *Table, v6 bool) error {
	r, err := openRoutes()
	if err != nil {
		return err
	}
	defer r.close()
	r.address(Own4)
	r.local(Synthetic4)
	if v6 {
		r.address(Own6)
		r.local(Synthetic6)
	}
	for i := range t.Nets {
		p := t.Nets[i].Prefix
		if !loopback(p) && (v6 || p.Addr().Is4()) {
			r.local(p)
		}
	}
	return r.flush()
}

// loopback reports whether a range is local to every namespace already.
func loopback(p netip.Prefix) bool {
	return p.Addr().IsLoopback() && (p.Addr().Is6() || p.Bits() >= 8)
}
