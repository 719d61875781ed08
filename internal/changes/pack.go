package changes

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is one copy-on-write grant of a dead run.
type Tree struct {
	Upper *os.File // what the command changed; readable
	Lower *os.File // the granted directory of the host
	Host  string   // its path, absolute
	In    string   // its path below the tree that it was mounted in, or ""
	Own   uint32   // the run's own user id, which stands for root; 0: none
	UID   uint32   // whose changes they are, as the host knows them
	GID   uint32
	User  bool // the overlay was mounted in a user namespace: its marks are user.overlay.*
}

// Bounds of one change set.
type Bounds struct {
	Entries  int   // lines of the index
	Bytes    int64 // read to digest and keep contents, old and new
	OldBytes int64 // of old contents that are kept, so that a patch can be shown
	OldFile  int64 // the largest of them
	OldFiles int   // how many
}

// DefaultBounds are for a run whose storage is bounded as runs are.
func DefaultBounds() Bounds {
	return Bounds{Entries: 1 << 20, Bytes: 64 << 30, OldBytes: 64 << 20, OldFile: 1 << 20, OldFiles: 500}
}

// Summary counts a change set.
type Summary struct {
	Added, Modified, Deleted, Renamed int

	Bytes    int64    // of the index
	Touched  int      // only the time of change differs
	Entries  int      // lines of the index
	SHA256   string   // of the index
	Findings []string // why it is not complete; empty: it is
}

// Empty reports that nothing was changed.
func (s *Summary) Empty() bool { return s.Added+s.Modified+s.Deleted+s.Renamed+s.Touched == 0 }

// maxDepth bounds the levels of a tree. What lies deeper is a finding.
const maxDepth = 1 << 17

// Pack writes the changes of trees, which nothing changes any more, into the
// empty directory dir. The bounds and what could not be read become findings:
// the change set says that it is not complete.
func Pack(dir *os.File, trees []Tree, b Bounds) (Summary, error) {
	s, err := createStore(dir)
	if err != nil {
		return Summary{}, err
	}
	p := &packer{store: s, left: b, links: map[uint64]int{}}
	for i := range trees {
		if err = p.tree(&trees[i]); err != nil {
			break
		}
	}
	if errors.Is(err, errBound) {
		err = nil // already a finding
	}
	if err == nil {
		p.sum.SHA256, err = s.end(p.sum.Findings)
	}
	p.sum.Bytes = s.size
	p.sum.Entries = s.n
	return p.sum, errors.Join(err, s.close())
}

// Untouched reports a tree whose upper nothing was done to.
func Untouched(t *Tree) (bool, error) {
	names, err := sortedNames(int(t.Upper.Fd()))
	if err != nil || len(names) > 0 {
		return false, err
	}
	up, err := statAt(int(t.Upper.Fd()), "")
	if err != nil {
		return false, err
	}
	lo, err := statAt(int(t.Lower.Fd()), "")
	i := ids{t.Own}
	return up.mode == lo.mode && (t.User || i.host(up.uid) == lo.uid && i.host(up.gid) == lo.gid), err
}

// errBound ends a pack that has met a bound of the whole set.
var errBound = errors.New("bound met")

type packer struct {
	*store
	left  Bounds
	sum   Summary
	links map[uint64]int // entries of upper files with several names, by inode

	t     *Tree
	ids   ids
	claim map[place]bool // lower directories that were renamed
	walk  walk
	stop  bool // pass 1 only looks for renames
	bare  bool // the upper's file system has no user attributes (tmpfs before Linux 6.6)
}

// place identifies a directory of the lower tree.
type place struct{ dev, ino uint64 }

func (p *packer) finding(format string, a ...any) {
	const most = 20
	if len(p.sum.Findings) < most {
		p.sum.Findings = append(p.sum.Findings, fmt.Sprintf(format, a...))
	}
}

func (p *packer) tree(t *Tree) error {
	p.t, p.ids, p.claim = t, ids{t.Own}, map[place]bool{}
	for _, looking := range []bool{true, false} { // renamed directories are known before anything is called deleted
		p.stop = looking
		if err := p.pass(); err != nil {
			return err
		}
	}
	return nil
}

// pass walks the tree once.
func (p *packer) pass() error {
	up, err := unix.Openat(int(p.t.Upper.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("changes: upper of %s: %w", p.t.Host, err)
	}
	lo, err := unix.Openat(int(p.t.Lower.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("changes: %s: %w", p.t.Host, err), unix.Close(up))
	}
	p.walk = walk{}
	defer p.walk.close()
	f, err := newFrame(up, lo)
	if err != nil {
		return err
	}
	if err := p.root(f); err != nil {
		return err
	}
	p.walk.push(f)
	for p.walk.top() != nil {
		if err := p.step(); err != nil {
			return err
		}
	}
	return nil
}

// root describes the top directory, which is always an entry.
func (p *packer) root(f *frame) error {
	if err := f.list(p.stop); err != nil {
		return err
	}
	if p.stop {
		return nil
	}
	old, err := p.lowerNode(f.lo.fd, ".", nil)
	if err != nil {
		return err
	}
	m, err := statAt(f.up.fd, "")
	if err != nil {
		return err
	}
	now, fd, err := p.ids.read(f.up.fd, ".", &m)
	if err != nil {
		return err
	}
	unix.Close(fd)
	_, err = getXattr(f.up.fd, "user.agentguard")
	p.bare = err == unix.EOPNOTSUPP
	p.carry(old, now)
	if p.t.User { // which has one user and one group: the upper could not be given the directory's, nor could the command
		now.UID, now.GID = old.UID, old.GID
	}
	e := &Entry{Name: []byte(p.t.Host), Old: old, New: now, UID: p.t.UID, GID: p.t.GID, Within: []byte(p.t.In)}
	if sameState(old, now) {
		e.New = nil
	}
	err = p.emit(e)
	f.n = e.N
	return err
}

// carry gives the new side the old side's user attributes where the upper could
// not hold any.
func (p *packer) carry(old, now *Node) {
	if !p.bare || old == nil {
		return
	}
	for k, v := range old.Xattrs {
		if strings.HasPrefix(k, "user.") {
			if now.Xattrs == nil {
				now.Xattrs = map[string][]byte{}
			}
			now.Xattrs[k] = v
		}
	}
}

// emit writes an entry and counts it.
func (p *packer) emit(e *Entry) error {
	if p.left.Entries--; p.left.Entries < 0 {
		p.finding("more entries than a change set holds")
		return errBound
	}
	p.sum.count(e)
	return p.add(e)
}

// step takes the next name of the directory on top.
func (p *packer) step() error {
	f := p.walk.top()
	if len(f.names) == 0 {
		return p.walk.pop()
	}
	name := f.names[0]
	f.names = f.names[1:]
	err := p.name(f, name)
	var gone *goneError
	if errors.As(err, &gone) && !errors.Is(err, errBound) {
		p.finding("%v", err)
		return nil
	}
	return err
}

// goneError is a name that could not be read; the rest can.
type goneError struct {
	name string
	err  error
}

func (e *goneError) Error() string { return fmt.Sprintf("%q: %v", e.name, e.err) }
func (e *goneError) Unwrap() error { return e.err }
