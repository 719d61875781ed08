package bpf

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// loUp brings up lo of the act's own network namespace.
func loUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// attempt is one way to reach the network.
type attempt struct {
	name string
	try  func() error
}

func actEgress([]string) error {
	if err := loUp(); err != nil {
		return err
	}
	for _, a := range attempts() {
		report(a.name, a.try())
	}
	return nil
}

func attempts() []attempt {
	conn := func(family, kind, proto int, to unix.Sockaddr) func() error {
		return func() error {
			return with(family, kind, proto, func(fd int) error { return unix.Connect(fd, to) })
		}
	}
	send := func(family, kind, proto int, to unix.Sockaddr) func() error {
		return func() error {
			return with(family, kind, proto, func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, to) })
		}
	}
	const mptcp, udplite, sctp = 262, 136, 132
	return []attempt{
		{"tcp4", conn(unix.AF_INET, unix.SOCK_STREAM, 0, v4out)},
		{"tcp6", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, v6out)},
		{"tcp-mapped", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, mapped)},
		{"tcp-nat64", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, nat64)},
		{"udp4-connect", conn(unix.AF_INET, unix.SOCK_DGRAM, 0, v4out)},
		{"udp6-connect", conn(unix.AF_INET6, unix.SOCK_DGRAM, 0, v6out)},
		{"udp-mapped-connect", conn(unix.AF_INET6, unix.SOCK_DGRAM, 0, mapped)},
		{"udp4-sendto", send(unix.AF_INET, unix.SOCK_DGRAM, 0, v4out)},
		{"udp6-sendto", send(unix.AF_INET6, unix.SOCK_DGRAM, 0, v6out)},
		{"udp-mapped-sendto", send(unix.AF_INET6, unix.SOCK_DGRAM, 0, mapped)},
		{"udp-connected-other", func() error {
			return with(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
				if err := unix.Connect(fd, v4lo); err != nil {
					return fmt.Errorf("loopback: %v", err)
				}
				return unix.Sendto(fd, []byte("x"), 0, v4out)
			})
		}},
		{"tcp-fastopen", func() error {
			return with(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
				return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, v4out)
			})
		}},
		{"mptcp", conn(unix.AF_INET, unix.SOCK_STREAM, mptcp, v4out)},
		{"udplite-connect", conn(unix.AF_INET, unix.SOCK_DGRAM, udplite, v4out)},
		{"udplite-sendto", send(unix.AF_INET, unix.SOCK_DGRAM, udplite, v4out)},
		{"udplite-loopback", conn(unix.AF_INET, unix.SOCK_DGRAM, udplite, v4lo)},
		{"raw-icmp", send(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, v4out)},
		{"raw-hdrincl", send(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, v4out)},
		{"raw6", send(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, v6out)},
		{"ping", send(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, v4out)},
		{"sctp", conn(unix.AF_INET, unix.SOCK_STREAM, sctp, v4out)},
		{"lo-udp4", send(unix.AF_INET, unix.SOCK_DGRAM, 0, v4lo)},
		{"lo-udp6", send(unix.AF_INET6, unix.SOCK_DGRAM, 0, v6lo)},
		{"lo-udp-zero", send(unix.AF_INET, unix.SOCK_DGRAM, 0, v4zero)},
		{"lo-tcp4", conn(unix.AF_INET, unix.SOCK_STREAM, 0, v4lo)},
		{"lo-tcp6", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, v6lo)},
		{"lo-tcp-zero", conn(unix.AF_INET, unix.SOCK_STREAM, 0, v4zero)},
		{"lo-tcp6-zero", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, v6zero)},
		{"lo-tcp-mapped", conn(unix.AF_INET6, unix.SOCK_STREAM, 0, mappedLo)},
	}
}

func with(family, kind, proto int, f func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// actListen listens, with and without a bind.
func actListen([]string) error {
	if err := loUp(); err != nil {
		return err
	}
	bound := func(family int, sa unix.Sockaddr) error {
		return with(family, unix.SOCK_STREAM, 0, func(fd int) error {
			if err := unix.Bind(fd, sa); err != nil {
				return err
			}
			return unix.Listen(fd, 1)
		})
	}
	report("bind", bound(unix.AF_INET, &unix.SockaddrInet4{Addr: v4lo.Addr}))
	report("bind6", bound(unix.AF_INET6, &unix.SockaddrInet6{Addr: v6lo.Addr}))
	return with(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
		report("autobind", unix.Listen(fd, 1))
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		fmt.Println("port", sa.(*unix.SockaddrInet4).Port)
		report("comes", connectBriefly(&unix.SockaddrInet4{Addr: v4lo.Addr, Port: sa.(*unix.SockaddrInet4).Port}))
		return nil
	})
}

// connectBriefly connects where what listens answers at once or never.
func connectBriefly(to unix.Sockaddr) error {
	return with(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 300000}); err != nil {
			return err
		}
		return unix.Connect(fd, to)
	})
}

func actUnix([]string) error {
	return with(unix.AF_UNIX, unix.SOCK_STREAM, 0, func(fd int) error {
		report("path", unix.Connect(fd, &unix.SockaddrUnix{Name: "relative/agent.sock"}))
		report("abstract", unix.Connect(fd, &unix.SockaddrUnix{Name: "@agent"}))
		return nil
	})
}

var (
	v4out    = &unix.SockaddrInet4{Port: 443, Addr: [4]byte{192, 0, 2, 1}}
	v4lo     = &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 1, 2, 3}}
	v4zero   = &unix.SockaddrInet4{Port: 9}
	v6out    = &unix.SockaddrInet6{Port: 443, Addr: [16]byte{0x20, 1, 0xd, 0xb8, 15: 1}}
	v6lo     = &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}
	v6zero   = &unix.SockaddrInet6{Port: 9}
	mapped   = &unix.SockaddrInet6{Port: 443, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 1}}
	mappedLo = &unix.SockaddrInet6{Port: 9, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}
	nat64    = &unix.SockaddrInet6{Port: 443, Addr: [16]byte{0, 0x64, 0xff, 0x9b, 12: 192, 14: 2, 15: 1}}
)
