package changes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Set is a change set that was read back.
type Set struct {
	Entries  []Entry  // Entries[i].N is i+1
	Findings []string // why it is not complete; empty: it is
	Ended    bool     // the last line is there: the packer was not killed

	roots []int // numbers of the root entries
	blobs *os.File
	index *os.File
}

const (
	maxLine    = 2 << 20 // bytes
	maxEntries = 2 << 20
)

// Open reads the change set in dir. One whose packer was killed is returned
// with what there is of it, Ended false.
func Open(dir *os.File) (*Set, error) {
	s := &Set{}
	var err error
	if s.blobs, err = openAt(dir, BlobDir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	if s.index, err = openAt(dir, IndexFile, unix.O_RDONLY, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("changes: %w", err), s.Close())
	}
	if err := s.read(s.index); err != nil {
		return nil, errors.Join(fmt.Errorf("changes: index: %w", err), s.Close())
	}
	return s, nil
}

// Close releases the files of the set.
func (s *Set) Close() error {
	err := s.blobs.Close()
	if s.index != nil {
		err = errors.Join(err, s.index.Close())
	}
	return err
}

func (s *Set) read(from io.Reader) error {
	r := bufio.NewReaderSize(from, 64<<10)
	for !s.Ended {
		b, err := readLine(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		e, findings, end, err := parseLine(b, len(s.Entries)+1)
		switch {
		case err != nil:
			return fmt.Errorf("line %d: %w", len(s.Entries)+1, err)
		case end:
			s.Findings, s.Ended = findings, true
		case len(s.Entries) == maxEntries:
			return errors.New("too many entries")
		default:
			if err := s.fits(e); err != nil {
				return err
			}
			if e.Root() {
				s.roots = append(s.roots, e.N)
			}
			s.Entries = append(s.Entries, *e)
		}
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return errors.New("something follows the last line")
	}
	return nil
}

// fits checks an entry against those before it: it lies in a directory, and
// that is one of those that the entry before it lies in, or that entry.
func (s *Set) fits(e *Entry) error {
	if e.Root() {
		return nil
	}
	if len(s.Entries) == 0 {
		return fmt.Errorf("entry %d lies in no tree", e.N)
	}
	at := len(s.Entries)
	for at != e.Parent && at != 0 {
		at = s.Entries[at-1].Parent
	}
	if at == 0 {
		return fmt.Errorf("entry %d is out of order", e.N)
	}
	if e.New != nil && e.New.Link > 0 {
		if to := s.Entries[e.New.Link-1].New; to == nil || to.Type != File {
			return fmt.Errorf("entry %d is a link to no file", e.N)
		}
	}
	return nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	b, err := r.ReadSlice('\n')
	if err == nil {
		return b, nil
	}
	long := bytes.Clone(b)
	for err == bufio.ErrBufferFull {
		if len(long) > maxLine {
			return nil, errors.New("line too long")
		}
		b, err = r.ReadSlice('\n')
		long = append(long, b...)
	}
	if err == io.EOF {
		return nil, io.EOF // a line without its end was cut by the writer's death
	}
	return long, err
}

// at returns the entry with number n.
func (s *Set) at(n int) *Entry { return &s.Entries[n-1] }

// Bounds of a path that is put together for people, in levels and in bytes. No longer
// one can be given to a system call, and a command that makes 100 000 files below directories
// with long names would have every listing take gigabytes.
const (
	maxShown     = 512
	maxPathBytes = unix.PathMax
)

// cut marks a path that has more levels.
const cut = "..."

// Path is the place of an entry below the root of its tree, "" for the root.
// Levels beyond the lowest 512, or the lowest 4096 bytes, are cut, which shows as "...".
func (s *Set) Path(e *Entry) string { return s.path(e, false) }

// OldPath is where an entry's old side lies.
func (s *Set) OldPath(e *Entry) string { return s.path(e, true) }

func (s *Set) path(e *Entry, old bool) string {
	var parts []string
	for left := maxPathBytes; !e.Root(); e = s.at(e.Parent) {
		part, renamed := e.Name, old && len(e.From) > 0
		if renamed {
			part = e.From
		}
		if left -= len(part) + 1; len(parts) == maxShown || left < 0 {
			parts = append(parts, cut)
			break
		}
		parts = append(parts, string(part))
		if renamed {
			break
		}
	}
	return join(parts)
}

func join(reversed []string) string {
	for i, k := 0, len(reversed)-1; i < k; i, k = i+1, k-1 {
		reversed[i], reversed[k] = reversed[k], reversed[i]
	}
	return strings.Join(reversed, "/")
}

// RootOf is the root entry of the tree that e is in.
func (s *Set) RootOf(e *Entry) *Entry {
	i, found := slices.BinarySearch(s.roots, e.N)
	if !found {
		i-- // the last root before it
	}
	return s.at(s.roots[i])
}

// Blob opens a content by its digest.
func (s *Set) Blob(digest string) (*os.File, error) {
	fd, err := s.openBlob(digest)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), digest), nil
}

func (s *Set) openBlob(digest string) (int, error) {
	if !validDigest(digest) {
		return -1, fmt.Errorf("changes: not a digest: %q", digest)
	}
	fd, err := openBeneath(int(s.blobs.Fd()), digest, unix.O_RDONLY, 0)
	if err != nil {
		return -1, fmt.Errorf("open %q: %w", digest, err)
	}
	return fd, nil
}

// HasChild reports whether the next entry lies in e.
func (s *Set) hasChild(e *Entry) bool { return e.N < len(s.Entries) && s.Entries[e.N].Parent == e.N }
