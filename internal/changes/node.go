package changes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/outer"
)

// meta is what statx(2) says of one name.
type meta struct {
	mode     uint32 // with the type
	uid, gid uint32
	nlink    uint32
	size     int64
	ino, dev uint64
	rdev     uint64
	mnt      uint64
	mtime    int64
	ctime    int64
}

func (m *meta) typ() Type {
	switch m.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return Fifo
	case unix.S_IFSOCK:
		return Socket
	}
	return Device
}

// whiteout reports the overlay's mark for a name that was deleted.
func (m *meta) whiteout() bool { return m.mode&unix.S_IFMT == unix.S_IFCHR && m.rdev == 0 }

// statAt describes name in dir, or dir itself when name is "". A name that does
// not exist is unix.ENOENT.
func statAt(dir int, name string) (meta, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != nil {
		return meta{}, err
	}
	if err := realOwner(dir, name, &st); err != nil {
		return meta{}, err
	}
	ns := func(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }
	return meta{
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, nlink: st.Nlink, size: int64(st.Size), ino: st.Ino,
		dev: unix.Mkdev(st.Dev_major, st.Dev_minor), rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor), mnt: st.Mnt_id, mtime: ns(st.Mtime), ctime: ns(st.Ctime),
	}, nil
}

// realOwner is for a process in a user namespace of its own, which sees itself and strangers.
func realOwner(dir int, name string, st *unix.Statx_t) error {
	if !outer.Foreign(st.Uid, st.Gid) {
		return nil
	}
	fd := dir
	if name != "" {
		var err error
		if fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	var owner unix.Stat_t
	err := outer.Fstat(fd, &owner)
	if err == nil && owner.Ino != st.Ino {
		return errReplaced
	}
	st.Uid, st.Gid = owner.Uid, owner.Gid
	return err
}

// ids turns the ids of a layer into the host's: a run with a user id of its own
// stands for root.
type ids struct{ own uint32 } // 0: as they are

func (i ids) host(id uint32) uint32 {
	if i.own != 0 && id == i.own {
		return 0
	}
	return id
}

// read describes name in dir without its content: type, mode, owner, target,
// attributes. fd is the open file or directory, or -1 for other types.
func (i ids) read(dir int, name string, m *meta) (n *Node, fd int, err error) {
	n = &Node{Type: m.typ(), Mode: m.mode & 0o7777, UID: i.host(m.uid), GID: i.host(m.gid), MTime: m.mtime}
	switch n.Type {
	case Symlink:
		n.Target, err = readLink(dir, name)
		return n, -1, err
	case File, Dir:
	default:
		return n, -1, nil
	}
	if fd, err = openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOATIME, 0); err == unix.EPERM { // O_NOATIME is the owner's
		fd, err = openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, -1, err
	}
	if got, err := statAt(fd, ""); err != nil || got.ino != m.ino || got.dev != m.dev {
		return nil, -1, errors.Join(err, errReplaced, unix.Close(fd)) // only the host's side can do that
	}
	if n.Type == File {
		n.Size = m.size
	}
	if n.Xattrs, err = i.xattrs(fd); err != nil {
		return nil, -1, errors.Join(err, unix.Close(fd))
	}
	return n, fd, nil
}

var errReplaced = errors.New("it was replaced while it was read")

// readable reports whether a user may read a node by its mode alone. What the
// run's user may not read is not copied into its record, which that user reads:
// a directory's owner can rename another's file in it, and so have it copied up.
func (n *Node) readable(uid, gid uint32) bool {
	switch {
	case uid == 0 || n.UID == uid: // an owner can give itself the right
		return true
	case n.GID == gid:
		return n.Mode&0o040 != 0
	}
	return n.Mode&0o004 != 0
}

func readLink(dir int, name string) ([]byte, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return nil, os.NewSyscallError("readlinkat", err)
	}
	return buf[:n], nil
}

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
	// maxXattrs bounds the attributes of one object, in bytes (the kernel's own limit of one list is 64 KiB).
	maxXattrs = 256 << 10
)

// kept reports the attributes that a change set holds: the user's and access
// lists. security.* and trusted.* are the host's to give.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") || name == aclAccess || name == aclDefault
}

func (i ids) xattrs(fd int) (map[string][]byte, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, list)
	if err == unix.EOPNOTSUPP || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("flistxattr", err)
	}
	var out map[string][]byte
	total := 0
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if !kept(name) {
			continue
		}
		v, err := getXattr(fd, name)
		if err == unix.ENODATA {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("fgetxattr", err)
		}
		if total += len(v); total > maxXattrs {
			return nil, fmt.Errorf("more than %d bytes of attributes", maxXattrs)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		if name == aclAccess || name == aclDefault {
			i.acl(v)
		}
		out[name] = v
	}
	return out, nil
}

func getXattr(fd int, name string) ([]byte, error) {
	n, err := unix.Fgetxattr(fd, name, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	v := make([]byte, n)
	n, err = unix.Fgetxattr(fd, name, v)
	return v[:max(n, 0)], err
}

// acl maps the ids of an access list in place: a header of 4 bytes, then
// entries of tag, permissions (16 bits each) and id (include/uapi/linux/posix_acl_xattr.h).
func (i ids) acl(v []byte) {
	for at := 4; at+8 <= len(v); at += 8 {
		id := binary.LittleEndian.Uint32(v[at+4:])
		if id != ^uint32(0) {
			binary.LittleEndian.PutUint32(v[at+4:], i.host(id))
		}
	}
}

// old adds the identity of the host's side.
func (n *Node) identify(m *meta) { n.Dev, n.Ino, n.CTime = m.dev, m.ino, m.ctime }
