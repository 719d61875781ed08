package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMasks bounds the sockets that are masked; each is a mount of the run.
const maxMasks = 128

// hostSocket is a pathname unix socket of the host, found where it really lies.
type hostSocket struct {
	path string // canonical
	in   devIno // the grant that a walk found it in, and where below; else empty
	rel  string
	dirs []devIno // of each directory from the root down to the socket's own
}

// hostSockets lists the pathname unix sockets that are bound in this network
// namespace (/proc/net/unix, proc(5)). The names there are what was given to
// bind(2): links are resolved, and a relative name is looked for below the
// working directory of every process. Sockets of other namespaces, and those
// bound later, are not in it: before Landlock ABI 9 (Linux 7.1) the plan says
// that unix sockets have one layer.
func hostSockets() ([]hostSocket, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := parseSockets(f)
	if err != nil {
		return nil, err
	}
	var out []hostSocket
	known := map[string][]devIno{}
	for _, name := range absolute(names) {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue // bound in another mount namespace, or gone
		}
		if dirs := chain(path.Dir(real), known); dirs != nil {
			out = append(out, hostSocket{path: real, dirs: dirs})
		}
	}
	return out, nil
}

func parseSockets(r io.Reader) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	s := bufio.NewScanner(io.LimitReader(r, 16<<20))
	for s.Scan() {
		name := socketName(s.Text())
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		out = append(out, name)
	}
	return out, s.Err()
}

// walkBudget bounds the directory entries that are looked at for sockets in the
// grants of one run: a few milliseconds. It covers ordinary projects, and with
// them what /proc/net/unix cannot tell: renamed and hard-linked sockets, those
// of other network namespaces. Larger trees have the names in /proc/net/unix
// only, and the plan says so.
const walkBudget = 20000

// walkSockets looks for sockets in granted directories. It reports whether it
// has seen all of them. Nothing is looked for where the view is copy-on-write,
// however large the tree: a socket is found by its inode (unix_find_bsd in
// net/unix/af_unix.c), which in an overlay is another one than the host's.
func walkSockets(entries []Entry) (found []hostSocket, all bool) {
	left := walkBudget
	for i := range entries {
		e := &entries[i]
		if !e.shows() || !e.open.Dir() || e.Op == "cow" || e.pinned != "" || e.led != "" {
			continue // or toolchains, which are as large as the system directories, which nobody searches either
		}
		id := devIno{e.Dev, e.Ino}
		walkDir(int(e.open.File.Fd()), ".", "", &left, func(_ int, rel string, d os.DirEntry) {
			if d.Type()&os.ModeSocket != 0 {
				found = append(found, hostSocket{path: path.Join(e.From, rel), in: id, rel: rel})
			}
		})
	}
	return found, left > 0
}

// walkDir visits what is in the directory name in dir, depth first, without
// following links; visit gets its directory. Where no descriptors are left, as in
// a tree of thousands of levels, nothing is left to be looked at either.
func walkDir(dir int, name, rel string, left *int, visit func(dir int, rel string, d os.DirEntry)) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM {
		*left = 0
	}
	if err != nil {
		return // gone, or not a directory any more
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	for *left > 0 {
		list, err := f.ReadDir(256)
		for _, e := range list {
			*left--
			at := path.Join(rel, e.Name())
			visit(fd, at, e)
			if e.IsDir() && *left > 0 {
				walkDir(fd, e.Name(), at, left, visit)
			}
		}
		if err != nil {
			return
		}
	}
}

// socketName is the eighth column of a line, which may hold spaces: Num RefCount
// Protocol Flags Type St Inode Path. It is "" for the heading, and for sockets
// without a name or with an abstract one (shown with @).
func socketName(line string) string {
	for range 7 {
		_, rest, ok := strings.Cut(strings.TrimLeft(line, " "), " ")
		if !ok {
			return ""
		}
		line = rest
	}
	if strings.HasPrefix(line, "@") || line == "Path" {
		return ""
	}
	return line
}

// absolute tries relative names below each working directory of the host.
func absolute(names []string) []string {
	var out, relative []string
	for _, n := range names {
		if path.IsAbs(n) {
			out = append(out, n)
		} else {
			relative = append(relative, n)
		}
	}
	if len(relative) == 0 {
		return out
	}
	cwds, _ := filepath.Glob("/proc/[0-9]*/cwd")
	seen := map[string]bool{}
	for _, link := range cwds {
		dir, err := os.Readlink(link)
		if err != nil || seen[dir] || !path.IsAbs(dir) {
			continue
		}
		seen[dir] = true
		for _, n := range relative {
			if st, err := os.Stat(path.Join(dir, n)); err == nil && st.Mode()&os.ModeSocket != 0 {
				out = append(out, path.Join(dir, n))
			}
		}
	}
	return out
}

// chain identifies the directories from the root down to dir.
func chain(dir string, known map[string][]devIno) []devIno {
	if c, ok := known[dir]; ok {
		return c
	}
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil {
		return nil
	}
	var c []devIno
	if dir != "/" {
		if c = chain(path.Dir(dir), known); c == nil {
			return nil
		}
	}
	c = append(slices.Clip(c), devIno{st.Dev, st.Ino})
	known[dir] = c
	return c
}

// below returns where the socket lies below the directory g, or "".
func (s *hostSocket) below(g devIno) string {
	if s.rel != "" {
		if s.in == g {
			return s.rel
		}
		return ""
	}
	at := slices.Index(s.dirs, g)
	if at < 0 {
		return ""
	}
	parts := split(s.path) // parts[i] lies in dirs[i]
	return path.Join(parts[at:]...)
}

// maskSockets adds a mask for every socket that a grant would show. What is
// masked cannot be connected to: an empty file lies over it.
func maskSockets(view []Entry, sockets []hostSocket) ([]Entry, error) {
	var masks []Entry
	seen := map[string]bool{}
	for i := range view {
		g := &view[i]
		if !g.shows() || g.system || !g.open.Dir() {
			continue
		}
		for k := range sockets {
			rel := sockets[k].below(devIno{g.Dev, g.Ino})
			if rel == "" {
				continue
			}
			at := path.Join(g.At, rel)
			if holder(view, at) != g || seen[at] || shown(view, at) {
				continue // another mount lies over it, or it is known by another name, or it is meant to be shown
			}
			seen[at] = true
			masks = append(masks, Entry{Op: "mask", At: at, From: sockets[k].path, Clause: g.Clause, Source: g.Source, open: g.open, system: true})
		}
	}
	if len(masks) > maxMasks {
		return nil, &Refusal{What: fmt.Sprintf("the grants hold %d unix sockets, more than %d", len(masks), maxMasks), Clause: masks[0].Clause, Remedy: "grant less"}
	}
	return masks, nil
}

// maskFile is the empty file, mode 0, of the scratch file system that is mounted
// over masked sockets.
const maskFile = ".mask"

// placeMask decides whether a socket is masked. One that is gone by now, or was
// replaced by a link or a directory, needs no mask.
func (m *mountSet) placeMask(p *Plan, e *Entry) error {
	g := holder(p.View, e.At)
	fd, err := unix.Openat2(int(e.open.File.Fd()), strings.TrimPrefix(e.At, g.At+"/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	var st unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Close(fd)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	m.masked[e.At] = true
	return nil
}

// shown reports whether the view shows exactly the socket at this place.
func shown(view []Entry, at string) bool {
	return slices.ContainsFunc(view, func(e Entry) bool { return e.At == at && e.Access == "socket" })
}
