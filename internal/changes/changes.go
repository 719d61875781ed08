// Package changes keeps what a run changed in its copy-on-write trees: it packs
// the upper layers into an explicit change set, shows it, and commits it.
//
// A change set is a directory: index.jsonl, one entry a line, and blobs/, file
// contents by SHA-256. It holds nothing of the overlay (no whiteouts, opaque
// marks or redirects), so it can be read, moved and applied without one.
// docs/result.md documents the format, decision 0011 why it is so. Linux only.
//
// Everything in an upper was made by the command and is hostile: trees are walked
// by descriptor, one component at a time, without following links or crossing
// mounts, without recursion, and within bounds.
package changes

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// Files of a change set.
const (
	IndexFile = "index.jsonl"
	BlobDir   = "blobs"
)

// Type of a file system object.
type Type string

// The types that a change set tells apart.
const (
	File    Type = "file"
	Dir     Type = "dir"
	Symlink Type = "symlink"
	Fifo    Type = "fifo"
	Socket  Type = "socket"
	Device  Type = "device"
)

// Node is one object, as it was on one side.
type Node struct {
	Type   Type
	Mode   uint32 // permission, set-id and sticky bits
	UID    uint32 // as the host knows it
	GID    uint32
	Size   int64  // bytes, of a file
	MTime  int64  // ns since 1970
	SHA256 string // of a file's content, hex; "" when it was not read
	Target []byte // of a symbolic link
	Xattrs map[string][]byte
	Link   int  // number of the entry that has the same inode; 0: none before it
	Shared bool // the inode has several names

	// Identity of the old side, by which a later change on the host is seen.
	Dev, Ino uint64
	CTime    int64 // ns
}

// Entry is one line of an index: a name in a directory, and what was and is
// there. Without Old and New it only leads to entries below it.
type Entry struct {
	N      int    // number of the line, from 1
	Parent int    // number of the directory's entry; 0 for the root of a tree
	Name   []byte // no slash; of a root the absolute host path
	Old    *Node  // nil: there was nothing, or it is what From says; of a root always there
	New    *Node  // nil: there is nothing any more
	From   []byte // of a directory that was renamed: its old path below the root
	Base   *Node  // of a directory that was renamed: what it was there

	UID, GID uint32 // of a root: whose changes these are, as the host knows them
	Within   []byte // of a root that was mounted in another tree: its path below that one
}

// Root reports whether the entry is the root of a tree.
func (e *Entry) Root() bool { return e.Parent == 0 }

// Op is what happened to the name of an entry.
type Op byte

// The letters are git's (git-diff(1), --name-status), but Touched and None.
const (
	None     Op = 0
	Added    Op = 'A'
	Modified Op = 'M'
	Deleted  Op = 'D'
	Renamed  Op = 'R'
	Retyped  Op = 'T' // a file became a link, a link a directory, ...
	Touched  Op = 't' // only the time of change differs
)

// Op says what the entry stands for.
func (e *Entry) Op() Op {
	switch {
	case len(e.From) > 0:
		return Renamed
	case e.Root() && e.New == nil:
		return None
	case e.Old == nil && e.New == nil:
		return None
	case e.Old == nil:
		return Added
	case e.New == nil:
		return Deleted
	case e.Old.Type != e.New.Type:
		return Retyped
	case sameState(e.Old, e.New) && !e.New.Shared: // a hard link is more than a time: what is written to one name is written to all
		return Touched
	}
	return Modified
}

// sameState compares everything but times and identity.
func sameState(a, b *Node) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && sameContent(a, b) && sameXattrs(a.Xattrs, b.Xattrs)
}

func sameContent(a, b *Node) bool {
	switch a.Type {
	case File:
		return a.Size == b.Size && a.SHA256 == b.SHA256 && a.SHA256 != ""
	case Symlink:
		return string(a.Target) == string(b.Target)
	}
	return true
}

func sameXattrs(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || string(w) != string(v) {
			return false
		}
	}
	return true
}

// FileMode is the mode as Go writes it.
func (n *Node) FileMode() fs.FileMode {
	m := fs.FileMode(n.Mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if n.Mode&bit != 0 {
			m |= flag
		}
	}
	switch n.Type {
	case Dir:
		m |= fs.ModeDir
	case Symlink:
		m |= fs.ModeSymlink
	case Fifo:
		m |= fs.ModeNamedPipe
	case Socket:
		m |= fs.ModeSocket
	case Device:
		m |= fs.ModeDevice
	}
	return m
}

func (s *Summary) count(e *Entry) {
	switch e.Op() {
	case Added:
		s.Added++
	case Deleted:
		s.Deleted++
	case Renamed:
		s.Renamed++
	case Modified, Retyped:
		s.Modified++
	case Touched:
		s.Touched++
	}
}
