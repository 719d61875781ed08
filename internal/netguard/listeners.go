package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Without a look-up program (sk_lookup, BPF) there is a socket for each allowed
// address and port. What differs: the command's own servers cannot take such a port
// at an address or at all of them; a port that is not allowed reaches a server
// of the command's own, where one listens at all addresses, and nothing else; and only so
// many names below a wildcard have an address.

const (
	maxEndpoints = 400 // of one family; each is a descriptor of the process that dials
	// FewNames is how many names below a wildcard have an address then.
	FewNames = 8
)

// Endpoints checks that the table can do without a look-up program.
func (t *Table) Endpoints() error {
	tcp, udp, err := t.endpoints()
	if n := max(len(tcp), len(udp)); err == nil && n > 2*maxEndpoints {
		err = errEndpoints
	}
	return err
}

var errEndpoints = fmt.Errorf("more than %d addresses and ports of one family and protocol", maxEndpoints)

// endpoints lists what has a socket, IPv4 and IPv6.
func (t *Table) endpoints() (tcp, udp []netip.AddrPort, err error) {
	add := func(p netip.Prefix, most int, tcpPorts, udpPorts []Ports) {
		for a, n := p.Addr(), 0; p.Contains(a) && n < most && err == nil; a, n = a.Next(), n+1 {
			tcp, udp = appendPorts(tcp, a, tcpPorts), appendPorts(udp, a, udpPorts)
			if max(len(tcp), len(udp)) > 2*maxEndpoints {
				err = errEndpoints
			}
		}
	}
	for i := range t.Names {
		n := &t.Names[i]
		for _, p := range n.Prefixes() {
			add(p, FewNames, n.TCP, n.UDP)
		}
	}
	for _, n := range t.Nets {
		add(n.Prefix, 2*maxEndpoints+1, n.TCP, n.UDP)
	}
	return tcp, udp, err
}

func appendPorts(list []netip.AddrPort, a netip.Addr, ranges []Ports) []netip.AddrPort {
	for _, r := range ranges {
		for port := int(r.Low); port <= int(r.High) && len(list) <= 2*maxEndpoints; port++ {
			list = append(list, netip.AddrPortFrom(a, uint16(port)))
		}
	}
	return list
}

// makeEndpoints makes a socket for each; they have the roles of those that
// the look-up program leads to.
func (n *Namespace) makeEndpoints(cfg *Config) error {
	tcp, udp, err := cfg.Table.endpoints()
	if err != nil {
		return err
	}
	for _, list := range []struct {
		ends []netip.AddrPort
		make func(f string, at netip.AddrPort) (*os.File, error)
		role string
	}{{tcp, listenAt, "tcp"}, {udp, receiveAt, "udp"}} {
		for _, at := range list.ends {
			if at.Addr().Is6() && !cfg.IPv6 {
				continue
			}
			f := strconv.Itoa(4 + 2*familyIndex(at.Addr()))
			s, err := list.make(f, at)
			if err != nil {
				return fmt.Errorf("%s %v: %w", list.role, at, err)
			}
			n.Each = append(n.Each, Socket{Role(list.role + f), s})
		}
	}
	return nil
}

func listenAt(f string, at netip.AddrPort) (*os.File, error) {
	l, err := listen("tcp"+f, at.String(), freeBind)
	if err != nil {
		return nil, err
	}
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}

func receiveAt(f string, at netip.AddrPort) (*os.File, error) {
	c, err := receive("udp"+f, at.String(), wantDestination(f))
	if err != nil {
		return nil, err
	}
	file, err := c.File()
	return file, errors.Join(err, c.Close())
}

// freeBind lets a socket have an address that is local by a route only, which
// IPv6 does not take by itself.
func freeBind(fd int) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return os.NewSyscallError("setsockopt", err)
}

// controlled runs set on a socket before it is bound.
func controlled(set func(fd int) error) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = set(int(fd)) }), err)
	}
}
