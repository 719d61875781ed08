package supervisor

import (
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

// linkedBudget bounds the directory entries that are looked at for hard links
// after a run, and linkedMost what is told of them.
const (
	linkedBudget = 50000
	linkedMost   = 20
)

// inPlace reports a directory of the host in which changes are real.
func (e *Entry) inPlace() bool {
	return e.Op == "bind" && e.Access == "rw" && e.pinned == "" && e.open.Dir()
}

// linkedWrites lists the files that the run changed in place and that have names
// outside the directories where it could: the same bytes have changed there too.
// It goes by the time of change, which no process can set, and looks when the
// run has ended, so that a start costs nothing.
func (g *grants) linkedWrites(since time.Time) []string {
	type linked struct {
		where string
		names int // that were not seen
	}
	since = since.Add(-20 * time.Millisecond) // a file system's clock may be a tick behind (current_time(), fs/inode.c)
	files, order := map[devIno]*linked{}, []devIno{}
	left := linkedBudget
	for i := range g.entries {
		e := &g.entries[i]
		if !e.inPlace() || slices.ContainsFunc(g.entries, func(o Entry) bool { return o.inPlace() && o.From != e.From && within(e.From, o.From) }) {
			continue
		}
		walkDir(int(e.open.File.Fd()), ".", "", &left, func(dir int, rel string, d os.DirEntry) {
			var st unix.Stat_t
			if !d.Type().IsRegular() || unix.Fstatat(dir, d.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Nlink < 2 || time.Unix(st.Ctim.Unix()).Before(since) {
				return
			}
			id := devIno{st.Dev, st.Ino}
			if files[id] == nil {
				files[id] = &linked{where: path.Join(e.From, rel), names: int(st.Nlink)}
				order = append(order, id)
			}
			files[id].names--
		})
	}
	var out []string
	for _, id := range order {
		if f := files[id]; f.names > 0 && len(out) < linkedMost && left > 0 {
			out = append(out, trace.Quote(f.where))
		}
	}
	return out
}
