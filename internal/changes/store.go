package changes

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// store is a change set being written.
type store struct {
	dir   *os.File
	blobs *os.File
	index *os.File
	out   *bufio.Writer
	sum   hash.Hash // of the index
	n     int       // entries written
	size  int64     // bytes of the index
	buf   []byte    // for copies

	entries []byte // scratch
}

// createStore makes the files of a change set in an empty directory. They are
// readable for all who reach them, which the directories above do not let
// anybody but their owner do: commit reads them by descriptor as another user.
func createStore(dir *os.File) (*store, error) {
	s := &store{dir: dir, sum: sha256.New(), buf: make([]byte, 128<<10)}
	if err := unix.Mkdirat(int(dir.Fd()), BlobDir, 0o755); err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	var err error
	if s.blobs, err = openAt(dir, BlobDir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	s.index, err = openAt(dir, IndexFile, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err = errors.Join(err, unix.Fchmod(int(s.blobs.Fd()), 0o755)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.out = bufio.NewWriterSize(io.MultiWriter(s.index, s.sum), 64<<10)
	return s, unix.Fchmod(int(s.index.Fd()), 0o644)
}

func (s *store) close() error {
	err := s.blobs.Close()
	if s.index != nil {
		err = errors.Join(err, s.index.Close())
	}
	return err
}

// add writes an entry and gives it its number.
func (s *store) add(e *Entry) error {
	s.n++
	e.N = s.n
	var err error
	if s.entries, err = appendEntry(s.entries[:0], e); err != nil {
		return err
	}
	return s.write(s.entries)
}

// end writes the last line and returns the digest of the index.
func (s *store) end(findings []string) (string, error) {
	b, err := appendLine(nil, &line{V: s.version(), N: s.n + 1, End: true, Findings: findings})
	if err != nil {
		return "", err
	}
	if err := errors.Join(s.write(b), s.out.Flush()); err != nil {
		return "", err
	}
	return hex.EncodeToString(s.sum.Sum(nil)), nil
}

func (s *store) write(b []byte) error {
	n, err := s.out.Write(b)
	s.size += int64(n)
	return err
}

func (s *store) version() int {
	if s.n == 0 {
		return Version
	}
	return 0
}

// keep copies a file into the blobs and returns its digest and size. Holes stay
// holes.
func (s *store) keep(f *os.File) (digest string, size int64, err error) {
	const tmp = ".new"
	to, err := openAt(s.blobs, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return "", 0, err
	}
	digest, size, err = s.copy(to, f)
	if err = errors.Join(err, unix.Fchmod(int(to.Fd()), 0o644), to.Close()); err == nil {
		err = unix.Renameat(int(s.blobs.Fd()), tmp, int(s.blobs.Fd()), digest)
	}
	if err != nil {
		return "", 0, errors.Join(fmt.Errorf("changes: keep: %w", err), ignoreNotExist(unix.Unlinkat(int(s.blobs.Fd()), tmp, 0)))
	}
	return digest, size, nil
}

// digest reads a file without keeping it.
func (s *store) digest(f *os.File) (string, int64, error) { return s.copy(nil, f) }

// copy hashes from and, when to is not nil, writes it there.
func (s *store) copy(to, from *os.File) (string, int64, error) {
	h := sha256.New()
	var size int64
	for {
		n, err := from.Read(s.buf)
		if n > 0 {
			h.Write(s.buf[:n])
			if to != nil && !zeros(s.buf[:n]) {
				if _, werr := to.WriteAt(s.buf[:n], size); werr != nil {
					return "", 0, werr
				}
			}
			size += int64(n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", 0, err
		}
	}
	if to != nil {
		if err := to.Truncate(size); err != nil {
			return "", 0, err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// zeros reports a block that need not be written: a hole reads the same.
func zeros(b []byte) bool {
	if len(b) < 4096 {
		return false
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// openAt opens one name below dir and never follows a link.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := openBeneath(int(dir.Fd()), name, flags, mode)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openBeneath is openat2(2) for one component: no link, no magic link, no
// other mount, nothing above dir.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Mode: uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN { // EAGAIN: a rename raced with the check for "beneath"
			return fd, err
		}
	}
}

func ignoreNotExist(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
