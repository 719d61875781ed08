package codewatch

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// merged is a copy-on-write tree of the run.
type merged struct {
	at    string
	upper *os.File
}

// Merge tells where the run sees a tree that an overlay merges, before anything in it is
// executed, and gives the Watch its upper layer, which Close closes.
func (w *Watch) Merge(at string, upper *os.File) {
	w.merged = append(w.merged, merged{at, upper})
}

// hasWriter reports whether somebody may still write to the file without a new ctime.
func (w *Watch) hasWriter(fd int, v Version) bool {
	return held(fd) || w.heldBelow(fd, v)
}

// held reports whether somebody holds the file open, or mapped, to write to
// it. Who has written to a shared mapping once can go on without a new ctime;
// whoever comes later cannot. A lease for reading is refused while there is such
// a holder (fcntl(2), F_SETLEASE); file systems without leases do not tell. Of another
// user's file CAP_LEASE is asked for. Without root we have the run's own user, who writes
// to no other's; root without it cannot tell.
func held(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) && os.Geteuid() == 0
}

// heldBelow asks the same of the file below a merged tree's. An overlay maps the file of its
// layer (fs/overlayfs/file.c, ovl_mmap): its own inode knows of who has it open, and
// nothing of a mapping whose descriptor was closed, not even to refuse an execve (ETXTBSY).
// The run writes to the upper only, and there a file has the name that it has in the tree. Of
// one without a name, or whose name changes meanwhile, nobody can say.
func (w *Watch) heldBelow(fd int, v Version) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return false
	}
	path, err := os.Readlink(fdPath(fd))
	m, rel := w.mergedAt(path)
	if m == nil || err != nil {
		return err != nil // else an overlay of the host's
	}
	yes := m.held(rel, fd, v)
	again, err := os.Readlink(fdPath(fd))
	return yes || err != nil || again != path
}

// mergedAt finds the innermost tree that a path lies in, and the rest of the path.
func (w *Watch) mergedAt(path string) (m *merged, rel string) {
	for i := range w.merged {
		here, inside := strings.CutPrefix(path, strings.TrimSuffix(w.merged[i].at, "/")+"/")
		if inside && (m == nil || len(here) < len(rel)) {
			m, rel = &w.merged[i], here
		}
	}
	return m, rel
}

// held asks the file of the upper at rel, if it is the version of the tree's that fd is open on.
func (m *merged) held(rel string, fd int, v Version) bool {
	place, err := m.open(rel)
	if errors.Is(err, unix.ENOENT) { // of the lower, or without a name
		_, links, err := keyOf(fd, 0)
		return err != nil || links == 0
	}
	if err != nil {
		return true
	}
	defer place.Close()
	own, err := openRegular(place)
	if err != nil {
		return true
	}
	defer own.Close()
	now, _, err := keyOf(int(own.Fd()), 0)
	return err != nil || now.Version != v || held(int(own.Fd()))
}

func (m *merged) open(rel string) (f *os.File, err error) {
	const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	conn, err := m.upper.SyscallConn() // a hash that was left behind may come after Close
	if err != nil {
		return nil, err
	}
	if closed := conn.Control(func(dir uintptr) { f, err = openPath(int(dir), rel, resolve) }); closed != nil {
		return nil, closed
	}
	return f, err
}
