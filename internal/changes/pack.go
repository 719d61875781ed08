package changes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is one copy-on-write grant of a dead run.
type Tree struct {
	Upper *os.File // what the command changed; readable
	Lower *os.File // the granted directory of the host
	Host  string   // its path, absolute
	Own   uint32   // the run's own user id, which stands for root; 0: none
	UID   uint32   // whose changes they are, as the host knows them
	GID   uint32
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
	return Bounds{Entries: 4 << 20, Bytes: 64 << 30, OldBytes: 64 << 20, OldFile: 1 << 20, OldFiles: 500}
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
	return up.mode == lo.mode && i.host(up.uid) == lo.uid && i.host(up.gid) == lo.gid, err
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
	e := &Entry{Name: []byte(p.t.Host), Old: old, New: now, UID: p.t.UID, GID: p.t.GID}
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

// name compares both sides of one name.
func (p *packer) name(f *frame, name string) error {
	if p.stop {
		return p.look(f, name)
	}
	lo, err := p.lowerMeta(f, name)
	if err != nil {
		return &goneError{name, err}
	}
	if f.redo == name {
		lo, f.redo = nil, "" // its deletion is in the index already
	}
	if f.up.fd < 0 { // only the lower is there: all of it was deleted
		return p.deleted(f, name, lo)
	}
	up, err := statAt(f.up.fd, name)
	switch {
	case err == unix.ENOENT && f.opaque:
		return p.deleted(f, name, lo)
	case err != nil:
		return &goneError{name, err}
	case up.whiteout():
		return p.deleted(f, name, lo)
	case up.typ() == Dir:
		return p.dir(f, name, &up, lo)
	}
	return p.leaf(f, name, &up, lo)
}

// look is pass 1: only directories of the upper can be renamed ones.
func (p *packer) look(f *frame, name string) error {
	up, err := statAt(f.up.fd, name)
	if err != nil {
		return &goneError{name, err}
	}
	if up.typ() != Dir {
		return nil
	}
	lo, err := p.lowerMeta(f, name)
	if err != nil {
		return &goneError{name, err}
	}
	return p.dir(f, name, &up, lo)
}

// lowerMeta is the other side of name; nil when there is none.
func (p *packer) lowerMeta(f *frame, name string) (*meta, error) {
	if f.lo.fd < 0 {
		return nil, nil
	}
	m, err := statAt(f.lo.fd, name)
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.mnt != f.lo.mnt {
		return nil, nil // mounted over on the host: the overlay shows what is below
	}
	return &m, nil
}

// deleted emits a name of the lower and, for a directory, goes into it. What
// was renamed away is no deletion.
func (p *packer) deleted(f *frame, name string, lo *meta) error {
	if lo == nil || lo.typ() == Dir && p.claim[place{lo.dev, lo.ino}] {
		return nil
	}
	old, err := p.lowerNode(f.lo.fd, name, lo)
	if err != nil {
		return &goneError{name, err}
	}
	e, err := p.entry(name)
	if err != nil {
		return err
	}
	e.Old = old
	if err := p.emit(e); err != nil || old.Type != Dir {
		return err
	}
	return p.enterLower(f, name, e.N)
}

// enterLower goes into a directory that exists on the old side only.
func (p *packer) enterLower(f *frame, name string, n int) error {
	fd, err := openBeneath(f.lo.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return &goneError{name, err}
	}
	return p.enter(name, n, -1, fd, false)
}

// enter pushes a directory; the descriptors are its own from here on.
func (p *packer) enter(name string, n, up, lo int, opaque bool) error {
	f, err := newFrame(up, lo)
	if err != nil {
		return err
	}
	f.name, f.n, f.opaque = name, n, opaque
	if err := f.list(p.stop); err != nil {
		return &goneError{name, errors.Join(err, f.close())}
	}
	if len(p.walk.frames) > maxDepth {
		return &goneError{name, errors.Join(fmt.Errorf("deeper than %d levels", maxDepth), f.close())}
	}
	p.walk.pinFor(up < 0, lo < 0)
	p.walk.push(f)
	return nil
}

// entry begins an entry for a name in the directory on top. Directories on the
// way that have none yet, because nothing about them changed, get one.
func (p *packer) entry(name string) (*Entry, error) {
	known := len(p.walk.frames) - 1
	for p.walk.frames[known].n == 0 { // the root has one
		known--
	}
	parent := p.walk.frames[known].n
	for _, f := range p.walk.frames[known+1:] {
		e := &Entry{Parent: parent, Name: []byte(f.name)}
		if err := p.emit(e); err != nil {
			return nil, err
		}
		f.n, parent = e.N, e.N
	}
	return &Entry{Parent: parent, Name: []byte(name)}, nil
}

// dir compares a directory of the upper.
func (p *packer) dir(f *frame, name string, up *meta, lo *meta) error {
	fd, err := openBeneath(f.up.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return &goneError{name, err}
	}
	mark, err := readMarks(fd)
	if err == nil && len(mark.redirect) > 0 {
		return p.renamed(f, name, fd, up, lo, mark.redirect)
	}
	if err != nil {
		return &goneError{name, errors.Join(err, unix.Close(fd))}
	}
	lower := -1
	if lo != nil && lo.typ() == Dir && !p.claim[place{lo.dev, lo.ino}] {
		if lower, err = openBeneath(f.lo.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return &goneError{name, errors.Join(err, unix.Close(fd))}
		}
	}
	if p.stop {
		return p.enter(name, 0, fd, lower, mark.opaque || f.opaque)
	}
	if lo != nil && lo.typ() == Dir && lower < 0 {
		lo = nil // it was renamed, and another is in its place
	}
	n, err := p.dirEntry(f, name, up, lo)
	if err != nil {
		unix.Close(fd)
		closeFD(lower)
		return err
	}
	return p.enter(name, n, fd, lower, mark.opaque || f.opaque)
}

// dirEntry emits what changed about a directory itself; 0 when nothing did.
func (p *packer) dirEntry(f *frame, name string, up, lo *meta) (int, error) {
	now, fd, err := p.ids.read(f.up.fd, name, up)
	if err != nil {
		return 0, &goneError{name, err}
	}
	unix.Close(fd)
	var old *Node
	if lo != nil {
		if old, err = p.lowerNode(f.lo.fd, name, lo); err != nil {
			return 0, &goneError{name, err}
		}
	}
	p.carry(old, now)
	if old != nil && sameState(old, now) {
		return 0, nil
	}
	e, err := p.entry(name)
	if err != nil {
		return 0, err
	}
	e.Old, e.New = old, now
	err = p.emit(e)
	return e.N, err
}

// leaf compares everything but directories.
func (p *packer) leaf(f *frame, name string, up, lo *meta) error {
	now, err := p.upperNode(f.up.fd, name, up)
	if err != nil {
		return &goneError{name, err}
	}
	var old *Node
	if lo != nil && (lo.typ() != Dir || !p.claim[place{lo.dev, lo.ino}]) {
		if old, err = p.lowerNode(f.lo.fd, name, lo); err != nil {
			return &goneError{name, err}
		}
	}
	p.carry(old, now)
	now.Shared = up.nlink > 1 && now.Type == File
	if old != nil && sameState(old, now) && (old.MTime == now.MTime || now.Type != File) && !now.Shared {
		return nil // copied up, and not changed
	}
	e, err := p.entry(name)
	if err != nil {
		return err
	}
	e.Old, e.New = old, now
	if now.Shared {
		now.Link = p.links[up.ino]
	}
	if err := p.emit(e); err != nil {
		return err
	}
	if now.Shared && now.Link == 0 {
		p.links[up.ino] = e.N
	}
	if old != nil && old.Type == Dir {
		return p.enterLower(f, name, e.N)
	}
	return nil
}

// upperNode describes and keeps an object of the upper.
func (p *packer) upperNode(dir int, name string, m *meta) (*Node, error) {
	n, fd, err := p.ids.read(dir, name, m)
	if err != nil || n.Type != File {
		closeFD(fd)
		return n, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if p.left.Bytes -= n.Size; p.left.Bytes < 0 {
		p.finding("%q and what follows is more than a change set holds", name)
		return nil, errBound
	}
	n.SHA256, n.Size, err = p.keep(f)
	return n, err
}

// lowerNode describes an object of the lower. Contents are digested, and kept
// for patches where they are small.
func (p *packer) lowerNode(dir int, name string, m *meta) (*Node, error) {
	if m == nil {
		got, err := statAt(dir, "")
		if err != nil {
			return nil, err
		}
		m = &got
	}
	n, fd, err := ids{}.read(dir, name, m)
	if err != nil {
		return nil, err
	}
	n.identify(m)
	if n.Type != File {
		closeFD(fd)
		return n, nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if p.left.Bytes -= n.Size; p.left.Bytes < 0 {
		p.left.Bytes = 0
		return n, nil // known by its identity alone
	}
	if n.Size <= p.left.OldFile && n.Size <= p.left.OldBytes && p.left.OldFiles > 0 {
		p.left.OldBytes -= n.Size
		p.left.OldFiles--
		n.SHA256, n.Size, err = p.keep(f)
	} else {
		n.SHA256, n.Size, err = p.digest(f)
	}
	return n, err
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// sortedNames reads the names of a directory.
func sortedNames(fd int) ([]string, error) {
	dup, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	d := os.NewFile(uintptr(dup), "directory")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.SortFunc(names, strings.Compare)
	return names, err
}
