package supervisor

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/netguard"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// canary makes the calls that every layer must refuse, in the process that
// becomes the command, after the last restriction and before execve. Where two
// layers could refuse, the probe is chosen so that the errno tells which did:
// a layer that is configured but does not bite stops the run. The probes are
// measured in FACTS-launch: about 0.1 ms for all.
func (b *builder) canary() {
	if b.plan.off("canary") {
		return
	}
	if b.plan.LandlockABI > 0 {
		b.probeLandlock()
	}
	b.probeSeccomp()
	b.probeNetwork()
	b.probeView()
	b.probePrivileges()
}

// probe adds one call that must fail and records it in the plan.
func (b *builder) probe(layer, label string, errno, other unix.Errno, nr uintptr, args ...initproc.Arg) {
	b.Call("canary", label+" ["+layer+"]", nr, args...).Refused(int(errno), int(other))
	b.plan.Canary = append(b.plan.Canary, Probe{Layer: layer, Call: label, Errno: unix.ErrnoName(errno), errno: errno})
}

// probeLandlock opens a world-readable file on a mount that is attached
// nowhere: only Landlock can say EACCES.
func (b *builder) probeLandlock() {
	b.probe("landlock", "open of a file that no rule grants", unix.EACCES, 0,
		unix.SYS_OPENAT, b.File(int(b.m.mounts.probe.Fd())), b.String("probe"), initproc.Value(unix.O_RDONLY), zero())
}

// probeSeccomp uses calls that need no privilege, so that nothing but the
// filter answers EPERM: without it they say EFAULT, EINVAL or succeed.
func (b *builder) probeSeccomp() {
	b.probe("seccomp", "io_uring_setup(1, NULL)", unix.EPERM, 0, unix.SYS_IO_URING_SETUP, initproc.Value(1), zero())
	b.probe("seccomp", "socket(AF_NETLINK, NETLINK_AUDIT)", unix.EPERM, 0, unix.SYS_SOCKET,
		initproc.Value(unix.AF_NETLINK), initproc.Value(unix.SOCK_RAW|unix.SOCK_CLOEXEC), initproc.Value(unix.NETLINK_AUDIT))
	b.probe("seccomp", "socket(AF_INET, IPPROTO_UDPLITE)", unix.EPERM, 0, unix.SYS_SOCKET,
		initproc.Value(unix.AF_INET), initproc.Value(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), initproc.Value(unix.IPPROTO_UDPLITE))
	b.probe("seccomp", "fchmod(-1, 04755)", unix.EPERM, 0, unix.SYS_FCHMOD, initproc.Value(-1), initproc.Value(0o4755))
	b.probe("seccomp", "clone3()", unix.ENOSYS, 0, unix.SYS_CLONE3, zero(), zero())
}

// documentation are addresses that lead nowhere (RFC 5737, RFC 3849); the
// canary takes the first of a family that the allowlist does not have.
var documentation = []netip.AddrPort{
	netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("198.51.100.1:9"), netip.MustParseAddrPort("203.0.113.1:9"),
	netip.MustParseAddrPort("[2001:db8::1]:9"), netip.MustParseAddrPort("[2001:db8:ffff::1]:9"),
}

// probeNetwork connects UDP sockets to documentation addresses. The cgroup
// program says EPERM; a namespace that only has lo would say ENETUNREACH, and the
// host's would succeed. With an allowlist it must also refuse a synthetic
// address that is nobody's: the namespace itself would answer ECONNREFUSED.
func (b *builder) probeNetwork() {
	want := unix.EPERM
	if !b.plan.NetBPF {
		want = unix.ENETUNREACH
	}
	for _, v4 := range []bool{true, false} {
		if !v4 && !b.plan.IPv6 {
			continue
		}
		for _, to := range documentation {
			if to.Addr().Is4() == v4 && !b.plan.Egress.allows(unix.IPPROTO_UDP, to) {
				b.connect("udp", unix.SOCK_DGRAM, to, want)
				break
			}
		}
	}
	if b.plan.Egress != nil && b.plan.NetBPF {
		b.connect("tcp", unix.SOCK_STREAM, netip.AddrPortFrom(netguard.Own4, 9), unix.EPERM)
	}
}

func (b *builder) connect(proto string, kind int, to netip.AddrPort, want unix.Errno) {
	family, sockaddr := unix.AF_INET, make([]byte, 16) // struct sockaddr_in
	if to.Addr().Is6() {
		family, sockaddr = unix.AF_INET6, make([]byte, 28) // struct sockaddr_in6
		copy(sockaddr[8:], to.Addr().AsSlice())
	} else {
		copy(sockaddr[4:], to.Addr().AsSlice())
	}
	binary.LittleEndian.PutUint16(sockaddr, uint16(family))
	binary.BigEndian.PutUint16(sockaddr[2:], to.Port())
	label := proto + " " + to.String()
	fd := b.NewSlot()
	b.Call("canary", "socket for "+label, unix.SYS_SOCKET, initproc.Value(family), initproc.Value(kind|unix.SOCK_CLOEXEC), zero()).Save(fd)
	layer := "bpf"
	if want != unix.EPERM {
		layer = "netns"
	}
	b.probe(layer, "connect "+label, want, 0, unix.SYS_CONNECT, b.Saved(fd), b.Bytes(sockaddr), initproc.Value(len(sockaddr)))
}

// probeView looks for a file that every host has and no view does, and tries
// to write where only reading is granted.
func (b *builder) probeView() {
	other := unix.Errno(0)
	if granted(b.plan.View, "/etc/shadow") {
		other = unix.EACCES // the host's own file, which the command's user may not read
	}
	b.probe("mount", "open of /etc/shadow", unix.ENOENT, other, unix.SYS_OPENAT, at(), b.String("/etc/shadow"), initproc.Value(unix.O_RDONLY), zero())
	b.probe("mount", "creation of "+canaryFile, unix.EROFS, unix.EACCES, unix.SYS_OPENAT, at(), b.String(canaryFile),
		initproc.Value(unix.O_WRONLY|unix.O_CREAT), initproc.Value(0o600))
}

// canaryFile is what the canary tries to create.
const canaryFile = "/agentguard-canary"

// granted reports whether a grant, not the base, shows p.
func granted(view []Entry, p string) bool {
	for i := range view {
		if e := &view[i]; e.shows() && !e.system && within(p, e.At) {
			return true
		}
	}
	return false
}

func (b *builder) probePrivileges() {
	header, caps := make([]byte, 8), make([]byte, 24) // ask for CAP_SYS_ADMIN, effective and permitted
	binary.LittleEndian.PutUint32(header, unix.LINUX_CAPABILITY_VERSION_3)
	binary.LittleEndian.PutUint32(caps, 1<<unix.CAP_SYS_ADMIN)
	binary.LittleEndian.PutUint32(caps[4:], 1<<unix.CAP_SYS_ADMIN)
	b.probe("capabilities", "capset(CAP_SYS_ADMIN)", unix.EPERM, 0, unix.SYS_CAPSET, b.Bytes(header), b.Bytes(caps))
	if b.userns() {
		b.probeOwnUser()
		return
	}
	b.probe("identity", fmt.Sprintf("setresuid(%d), PID 1's user", GuardianUID), unix.EPERM, 0, unix.SYS_SETRESUID,
		initproc.Value(GuardianUID), initproc.Value(GuardianUID), initproc.Value(GuardianUID))
	b.probe("identity", "kill(1, 0)", unix.EPERM, 0, unix.SYS_KILL, initproc.Value(1), zero())
}

// probeOwnUser stands for the probes of another user's protection where PID 1 has the
// command's own uid: there is no other uid to take, and a signal to it is refused by
// Landlock (ABI 6) or, before Linux 6.12, by nobody: PID 1 does not take any from inside
// (SIGNAL_UNKILLABLE, pid_namespaces(7)).
func (b *builder) probeOwnUser() {
	b.probe("seccomp", "prlimit64(1, RLIMIT_CORE)", unix.EPERM, 0, unix.SYS_PRLIMIT64, initproc.Value(1), initproc.Value(unix.RLIMIT_CORE), zero(), zero())
	b.probe("identity", "setgroups(0)", unix.EPERM, 0, unix.SYS_SETGROUPS, zero(), zero())
	if b.plan.LandlockABI >= 6 {
		b.probe("landlock", "kill(1, 0)", unix.EPERM, 0, unix.SYS_KILL, initproc.Value(1), zero())
	}
}
