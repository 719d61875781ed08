// Package runs keeps the state directory: where it lies, who could tamper with
// it, the directory of each run, and its result.
//
// Everything below the state directory is reached from one descriptor by openat
// without following links, so no name is resolved twice. Linux only; the JSON
// of a Result is documented in docs/result.md.
package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/trace"
	"golang.org/x/sys/unix"
)

// State is an open state directory.
type State struct {
	path  string // with symbolic links resolved
	owner int
	dir   *os.File // the state directory
	runs  *os.File // its "runs"
	chain []devIno // from the root down to the state directory
	shown bool     // it is there to be read only

	readable bool // new runs can be read by whoever has a descriptor: see LetRead

	mounts  []byte                   // the mount table, or nil
	aliases func() ([]devIno, error) // see reach.go; found once, when first asked
}

// DefaultPath returns the state directory of a user: /var/lib/agentguard for
// root, else agentguard below $XDG_STATE_HOME (~/.local/state when that is not
// an absolute path).
func DefaultPath(uid int, getenv func(string) string) (string, error) {
	if uid == 0 {
		return "/var/lib/agentguard", nil
	}
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "agentguard"), nil
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".local/state/agentguard"), nil
	}
	return "", errors.New("no state directory: HOME is not an absolute path; choose one with --state DIR")
}

// OpenState opens the state directory at path and creates it, mode 0700, with
// its missing parents. The owner, a uid, is who may be trusted with the record
// besides root. A directory on the way in which anybody else could rename or
// replace an entry is refused by name: whoever can do that can exchange the
// record.
func OpenState(path string, owner int) (*State, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	w := &walker{owner: owner, create: true}
	defer w.close()
	if err := w.walk(abs); err != nil {
		return nil, stateError(abs, err)
	}
	s := &State{path: w.path(), owner: owner, chain: w.chain()}
	if err := s.open(w); err != nil {
		return nil, errors.Join(stateError(abs, err), s.Close())
	}
	s.aliases = sync.OnceValues(s.findAliases)
	return s, nil
}

// stateError says what would help, unless it is not the directory's fault.
func stateError(abs string, err error) error {
	if errors.Is(err, outer.ErrGone) {
		return fmt.Errorf("state directory %s: %w", trace.Quote(abs), err)
	}
	return fmt.Errorf("state directory %s: %w; choose another with --state DIR", trace.Quote(abs), err)
}

// View is a state directory that somebody else has opened, to be read: a descriptor
// of it, which is taken over, and the path for people. The result is not to be asked
// about grants.
func View(dir *os.File, path string) (*State, error) {
	s := &State{path: path, owner: os.Geteuid(), dir: dir, shown: true}
	fd, err := unix.Openat(int(dir.Fd()), "runs", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: path + "/runs", Err: err}, s.Close())
	}
	s.runs = os.NewFile(uintptr(fd), path+"/runs")
	return s, nil
}

// open turns the O_PATH descriptor at the end of the walk into a usable one and
// goes on to "runs".
func (s *State) open(w *walker) error {
	fd, err := unix.Openat(w.top().fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	s.dir = os.NewFile(uintptr(fd), s.path)
	if err := w.step("runs"); err != nil {
		return err
	}
	if err := w.safe(w.top()); err != nil {
		return err
	}
	if fd, err = unix.Openat(w.top().fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("open runs", err)
	}
	s.runs = os.NewFile(uintptr(fd), s.path+"/runs")
	return nil
}

// Path returns the state directory with symbolic links resolved.
func (s *State) Path() string { return s.path }

// Dir is the state directory, which stays open until Close.
func (s *State) Dir() *os.File { return s.dir }

// Sync waits until the names of runs are on disk: what is in a directory is found again when its own name is.
func (s *State) Sync() error { return s.runs.Sync() }

// Identity tells state directories apart, whatever their names: device and inode.
func (s *State) Identity() string {
	d := s.chain[len(s.chain)-1]
	return fmt.Sprintf("%d:%d", d.Dev, d.Ino)
}

// Close releases the descriptors. Locks of open runs stay.
func (s *State) Close() error {
	var errs []error
	for _, f := range []*os.File{s.runs, s.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// walker goes down a path one component at a time and keeps every directory it
// is in open, so that ".." and the ancestors need no second look-up.
type walker struct {
	owner  int
	create bool
	dirs   []step
	links  int
}

type step struct {
	fd   int
	name string
	stat unix.Stat_t
}

const maxLinks = 40 // as the kernel's

func (w *walker) top() *step { return &w.dirs[len(w.dirs)-1] }

func (w *walker) close() {
	w.pop(0)
}

// pop leaves all but the first n directories.
func (w *walker) pop(n int) {
	for _, d := range w.dirs[n:] {
		unix.Close(d.fd)
	}
	w.dirs = w.dirs[:n]
}

func (w *walker) path() string {
	p := "/"
	for _, d := range w.dirs[1:] {
		p = filepath.Join(p, d.name)
	}
	return p
}

func (w *walker) chain() []devIno {
	var c []devIno
	for _, d := range w.dirs {
		c = append(c, devIno{d.stat.Dev, d.stat.Ino})
	}
	return c
}

// walk goes from the root to the absolute path and judges every directory on it.
func (w *walker) walk(abs string) error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open /", err)
	}
	if err := w.push(fd, ""); err != nil {
		return err
	}
	return w.follow(abs)
}

// follow takes the components of a path, or of a symbolic link's target.
func (w *walker) follow(path string) error {
	if filepath.IsAbs(path) {
		w.pop(1)
	}
	for _, name := range splitPath(path) {
		if name == ".." {
			w.pop(max(len(w.dirs)-1, 1))
			continue
		}
		if err := w.step(name); err != nil {
			return err
		}
	}
	return w.safe(w.top())
}

func (w *walker) push(fd int, name string) error {
	s := step{fd: fd, name: name}
	if err := outer.Fstat(fd, &s.stat); err != nil {
		unix.Close(fd)
		return err
	}
	w.dirs = append(w.dirs, s)
	return nil
}

// step enters one component, which it makes if need be. The directory that
// holds it is judged first.
func (w *walker) step(name string) error {
	cur := w.top()
	if err := w.safe(cur); err != nil {
		return err
	}
	fd, err := unix.Openat(cur.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT && w.create {
		if err := makeDir(cur.fd, name, w.owner); err != nil {
			return fmt.Errorf("cannot create %s: %w", trace.Quote(filepath.Join(w.path(), name)), err)
		}
		fd, err = unix.Openat(cur.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", trace.Quote(filepath.Join(w.path(), name)), err)
	}
	parent := cur.stat
	if err := w.push(fd, name); err != nil {
		return err
	}
	switch w.top().stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return nil
	case unix.S_IFLNK:
		return w.link(&parent)
	}
	return fmt.Errorf("%s is not a directory", trace.Quote(w.path()))
}

// link replaces the symbolic link on top by its target. Only links that root
// made where nobody else can write are followed.
func (w *walker) link(parent *unix.Stat_t) error {
	l := w.top()
	at := w.path()
	if parent.Uid != 0 || parent.Mode&0o022 != 0 || l.stat.Uid != 0 {
		return fmt.Errorf("%s is a symbolic link that root does not vouch for", trace.Quote(at))
	}
	if w.links++; w.links > maxLinks {
		return fmt.Errorf("%s: %w", trace.Quote(at), unix.ELOOP)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(l.fd, "", buf)
	if err != nil {
		return fmt.Errorf("readlink %s: %w", trace.Quote(at), err)
	}
	w.pop(len(w.dirs) - 1)
	return w.follow(string(buf[:n]))
}

// safe refuses a directory in which somebody else can rename or replace entries.
// Where it has an ACL, the group bits are its mask (acl(5)), so they bound what
// any named user or group may do.
func (w *walker) safe(d *step) error {
	at := trace.Quote(w.path())
	uid, mode := int(d.stat.Uid), d.stat.Mode
	if uid != 0 && uid != w.owner {
		return fmt.Errorf("%s belongs to uid %d, who could replace the record", at, uid)
	}
	if mode&unix.S_ISVTX != 0 {
		return nil // entries belong to whom they belong: judged when entered
	}
	perm := "0" + strconv.FormatUint(uint64(mode&0o7777), 8)
	switch {
	case mode&0o002 != 0:
		return fmt.Errorf("%s is writable by everybody (mode %s), who could replace the record", at, perm)
	case mode&0o020 != 0:
		return fmt.Errorf("%s is writable by its group (mode %s), who could replace the record", at, perm)
	}
	return nil
}

// makeDir makes a directory that is private to the owner.
func makeDir(parent int, name string, owner int) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && err != unix.EEXIST {
		return err
	} else if err != nil {
		return nil
	}
	if owner == os.Geteuid() {
		return nil
	}
	return unix.Fchownat(parent, name, owner, -1, unix.AT_SYMLINK_NOFOLLOW)
}

func splitPath(p string) []string {
	var out []string
	for len(p) > 0 {
		i := 0
		for i < len(p) && p[i] != '/' {
			i++
		}
		if name := p[:i]; name != "" && name != "." {
			out = append(out, name)
		}
		p = p[min(i+1, len(p)):]
	}
	return out
}
