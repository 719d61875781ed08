package helper

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// world is what a peer must share with the helper: a path, an address and a number of a
// user or process mean the same to both then.
var world = []struct{ file, means string }{
	{"ns/mnt", "mount namespace"},
	{"ns/user", "user namespace"},
	{"ns/pid", "PID namespace"},
	{"ns/net", "network namespace"},
	{"root", "root directory"},
}

// ourWorld is that of this process, which does not leave it.
var ourWorld = sync.OnceValues(func() ([]string, error) {
	dir, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/self", Err: err}
	}
	defer unix.Close(dir)
	return worldOf(dir)
})

// worldOf names what is in a directory of /proc. A namespace's name is its kind and number
// (namespaces(7)): to stat it, the kernel would make an inode each time. A name of the root
// directory means nothing outside, so that is known by its inode.
func worldOf(proc int) ([]string, error) {
	names := make([]string, 0, len(world))
	for _, w := range world {
		var name string
		var err error
		if strings.HasPrefix(w.file, "ns/") {
			var text [64]byte
			var n int
			n, err = unix.Readlinkat(proc, w.file, text[:])
			name = string(text[:max(n, 0)])
		} else {
			var st unix.Stat_t
			err = unix.Fstatat(proc, w.file, &st, 0)
			name = fmt.Sprint(st.Dev, " ", st.Ino)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.means, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// Vet refuses a peer for whom the helper must not act: one that is in namespaces of
// its own, where the helper would reach more than it can, and one that has given up
// gaining rights (no_new_privs, which every sandbox without root sets, Landlock and
// seccomp included): it could not use sudo either.
func (p *Peer) Vet() error {
	theirs, err := worldOf(int(p.proc.Fd()))
	if err != nil {
		return fmt.Errorf("the caller's %w", err)
	}
	ours, err := ourWorld()
	if err != nil {
		return err
	}
	for i, w := range world {
		if theirs[i] != ours[i] {
			return fmt.Errorf("the caller has another %s than the helper, which acts only for processes of its own", w.means)
		}
	}
	status, err := p.read("status")
	if err != nil {
		return err
	}
	if v := field(status, "NoNewPrivs"); v != "0" {
		return fmt.Errorf("the caller must not gain privileges (no_new_privs is %q), by the helper neither; call from outside the sandbox or the service that has set it", v)
	}
	if err := p.same(status, "Uid", p.UID); err != nil {
		return err
	}
	if err := p.same(status, "Gid", p.GID); err != nil { // a set-group-id program lends its group to nobody
		return err
	}
	return p.alive()
}

// same compares the real, effective, saved and file-system ids with the connection's.
func (p *Peer) same(status []byte, name string, id int) error {
	for _, v := range strings.Fields(field(status, name)) {
		if v != strconv.Itoa(id) {
			return fmt.Errorf("the caller has changed its ids since it connected, or has several: %s %s, and the connection's is %d", name, v, id)
		}
	}
	return nil
}
