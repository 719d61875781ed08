package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/trace"
)

// maxNested bounds the mounts below copy-on-write grants: each is an overlay of its own.
const maxNested = 32

// nest adds an entry for each mount below a copy-on-write grant. An overlay shows
// one file system; what the host has mounted in the tree is put over it again,
// directories copy-on-write as well, files read-only. What the caller may not
// open stays the empty directory that lies below.
func (g *grants) nest(table []byte, c Caller) error {
	for i := range len(g.entries) {
		if g.entries[i].Op != "cow" {
			continue
		}
		places, err := mountsBelow(&g.entries[i], table)
		if err != nil {
			return err
		}
		for _, rel := range places {
			outer := g.entries[i]
			if err := c.As(func() error { return g.nestOne(&outer, rel) }); err != nil {
				return err
			}
		}
	}
	return g.pin()
}

// mountsBelow lists where something is mounted below a grant, parents first as
// the table has them.
func mountsBelow(e *Entry, table []byte) ([]string, error) {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(e.open.File.Fd())))
	if err != nil {
		return nil, err
	}
	var out []string
	seen := map[string]bool{}
	for m := range mountinfo.All(table) {
		at := m.Point
		if at == real || !within(at, real) || seen[at] {
			continue
		}
		seen[at] = true
		if out = append(out, strings.TrimPrefix(strings.TrimPrefix(at, real), "/")); len(out) > maxNested {
			return nil, &Refusal{
				What: fmt.Sprintf("%s holds more than %d mounts", trace.Quote(e.From), maxNested), Clause: e.Clause,
				Remedy: "use --mode ro or rw, or name a directory with fewer",
			}
		}
	}
	return out, nil
}

// nestOne adds one mount, unless another grant lies over its place.
func (g *grants) nestOne(outer *Entry, rel string) error {
	at := path.Join(outer.At, rel)
	for i := range g.entries {
		e := &g.entries[i]
		if e.At == at || e.Op != "cow" && e.pinned == "" && within(e.At, outer.At) && within(at, e.At) {
			return nil
		}
	}
	fd, err := unix.Openat2(int(outer.open.File.Fd()), rel, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil // hidden by another mount, gone, or not the caller's to open
	}
	o := Opened{File: os.NewFile(uintptr(fd), at), Path: path.Join(outer.From, rel)}
	if err := unix.Fstat(fd, &o.Stat); err != nil {
		return errors.Join(err, o.File.Close())
	}
	if grantable(o) != nil {
		return o.File.Close() // a device or socket that is mounted as a file
	}
	e := Entry{
		Op: "cow", At: at, From: o.Path, Access: "rw", Dev: o.Stat.Dev, Ino: o.Stat.Ino,
		Clause: outer.Clause, Source: outer.Source, Cache: outer.Cache, open: &o,
	}
	if !o.Dir() {
		e.Op, e.Access = "bind", "ro"
	}
	g.entries = append(g.entries, e)
	return nil
}
