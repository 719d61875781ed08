package changes

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentguard/agentguard/trace"
)

// Version of the index format.
const Version = 1

// line is an entry, or the last line, as it is stored. Names are text where they
// are UTF-8; the bytes of others are in the field with _b64.
type line struct {
	V       int    `json:"v,omitempty"` // of the first line
	N       int    `json:"n"`
	Dir     int    `json:"dir,omitempty"`
	Root    string `json:"root,omitempty"`
	RootB64 []byte `json:"root_b64,omitempty"`
	Name    string `json:"name,omitempty"`
	NameB64 []byte `json:"name_b64,omitempty"`
	From    string `json:"from,omitempty"`
	FromB64 []byte `json:"from_b64,omitempty"`
	Base    *node  `json:"base,omitempty"`
	Old     *node  `json:"old,omitempty"`
	New     *node  `json:"new,omitempty"`

	UID       uint32 `json:"uid,omitempty"` // of a root
	GID       uint32 `json:"gid,omitempty"`
	Within    string `json:"within,omitempty"`
	WithinB64 []byte `json:"within_b64,omitempty"`

	End      bool     `json:"end,omitempty"` // of the last line
	Findings []string `json:"findings,omitempty"`
}

type node struct {
	Type      Type              `json:"type"`
	Mode      uint32            `json:"mode"`
	UID       uint32            `json:"uid"`
	GID       uint32            `json:"gid"`
	Size      int64             `json:"size,omitempty"`
	MTime     int64             `json:"mtime,omitempty"`
	SHA256    string            `json:"sha256,omitempty"`
	Target    string            `json:"target,omitempty"`
	TargetB64 []byte            `json:"target_b64,omitempty"`
	Xattrs    map[string][]byte `json:"xattrs,omitempty"`
	Link      int               `json:"link,omitempty"`
	Shared    bool              `json:"shared,omitempty"`
	Dev       uint64            `json:"dev,omitempty"`
	Ino       uint64            `json:"ino,omitempty"`
	CTime     int64             `json:"ctime,omitempty"`
}

// text splits bytes into their readable form and, where that is not the value,
// the value.
func text(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\ufffd"), b
}

func bytesOf(s string, b64 []byte) []byte {
	if b64 != nil {
		return b64
	}
	if s == "" {
		return nil
	}
	return []byte(s)
}

func toNode(n *Node) *node {
	if n == nil {
		return nil
	}
	out := &node{
		Type: n.Type, Mode: n.Mode, UID: n.UID, GID: n.GID, Size: n.Size, MTime: n.MTime, SHA256: n.SHA256,
		Xattrs: n.Xattrs, Link: n.Link, Shared: n.Shared, Dev: n.Dev, Ino: n.Ino, CTime: n.CTime,
	}
	out.Target, out.TargetB64 = text(n.Target)
	return out
}

func (n *node) node() (*Node, error) {
	if n == nil {
		return nil, nil
	}
	switch n.Type {
	case File, Dir, Symlink, Fifo, Socket, Device:
	default:
		return nil, fmt.Errorf("unknown type %q", n.Type)
	}
	if n.SHA256 != "" && !validDigest(n.SHA256) {
		return nil, errors.New("sha256 is not a digest")
	}
	return &Node{
		Type: n.Type, Mode: n.Mode & 0o7777, UID: n.UID, GID: n.GID, Size: n.Size, MTime: n.MTime, SHA256: n.SHA256,
		Target: bytesOf(n.Target, n.TargetB64), Xattrs: n.Xattrs, Link: n.Link, Shared: n.Shared, Dev: n.Dev, Ino: n.Ino, CTime: n.CTime,
	}, nil
}

// appendEntry encodes one entry with its newline.
func appendEntry(b []byte, e *Entry) ([]byte, error) {
	l := line{N: e.N, Dir: e.Parent, Base: toNode(e.Base), Old: toNode(e.Old), New: toNode(e.New)}
	if e.N == 1 {
		l.V = Version
	}
	if e.Root() {
		l.Root, l.RootB64 = text(e.Name)
		l.UID, l.GID = e.UID, e.GID
		l.Within, l.WithinB64 = text(e.Within)
	} else {
		l.Name, l.NameB64 = text(e.Name)
	}
	l.From, l.FromB64 = text(e.From)
	return appendLine(b, &l)
}

func appendLine(b []byte, l *line) ([]byte, error) {
	enc, err := json.Marshal(l)
	if err != nil {
		return b, fmt.Errorf("changes: encode: %w", err)
	}
	return append(append(b, trace.EscapeJSON(enc)...), '\n'), nil
}

// parseLine decodes and checks one line; want is its number. end is true for
// the last line.
func parseLine(b []byte, want int) (e *Entry, findings []string, end bool, err error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, nil, false, err
	}
	if l.N != want {
		return nil, nil, false, fmt.Errorf("line %d says that it is number %d", want, l.N)
	}
	if want == 1 && l.V != Version {
		return nil, nil, false, fmt.Errorf("version %d is not one that this version can read", l.V)
	}
	if l.End {
		return nil, l.Findings, true, nil
	}
	e = &Entry{N: l.N, Parent: l.Dir, Name: bytesOf(l.Name, l.NameB64), From: bytesOf(l.From, l.FromB64)}
	if e.Root() {
		e.Name, e.UID, e.GID, e.Within = bytesOf(l.Root, l.RootB64), l.UID, l.GID, bytesOf(l.Within, l.WithinB64)
	}
	for _, side := range []struct {
		from *node
		to   **Node
	}{{l.Base, &e.Base}, {l.Old, &e.Old}, {l.New, &e.New}} {
		if *side.to, err = side.from.node(); err != nil {
			return nil, nil, false, err
		}
	}
	return e, nil, false, e.check()
}

// check refuses what no packer writes, so that nothing that works on an entry
// can be led out of its tree.
func (e *Entry) check() error {
	switch {
	case e.Parent >= e.N || e.Parent < 0:
		return fmt.Errorf("entry %d lies in entry %d", e.N, e.Parent)
	case e.Root() && (len(e.Name) == 0 || e.Name[0] != '/' || e.Old == nil || e.Old.Type != Dir):
		return errors.New("the root of a tree is no directory with an absolute path")
	case !e.Root() && !validName(e.Name):
		return fmt.Errorf("entry %d has no valid name", e.N)
	case len(e.From) > 0 && (e.New == nil || e.New.Type != Dir || e.Base == nil || e.Base.Type != Dir):
		return fmt.Errorf("entry %d was renamed and is no directory", e.N)
	}
	if len(e.From) > 0 {
		for _, part := range splitPath(e.From) {
			if !validName(part) {
				return fmt.Errorf("entry %d comes from an invalid path", e.N)
			}
		}
	}
	if e.New != nil && (e.New.Link >= e.N || e.New.Link < 0) {
		return fmt.Errorf("entry %d is a link to entry %d", e.N, e.New.Link)
	}
	return nil
}

func validName(b []byte) bool {
	s := string(b)
	return s != "" && s != "." && s != ".." && len(s) <= 255 && !strings.ContainsAny(s, "/\x00")
}

func splitPath(p []byte) [][]byte {
	var out [][]byte
	for _, s := range strings.Split(string(p), "/") {
		out = append(out, []byte(s))
	}
	return out
}

func validDigest(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
