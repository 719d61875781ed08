package changes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What git tracks is its user's source also where a .gitignore names it. The index
// of the repository lists it (git: Documentation/gitformat-index.adoc).

// maxIndex bounds an index that is read, in bytes: about half a million files.
const maxIndex = 64 << 20

// maxPaths bounds all paths of an index together, which version 4 compresses, in bytes.
const maxPaths = 128 << 20

// trackedIn is what git tracks below the top directory of a tree; ok is false
// where that cannot be told: the repository is above, or elsewhere (a worktree, a
// submodule), or its index is of a kind that is not read here. A tree without
// a repository tracks nothing.
func trackedIn(top *os.File) (paths map[string]bool, ok bool) {
	git, err := statAt(int(top.Fd()), ".git")
	if err == unix.ENOENT {
		return nil, !belowRepository(top)
	}
	if err != nil || git.typ() != Dir {
		return nil, false
	}
	dir, err := openDir(int(top.Fd()), []byte(".git"))
	if err != nil || dir < 0 {
		return nil, false
	}
	defer unix.Close(dir)
	if _, err := statAt(dir, "index"); err == unix.ENOENT {
		return nil, true // nothing was ever added
	}
	b := readSmall(dir, "index", maxIndex)
	paths, err = readIndex(b)
	return paths, err == nil
}

// belowRepository reports whether a directory above is a repository's.
func belowRepository(top *os.File) bool {
	fd, err := unix.Openat(int(top.Fd()), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range maxDepth {
		if err != nil {
			return true // it cannot be told
		}
		if _, err := statAt(fd, ".git"); err != unix.ENOENT {
			unix.Close(fd)
			return true
		}
		here, herr := statAt(fd, "")
		up, uerr := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if herr != nil || uerr != nil {
			closeFD(up)
			return true
		}
		there, terr := statAt(up, "")
		if terr == nil && there.ino == here.ino && there.dev == here.dev {
			unix.Close(up)
			return false
		}
		fd, err = up, terr
	}
	return true
}

var errIndex = errors.New("not a git index that can be read")

// readIndex returns the paths of an index of version 2, 3 or 4 with SHA-1 names, and
// refuses one that is split or sparse: those do not list all.
func readIndex(b []byte) (map[string]bool, error) {
	const header, trailer, fixed, extended = 12, 20, 62, 0x4000
	if len(b) < header+trailer || string(b[:4]) != "DIRC" {
		return nil, errIndex
	}
	version, n := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if version < 2 || version > 4 || int64(n) > int64(len(b))/fixed {
		return nil, errIndex
	}
	paths := make(map[string]bool, n)
	at, end, last, room := header, len(b)-trailer, "", maxPaths
	for range n {
		if at+fixed > end {
			return nil, errIndex
		}
		size := fixed
		if binary.BigEndian.Uint16(b[at+60:])&extended != 0 {
			size += 2
		}
		name, used, err := indexName(b[min(at+size, end):end], version, last)
		if err != nil {
			return nil, err
		}
		if size += used; version < 4 {
			size = (size + 8) &^ 7 // one to eight zeros
		}
		if room -= len(name); room < 0 {
			return nil, errIndex
		}
		at += size
		paths[name], last = true, name
	}
	return paths, plainIndex(b[min(at, end):end])
}

// indexName reads a path; used is what it takes, in version 4 with its end.
func indexName(b []byte, version uint32, last string) (name string, used int, err error) {
	if version == 4 { // so many bytes of the path before are cut off, and these added
		cut, n := offsetVarint(b)
		if n <= 0 || cut > len(last) {
			return "", 0, errIndex
		}
		b, used, name = b[n:], n, last[:len(last)-cut]
	}
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return "", 0, errIndex
	}
	if used += end; version == 4 {
		used++
	}
	return name + string(b[:end]), used, nil
}

// offsetVarint is git's own encoding of a number (varint.c, decode_varint).
func offsetVarint(b []byte) (n, used int) {
	for i, c := range b {
		if i > 3 {
			break
		}
		if i > 0 {
			n++
		}
		n = n<<7 | int(c&0x7f)
		if c < 0x80 {
			return n, i + 1
		}
	}
	return 0, 0
}

// plainIndex refuses the extensions by which an index does not list all of its paths.
func plainIndex(b []byte) error {
	for len(b) >= 8 {
		name, size := string(b[:4]), int(binary.BigEndian.Uint32(b[4:]))
		if strings.ToLower(name[:1]) == name[:1] || size > len(b)-8 { // a small letter: it must be understood
			return errIndex
		}
		b = b[8+size:]
	}
	if len(b) > 0 {
		return errIndex
	}
	return nil
}
