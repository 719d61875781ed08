package codewatch

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// identity is what the kernel says of an open file, without asking its file system.
type identity struct {
	ID
	mount mount
	path  string
}

// identify reads the inode and the mount from /proc/self/fdinfo (the inode since
// 5.14), where O_PATH descriptors are told of too, and no server of a FUSE is
// asked. pid is a live process of the run: a mount that was not marked by itself
// is looked up in its table.
func (m *mounts) identify(fd int, pid uint32) identity {
	var out identity
	number := strconv.Itoa(fd)
	var buf [1024]byte // the lines that are read come first
	text := readStart("/proc/self/fdinfo/"+number, buf[:])
	var known bool
	out.Ino = field(text, "ino:")
	if out.mount, known = m.find(field(text, "mnt_id:"), pid); known {
		out.Dev = out.mount.dev
	} else {
		var stx unix.Statx_t
		if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &stx) == nil {
			out.Dev = unix.Mkdev(stx.Dev_major, stx.Dev_minor)
		}
	}
	out.path, _ = os.Readlink("/proc/self/fd/" + number)
	return out
}

// deleted is what the kernel appends to the path of a file without a name (proc(5)).
// A name may end so too, which the number of links tells apart.
const deleted = " (deleted)"

func (i *identity) file(links uint32) File {
	f := File{ID: i.ID, Path: i.path, Gone: links == 0}
	if f.Gone {
		f.Path = strings.TrimSuffix(f.Path, deleted)
	}
	return f
}

// open opens the run's own table of mounts, once, while a process of the run
// waits: what it shows can be read when that is gone.
func (m *mounts) open(pid uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.table == nil && !m.read {
		m.table, _ = os.Open("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/mountinfo") // find tries again
	}
}

func (m *mounts) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = true
	if m.table == nil {
		return nil
	}
	defer func() { m.table = nil }()
	return m.table.Close()
}

// find returns a mount by its number. Nothing inside can mount, so the run's
// own table, in which the merged trees and the parts of the scratch file system
// are, is read once.
func (m *mounts) find(id uint64, pid uint32) (mount, bool) {
	if found, ok := m.have(id); ok || pid == 0 {
		return found, ok
	}
	m.open(pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read || m.table == nil {
		found, ok := m.byID[id]
		return found, ok
	}
	m.read = true
	text, err := io.ReadAll(m.table)
	if err != nil {
		return mount{}, false
	}
	for _, h := range parseMounts(text) {
		if _, marked := m.byID[h.id]; !marked {
			m.byID[h.id] = h.as(false)
		}
	}
	found, ok := m.byID[id]
	return found, ok
}

func (m *mounts) have(id uint64) (mount, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.byID[id]
	return found, ok
}

// readStart reads the beginning of a file of procfs with as few calls as can be:
// an execve waits for it.
func readStart(name string, buf []byte) []byte {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, _ := unix.Read(fd, buf)
	return buf[:max(n, 0)]
}

// field reads a number from the line that begins with name.
func field(text []byte, name string) uint64 {
	for line := range bytes.Lines(text) {
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
			return n
		}
	}
	return 0
}
