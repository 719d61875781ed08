//go:build linux

package metadata

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// request is what a call asks for.
type request struct {
	path     string
	dir      int32              // where it begins: a descriptor of the caller's, or AT_FDCWD
	nofollow bool               // of a link as the last part itself
	self     bool               // the file is what dir is
	act      func(fd int) error // fd is O_PATH
}

// decode reads what a call asks for; false: it is not one that is made for the command.
func decode(c *Call, m *memory) (*request, bool) {
	a, at := c.Args, 0
	name, r := c.Name, &request{dir: unix.AT_FDCWD}
	if strings.HasSuffix(strings.TrimRight(name, "2"), "at") { // fchmodat, fchmodat2, fchownat, utimensat, futimesat
		r.dir, at = int32(a[0]), 1
	}
	flags := uint64(0)
	switch name {
	case "chmod", "fchmodat", "fchmodat2":
		r.chmod(uint32(a[at+1]))
		if name == "fchmodat2" {
			flags = a[3]
		}
	case "chown", "lchown", "fchownat":
		r.act = func(fd int) error {
			return unix.Fchownat(fd, "", int(int32(a[at+1])), int(int32(a[at+2])), unix.AT_EMPTY_PATH)
		}
		if name == "fchownat" {
			flags = a[4]
		}
	case "utime", "utimes", "futimesat", "utimensat":
		if !r.times(name, a[at+1], m) {
			return nil, false
		}
		if name == "utimensat" {
			flags = a[3]
		}
	case "setxattr", "lsetxattr", "removexattr", "lremovexattr":
		if !r.attribute(name, a, m) {
			return nil, false
		}
	default:
		return nil, false
	}
	r.nofollow = name[0] == 'l' || flags&unix.AT_SYMLINK_NOFOLLOW != 0
	path, ok := m.text(a[at], unix.PathMax)
	r.path, r.self = path, path == "" && flags&unix.AT_EMPTY_PATH != 0
	return r, ok && (path != "" || r.self) && uint32(flags)&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) == 0
}

// chmod never sets set-user-id or set-group-id, whoever asks.
func (r *request) chmod(mode uint32) {
	r.act = func(fd int) error {
		return unix.Fchmodat(unix.AT_FDCWD, ownPath(fd), mode&0o7777&^(unix.S_ISUID|unix.S_ISGID), 0)
	}
}

// times reads the times of utime(2), utimes(2), futimesat(2) and utimensat(2).
func (r *request) times(name string, addr uint64, m *memory) bool {
	var ts []unix.Timespec // nil: now
	if addr != 0 {
		size, unit := 32, int64(1) // two of struct timespec
		switch name {
		case "utime": // struct utimbuf: seconds alone
			size = 16
		case "utimes", "futimesat": // struct timeval: microseconds
			unit = 1000
		}
		b := make([]byte, size)
		if !m.read(addr, b) {
			return false
		}
		ts = make([]unix.Timespec, 2)
		for i := range ts {
			part := b[i*size/2:]
			ts[i].Sec = int64(binary.LittleEndian.Uint64(part))
			if size == 32 {
				ts[i].Nsec = int64(binary.LittleEndian.Uint64(part[8:])) * unit
			}
		}
		if unit > 1 && !(micro(ts[0].Nsec) && micro(ts[1].Nsec)) { // UTIME_NOW would be another's word
			return false
		}
	}
	r.act = func(fd int) error { return unix.UtimesNanoAt(unix.AT_FDCWD, ownPath(fd), orNow(ts), 0) }
	return true
}

func micro(ns int64) bool { return ns >= 0 && ns < 1e9 }

// orNow: x/sys takes both times, of which UTIME_NOW is what a null pointer means (utimensat(2)).
func orNow(ts []unix.Timespec) []unix.Timespec {
	if ts == nil {
		return []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	}
	return ts
}

// maxName and maxValue are XATTR_NAME_MAX + 1 and XATTR_SIZE_MAX (include/uapi/linux/limits.h).
const maxName, maxValue = 256, 64 << 10

// include/uapi/linux/xattr.h
const (
	userPrefix = "user."
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// attribute reads a user attribute, or the list of who may do what (acl(5)): cp -p and mv make modes
// of it. Those of the kernel's own modules are not to be had.
func (r *request) attribute(call string, a [6]uint64, m *memory) bool {
	name, ok := m.text(a[1], maxName)
	if !ok || !strings.HasPrefix(name, userPrefix) && name != aclAccess && name != aclDefault {
		return false
	}
	if strings.HasSuffix(call, "removexattr") {
		r.act = func(fd int) error { return unix.Removexattr(ownPath(fd), name) }
		return true
	}
	if a[3] > maxValue {
		r.act = func(int) error { return unix.E2BIG }
		return true
	}
	value := make([]byte, a[3])
	r.act = func(fd int) error { return unix.Setxattr(ownPath(fd), name, value, int(int32(a[4]))) }
	return m.read(a[2], value)
}

// memory is that of a thread that waits.
type memory struct{ tid int }

// read fills b from addr.
func (m *memory) read(addr uint64, b []byte) bool {
	if len(b) == 0 {
		return true
	}
	n, err := unix.ProcessVMReadv(m.tid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	return err == nil && n == len(b)
}

// text reads a string of less than limit bytes. No page is read in part: what lies behind
// the string may not be there.
func (m *memory) text(addr uint64, limit int) (string, bool) {
	const page = 4096 // at most the kernel's
	var out []byte
	for len(out) < limit {
		b := make([]byte, page-addr%page)
		if !m.read(addr, b) {
			return "", false
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			out = append(out, b[:i]...)
			return string(out), len(out) < limit
		}
		out, addr = append(out, b...), addr+uint64(len(b))
	}
	return "", false
}
