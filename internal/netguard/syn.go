package netguard

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// The namespace's side of hold.go (decision 0019): who hears the first packet of a connection,
// and what keeps it from the listener.

// ownMark is SO_MARK of the packets that the relay sends. To set one takes
// CAP_NET_ADMIN or CAP_NET_RAW over the namespace (socket(7)).
const ownMark = 0x6167

func setMark(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, ownMark))
}

// synBuffer holds the first packets of some thousand connections, each of which
// counts with the kernel's own bookkeeping; what finds no room comes again after a second.
const synBuffer = 8 << 20

// Offsets that stand for properties of a packet (include/uapi/linux/filter.h).
const skfMark = 0xfffff000 + 20 // SKF_AD_OFF + SKF_AD_MARK

// Classic BPF, as bpf_dbg and tcpdump -dd have it.
func load(size uint16, at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_ABS | size, K: at}
}

func jumpEqual(k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func and(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
}

func give(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

const all = 0xffffffff

// markedOnly is the listener's: a SYN goes in with the mark only. The packet begins
// with the TCP header.
var markedOnly = []unix.SockFilter{
	load(unix.BPF_W, skfMark),
	jumpEqual(ownMark, 3, 0),
	load(unix.BPF_B, 13),
	and(flagSYN | flagACK),
	jumpEqual(flagSYN, 1, 0),
	give(all),
	give(0),
}

// unmarkedOnly is that of the sockets which take datagrams for the relay: what it sends itself, an
// answer, is not led out again where the command has bound an address that is a destination too.
// One datagram would otherwise go round for ever.
var unmarkedOnly = []unix.SockFilter{
	load(unix.BPF_W, skfMark),
	jumpEqual(ownMark, 0, 1),
	give(0),
	give(all),
}

// synOnly4 and synOnly6 are the raw sockets': SYN and no ACK, without the mark. An
// IPv4 packet begins with its IP header there, an IPv6 packet with the TCP header (raw(7)).
var synOnly4 = []unix.SockFilter{
	load(unix.BPF_W, skfMark),
	jumpEqual(ownMark, 5, 0),
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0}, // the header's length
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
	and(flagSYN | flagACK),
	jumpEqual(flagSYN, 0, 1),
	give(all),
	give(0),
}

var synOnly6 = []unix.SockFilter{
	load(unix.BPF_W, skfMark),
	jumpEqual(ownMark, 4, 0),
	load(unix.BPF_B, 13),
	and(flagSYN | flagACK),
	jumpEqual(flagSYN, 0, 1),
	give(all),
	give(0),
}

// holdAll makes the raw sockets and sets the listeners' filters.
func (n *Namespace) holdAll(families []string) error {
	for _, f := range families {
		if err := n.hear(f); err != nil {
			return err
		}
	}
	for _, s := range n.listeners() {
		rc, err := s.SyscallConn()
		if err != nil {
			return err
		}
		var ferr error
		err = rc.Control(func(fd uintptr) { ferr = attachFilter(int(fd), markedOnly) })
		if err = errors.Join(err, ferr); err != nil {
			return err
		}
	}
	return nil
}

// listeners are those that connections are led to.
func (n *Namespace) listeners() []*os.File {
	var out []*os.File
	for _, role := range []Role{TCP4, TCP6} {
		if f := n.Sockets[role]; f != nil {
			out = append(out, f)
		}
	}
	for _, s := range n.Each {
		if s.Role == TCP4 || s.Role == TCP6 {
			out = append(out, s.File)
		}
	}
	return out
}

// hear makes the raw socket of a family. Nothing is sent in the namespace yet that
// could come before the filter. No packet socket: each one's end waits for
// a grace period of RCU, and so would the run's.
func (n *Namespace) hear(f string) error {
	family, filter := unix.AF_INET, synOnly4
	if f == "6" {
		family, filter = unix.AF_INET6, synOnly6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	errs := []error{
		attachFilter(fd, filter),
		os.NewSyscallError("setsockopt", enlarge(fd)),
	}
	if family == unix.AF_INET6 { // there is no header that would tell
		errs = append(errs, os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)))
	}
	return n.keep(Role("syn"+f), os.NewFile(uintptr(fd), "syn"+f), errors.Join(errs...))
}

// enlarge gives a socket room for bursts: as much as any user may have (socket(7),
// net.core.rmem_max) where only a capability over the host gives more.
func enlarge(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, synBuffer)
	if err == unix.EPERM {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, synBuffer)
	}
	return err
}

// attachFilter sets a filter for good: whoever is handed the socket cannot change it.
func attachFilter(fd int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)),
	)
}
