package codewatch

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

// Mount is a part of what the run sees. It may be detached still: a mark stays
// when it is attached.
type Mount struct {
	Name string // for errors
	Tree *os.File
	// Source is what Tree is a recursive copy of (open_tree(2)).
	Source *os.File
	// System mounts are the same for every run and cannot be written by it: of
	// what they hold only scripts are stored, and digests are cached.
	System bool
}

// mount is what identify needs to know of a marked mount.
type mount struct {
	dev          uint64 // of the file system, as stat encodes it
	fuse, system bool
	noexec       bool // or of a kind that has neither programs nor permission events (proc)
}

// mounts are the run's mounts by the kernel's number (statx(2), stx_mnt_id).
type mounts struct {
	mu    sync.Mutex
	byID  map[uint64]mount
	table *os.File // the run's own
	read  bool     // byID has what is in it
}

// Mark marks mounts, with all that is mounted in them: a mark on a mount does not
// cover the mounts in it.
func (w *Watch) Mark(list []Mount) error {
	host, err := hostMounts()
	if err != nil {
		return err
	}
	var errs []error
	for i := range list {
		if err := w.markTree(&list[i], host); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", list[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

func (w *Watch) markTree(m *Mount, host []hostMount) error {
	top, below, err := submounts(m.Source, host)
	if err != nil {
		return err
	}
	errs := []error{w.markOne(int(m.Tree.Fd()), top.as(m.System))}
	for i := range below {
		errs = append(errs, w.markBelow(m, &below[i]))
	}
	return errors.Join(errs...)
}

// markBelow marks a mount inside a tree. It is found by its path: a tree that is
// detached is in no table.
func (w *Watch) markBelow(m *Mount, sub *hostMount) error {
	fd, err := unix.Openat2(int(m.Tree.Fd()), sub.point, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // covered by a mount above it, or never copied: nobody can get there
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sub.point, err)
	}
	defer unix.Close(fd)
	return w.markOne(fd, sub.as(m.System))
}

func (w *Watch) markOne(fd int, as mount) error {
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	w.mounts.mu.Lock()
	_, done := w.mounts.byID[id]
	w.mounts.byID[id] = as
	w.mounts.mu.Unlock()
	if done {
		return nil
	}
	if w.group == nil || as.noexec || as.fuse { // of FUSE: its server may be waiting for the very run
		return nil
	}
	return w.group.mark(fd)
}

func mountID(fd int) (uint64, error) {
	var stx unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &stx)
	return stx.Mnt_id, os.NewSyscallError("statx", err)
}

// hostMount is one line of /proc/thread-self/mountinfo (proc(5)).
type hostMount struct {
	id, parent uint64
	dev        uint64 // of the file system
	point      string // where it is mounted; of a submount: below the source
	kind       string // type of the file system
	noexec     bool   // nothing on it is executed (mount(2), MS_NOEXEC)
}

func (h *hostMount) as(system bool) mount {
	return mount{dev: h.dev, fuse: isFUSE(h.kind), noexec: h.noexec || h.kind == "proc", system: system}
}

// isFUSE tells file systems whose files are served by a process of this machine.
func isFUSE(kind string) bool {
	return kind == "fuse" || kind == "fuseblk" || strings.HasPrefix(kind, "fuse.")
}

func hostMounts() ([]hostMount, error) {
	text, err := mountinfo.ReadThread()
	return parseMounts(text), err
}

func parseMounts(text []byte) []hostMount {
	var out []hostMount
	for m := range mountinfo.All(text) {
		out = append(out, hostMount{m.ID, m.Parent, unix.Mkdev(m.Major, m.Minor), m.Point, m.Kind, m.Has("noexec")})
	}
	return out
}

// submounts finds the mount that source lies on, and those that are mounted
// below source, with their places relative to it.
func submounts(source *os.File, host []hostMount) (top hostMount, below []hostMount, err error) {
	id, err := mountID(int(source.Fd()))
	if err != nil {
		return top, nil, err
	}
	place, err := os.Readlink(fdPath(int(source.Fd())))
	if err != nil {
		return top, nil, err
	}
	children := map[uint64][]int{}
	for i := range host {
		if host[i].id == id {
			top = host[i]
		}
		children[host[i].parent] = append(children[host[i].parent], i)
	}
	if top.id != id { // of another mount namespace, as in a chroot
		var st unix.Stat_t
		if err := unix.Fstat(int(source.Fd()), &st); err != nil {
			return top, nil, os.NewSyscallError("fstat", err)
		}
		top = hostMount{id: id, dev: st.Dev}
	}
	prefix := strings.TrimSuffix(place, "/") + "/"
	for queue := []uint64{id}; len(queue) > 0; queue = queue[1:] {
		for _, i := range children[queue[0]] {
			rel, inside := strings.CutPrefix(host[i].point, prefix)
			if !inside || host[i].id == queue[0] {
				continue
			}
			sub := host[i]
			sub.point = rel
			below = append(below, sub)
			queue = append(queue, sub.id)
		}
	}
	return top, below, nil
}
