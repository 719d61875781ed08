package codewatch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Request is a file that was executed without an event of fanotify.
type Request struct {
	ID     ID     // as the sensor told it
	Ctime  int64  // likewise; 0: not told
	PID    uint32 // of a process of the run
	Parent uint32 // its parent; 0: not told
	Keep   bool   // the content is wanted, wherever it comes from
	System bool   // the path lies in a system directory, which does not hang

	// Done is called once with the outcome, from any goroutine.
	Done func(*File)
}

// Exe asks for what the process runs, or, when that is gone, for what its parent
// may still hold open: memory is often executed by a child of whoever filled it.
// It is opened before Exe returns: a process that ends then does not matter.
func (w *Watch) Exe(r Request) {
	f, err := openPath(unix.AT_FDCWD, procDir(r.PID)+"/exe", 0)
	if err != nil {
		f = w.heldBy(r.Parent, r.ID)
	}
	if f == nil {
		r.Done(r.gone())
		return
	}
	w.Open(f, r)
}

func procDir(pid uint32) string { return "/proc/" + strconv.FormatUint(uint64(pid), 10) }

// heldBy looks for a file among the first descriptors of a process; nil when it is not there.
func (w *Watch) heldBy(pid uint32, id ID) *os.File {
	const most = 256
	dir, err := os.Open(procDir(pid) + "/fd")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(most)
	for _, n := range names {
		f, err := openPath(int(dir.Fd()), n, 0)
		if err != nil {
			continue
		}
		var stx unix.Statx_t // first, since it is cheap
		err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &stx)
		if err == nil && stx.Ino == id.Ino && w.mounts.identify(int(f.Fd()), pid).ID == id {
			return f
		}
		f.Close()
	}
	return nil
}

// Input asks for what the process reads as its standard input, when that is a
// regular file or memory; false when it is not. The Request's ID is filled in.
func (w *Watch) Input(r Request) bool {
	f, err := openPath(unix.AT_FDCWD, procDir(r.PID)+"/fd/0", 0)
	if err != nil {
		return false
	}
	var stx unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stx)
	if err != nil || stx.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return false
	}
	r.ID = w.mounts.identify(int(f.Fd()), r.PID).ID
	w.Open(f, r)
	return true
}

// Path asks for what lies at an absolute path of the run, below its root. The
// path is followed in the background: a file system may hang.
func (w *Watch) Path(root *os.File, path string, r Request) {
	if r.System && !r.Keep {
		if out := w.remembered(root, path, r); out != nil {
			r.Done(out)
			return
		}
	}
	w.background(nil, r, func() *File {
		f, err := openPath(int(root.Fd()), path, inRoot)
		if err != nil {
			return r.gone()
		}
		defer f.Close()
		return w.inspect(f, r)
	})
}

const inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// remembered finds a system file whose digest an earlier run took, at once; nil
// when there is more to do. Most libraries of most runs are such.
func (w *Watch) remembered(root *os.File, path string, r Request) *File {
	f, err := openPath(int(root.Fd()), path, inRoot)
	if err != nil {
		return nil
	}
	defer f.Close()
	fd := int(f.Fd())
	seen := w.mounts.identify(fd, r.PID)
	k, links, err := keyOf(fd, unix.AT_STATX_DONT_SYNC)
	if err != nil || seen.ID != r.ID || !seen.mount.system || r.Ctime != 0 && r.Ctime != k.Ctime {
		return nil
	}
	sum, ok := w.cfg.Cache.get(k)
	if !ok {
		return nil
	}
	w.count(func(c *Counts) { c.Cached++ })
	out := seen.file(links)
	out.Version, out.State, out.SHA256 = k.Version, OK, sum
	return &out
}

// Open asks for the file that an O_PATH descriptor refers to, which Open closes.
func (w *Watch) Open(f *os.File, r Request) {
	w.background(f, r, func() *File { return w.inspect(f, r) })
}

// Text is content that was no file: the argument of -c.
func (w *Watch) Text(content []byte) *File {
	sum := sha256.Sum256(content)
	f := &File{State: OK, SHA256: hex.EncodeToString(sum[:])}
	f.Size = int64(len(content))
	if w.store != nil && f.Size <= w.cfg.Limits.Object {
		f.Stored = w.store.put(f.SHA256, content, f.Size)
	}
	return f
}

func (r *Request) gone() *File {
	f := &File{ID: r.ID, State: Raced}
	f.Ctime = r.Ctime
	return f
}

// background runs one request, and then closes f.
func (w *Watch) background(f *os.File, r Request, do func() *File) {
	w.mu.Lock()
	full := w.pending >= maxWaiting
	if !full {
		w.pending++
	}
	w.mu.Unlock()
	if full {
		out := r.gone()
		out.State = Limit
		r.Done(out)
		f.Close()
		return
	}
	go func() {
		r.Done(do())
		f.Close()
		w.mu.Lock()
		w.pending--
		w.mu.Unlock()
	}()
}

// inspect finds or takes the digest of an O_PATH file.
func (w *Watch) inspect(f *os.File, r Request) *File {
	seen := w.mounts.identify(int(f.Fd()), r.PID)
	if seen.ID != r.ID {
		return r.gone()
	}
	if seen.mount.fuse {
		out := seen.file(1)
		out.State = FUSE
		return &out
	}
	own, err := openRegular(f)
	if err != nil {
		out := seen.file(1)
		out.State = Error
		return &out
	}
	defer own.Close()
	if r.System && foreign(own) { // mounts are known only where they are watched
		seen.mount.system = true
	}
	e, err := w.lookup(int(own.Fd()), func() identity { return seen })
	if err != nil {
		return &File{ID: r.ID, State: Error}
	}
	<-e.done
	out := &e.File
	if r.Ctime != 0 && r.Ctime != out.Ctime {
		raced := *out
		raced.Ctime, raced.State = r.Ctime, Raced
		return &raced
	}
	if r.Keep && !out.Stored {
		return w.keep(own, out)
	}
	return out
}

// foreign reports whether a file is another user's than ours, who have no root. In a record
// without BPF a process says itself by which path it runs a file: what the run's own user
// has made is not the system's, whatever its path.
func foreign(f *os.File) bool {
	var st unix.Stat_t
	uid := os.Geteuid()
	return uid != 0 && unix.Fstat(int(f.Fd()), &st) == nil && st.Uid != uint32(uid)
}

// keep stores the content of a file whose digest is known.
func (w *Watch) keep(f *os.File, known *File) *File {
	if w.store == nil || known.SHA256 == "" || known.Size > w.cfg.Limits.Object {
		return known
	}
	sum, content, err := w.read(f, known.Size, true)
	if err != nil || sum != known.SHA256 {
		return known
	}
	out := *known
	out.Stored = w.store.put(sum, content, known.Size)
	return &out
}

var errNotRegular = errors.New("not a regular file")

// openRegular opens for reading what an O_PATH descriptor refers to, when that is
// a regular file: opening others may have effects.
func openRegular(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotRegular
	}
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(fdPath(int(f.Fd())), flags|unix.O_NOATIME, 0)
	if err == unix.EPERM { // the file is neither ours nor are we root
		fd, err = unix.Open(fdPath(int(f.Fd())), flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func openPath(dir int, name string, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
