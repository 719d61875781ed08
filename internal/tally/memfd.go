package tally

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memfds is what is in the memfds that processes have open, each once.
type memfds struct {
	t    *Tally
	seen map[[2]uint64]bool // device and inode
	sum  int64
}

// of adds those of a process, and reports false where it ended before they were read.
func (m *memfds) of(p *status) bool {
	read := m.t.through(p, func(dir string) error { return m.add(p, p.tid, dir+"fd/") })
	if p.threads > 1 {
		m.others(p)
	}
	return read
}

// others adds what threads have open that do not have the descriptors of the one that p is read by: each can have its
// own (unshare(CLONE_FILES), or a clone(2) with CLONE_THREAD and without CLONE_FILES).
func (m *memfds) others(p *status) {
	for _, tid := range m.t.tids(p.pid, p.threads) {
		if tid != p.tid && !same(p.tid, tid, kcmpFiles) {
			m.t.refused(p.process, tid, m.add(p, tid, fmt.Sprintf("/proc/%d/task/%d/fd/", p.pid, tid)))
		}
	}
}

// add adds what a directory of descriptors leads to.
func (m *memfds) add(p *status, tid int, dir string) error {
	fds, err := numbered(dir)
	lost := false
	for _, fd := range fds {
		if m.t.late() {
			return nil
		}
		name := dir + strconv.Itoa(fd)
		var st unix.Stat_t
		to, err := os.Readlink(name)
		if err == nil && strings.HasPrefix(to, "/memfd:") {
			err = unix.Stat(name, &st)
		}
		if err != nil { // it was closed, where the thread is still there
			m.t.refused(p.process, tid, err)
			lost = true
		}
		if err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		if key := [2]uint64{uint64(st.Dev), st.Ino}; !m.seen[key] {
			m.seen[key] = true
			m.sum += st.Blocks * 512
		}
	}
	if lost && err == nil {
		if s, gone := threadOf(p.pid, tid); gone != nil || s.ended() {
			return unix.ESRCH
		}
	}
	return err
}
