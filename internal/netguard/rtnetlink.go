package netguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// routes sends what the namespace needs of rtnetlink(7): addresses of lo and
// local routes to it. Messages are collected and sent together.
type routes struct {
	fd     int
	batch  []byte
	queued int
	seq    uint32
	errs   []error
}

// loIndex is lo's in every namespace (LOOPBACK_IFINDEX, include/net/flow.h).
const loIndex = 1

// maxQueued bounds the acknowledgements that wait in the socket.
const maxQueued = 64

func openRoutes() (*routes, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &routes{fd: fd}, nil
}

func (r *routes) close() { unix.Close(r.fd) }

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// address gives lo an address of its own (struct ifaddrmsg).
func (r *routes) address(a netip.Addr) {
	m := []byte{family(a), byte(a.BitLen()), unix.IFA_F_PERMANENT | unix.IFA_F_NODAD, unix.RT_SCOPE_HOST}
	m = binary.NativeEndian.AppendUint32(m, loIndex)
	m = attribute(m, unix.IFA_LOCAL, a.AsSlice())
	m = attribute(m, unix.IFA_ADDRESS, a.AsSlice())
	r.add(unix.RTM_NEWADDR, m)
}

// local makes every address of a range the namespace's own (struct rtmsg). The
// source is loopback: a client would otherwise have the address that it
// connects to.
func (r *routes) local(p netip.Prefix) {
	src := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if p.Addr().Is6() {
		src = netip.IPv6Loopback()
	}
	m := []byte{family(p.Addr()), byte(p.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	m = attribute(m, unix.RTA_DST, p.Addr().AsSlice())
	m = attribute(m, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loIndex))
	m = attribute(m, unix.RTA_PREFSRC, src.AsSlice())
	r.add(unix.RTM_NEWROUTE, m)
}

// attribute appends a struct rtattr; all of ours are multiples of four bytes.
func attribute(m []byte, kind uint16, value []byte) []byte {
	m = binary.NativeEndian.AppendUint16(m, uint16(4+len(value)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	return append(m, value...)
}

func (r *routes) add(kind uint16, body []byte) {
	r.seq++
	b := binary.NativeEndian.AppendUint32(r.batch, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	b = binary.NativeEndian.AppendUint32(b, r.seq)
	r.batch = append(binary.NativeEndian.AppendUint32(b, 0), body...)
	if r.queued++; r.queued == maxQueued {
		r.send()
	}
}

// flush sends what is queued and returns everything that was refused.
func (r *routes) flush() error {
	r.send()
	return errors.Join(r.errs...)
}

func (r *routes) send() {
	want := r.queued
	batch := r.batch
	r.batch, r.queued = nil, 0
	if want == 0 {
		return
	}
	if err := unix.Sendto(r.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		r.errs = append(r.errs, os.NewSyscallError("sendto", err))
		return
	}
	for want > 0 {
		buf := make([]byte, 16<<10)
		n, _, err := unix.Recvfrom(r.fd, buf, 0)
		if err != nil {
			r.errs = append(r.errs, os.NewSyscallError("recvfrom", err))
			return
		}
		acks, err := acknowledged(buf[:n])
		want -= acks
		if err != nil {
			r.errs = append(r.errs, err)
		}
	}
}

// acknowledged counts the acknowledgements of a message and returns what they refuse.
func acknowledged(b []byte) (n int, err error) {
	for len(b) >= unix.NLMSG_HDRLEN+4 {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN+4 || size > len(b) {
			return n, errors.New("rtnetlink: a malformed answer")
		}
		if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
			n++
			if code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:])); code != 0 {
				err = errors.Join(err, fmt.Errorf("rtnetlink: %w", unix.Errno(-code)))
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return n, err
}
