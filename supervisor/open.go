package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/trace"
)

// Opened is a host path held by descriptor. Everything after the open works on
// the descriptor: no string is resolved twice.
type Opened struct {
	File *os.File // O_PATH
	Path string   // as granted, absolute
	Real string   // of openPath: the same without symbolic links
	Stat unix.Stat_t
}

// Dir reports whether the path is a directory.
func (o Opened) Dir() bool { return o.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// errSymlink explains why a link was not followed.
type errSymlink struct{ link, target string }

func (e errSymlink) Error() string {
	return fmt.Sprintf("%s is a symbolic link to %s in a directory that root does not own", trace.Quote(e.link), trace.Quote(e.target))
}

// maxLinks bounds the symbolic links of one path, as the kernel does (path_resolution(7)).
const maxLinks = 40

// openPath opens an absolute path O_PATH, one component at a time, with the
// ids of the calling thread. Symbolic links are followed only where root owns
// the directory and nobody else may write it: another user could otherwise
// re-aim a grant between two runs. Magic links (/proc/PID/root) are never
// followed.
func openPath(name string) (Opened, error) {
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return Opened{}, fmt.Errorf("%q is not an absolute path", name)
	}
	w := &walk{rest: split(name)}
	if err := w.start(); err != nil {
		return Opened{}, err
	}
	for len(w.rest) > 0 {
		if err := w.next(); err != nil {
			return Opened{}, errors.Join(w.failed(name, err), w.dir.Close())
		}
	}
	return Opened{File: w.dir, Path: path.Clean(name), Real: path.Clean(w.here(".")), Stat: w.stat}, nil
}

func split(name string) []string {
	var parts []string
	for _, p := range strings.Split(name, "/") {
		if p != "" && p != "." {
			parts = append(parts, p)
		}
	}
	return parts
}

// walk is a path resolution in progress.
type walk struct {
	dir   *os.File // where it stands
	stat  unix.Stat_t
	rest  []string // components still to walk
	at    []string // components walked, for errors
	links int
	stuck string // where it ended, if that is not the whole path
}

// failed is the error of a resolution; it names the component that it ended at,
// where that is another path.
func (w *walk) failed(name string, err error) error {
	if w.stuck != "" && w.stuck != path.Clean(name) {
		err = fmt.Errorf("%s: %w", trace.Quote(w.stuck), err)
	}
	return &os.PathError{Op: "open", Path: name, Err: err}
}

func (w *walk) start() error {
	if w.dir != nil {
		if err := w.dir.Close(); err != nil {
			return err
		}
	}
	f, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.dir, w.at = f, nil
	return unix.Fstat(int(f.Fd()), &w.stat)
}

func (w *walk) next() error {
	name := w.rest[0]
	w.rest = w.rest[1:]
	fd, err := openComponent(int(w.dir.Fd()), name)
	if err != nil {
		w.stuck = w.here(name)
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return w.follow(fd, name)
	}
	old := w.dir
	w.dir, w.stat = os.NewFile(uintptr(fd), name), st
	w.at = append(w.at, name)
	return old.Close()
}

// openComponent opens a name of one component, or the link that it is.
// RESOLVE_NO_MAGICLINKS is implied by O_NOFOLLOW for the last component; it is given for
// what a file system of links (procfs) could still do. Inside of another run there is
// no openat2(2): its filter answers ENOSYS, and openat(2) does the same.
func openComponent(dir int, name string) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == unix.ENOSYS {
		return unix.Openat(dir, name, flags, 0)
	}
	return fd, err
}

// here is the path of a component, for errors.
func (w *walk) here(name string) string {
	return "/" + path.Join(append(slices.Clone(w.at), name)...)
}

// follow replaces a link by its target in the components still to walk.
func (w *walk) follow(fd int, name string) error {
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if int64(fs.Type) == unix.PROC_SUPER_MAGIC { // a magic link: its text is not what it leads to
		return fmt.Errorf("%s is a link of procfs: %w", trace.Quote(w.here(name)), unix.ELOOP)
	}
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return fmt.Errorf("readlink: %w", err)
	}
	target := string(buf[:n])
	if err := outer.Owner(int(w.dir.Fd()), &w.stat); err != nil {
		return err
	}
	if w.stat.Uid != 0 || w.stat.Mode&0o022 != 0 { // also not in /tmp: sticky, but the link may be anyone's
		return errSymlink{w.here(name), target}
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	w.rest = append(split(target), w.rest...)
	if path.IsAbs(target) {
		return w.start()
	}
	return nil
}
