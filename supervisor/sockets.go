package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMasks bounds the sockets that are masked; each is a mount of the run.
const maxMasks = 128

// hostSockets lists the pathname unix sockets that are bound in this network
// namespace (/proc/net/unix, proc(5)). Those with relative names, of other
// namespaces, or bound later are not in it: before Landlock ABI 9 (Linux 7.1)
// the plan says that unix sockets have one layer.
func hostSockets() ([]string, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseSockets(f)
}

func parseSockets(r io.Reader) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	s := bufio.NewScanner(io.LimitReader(r, 16<<20))
	for s.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		at := strings.Index(s.Text(), " /")
		if at < 0 {
			continue
		}
		if p := path.Clean(s.Text()[at+1:]); !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out, s.Err()
}

// maskSockets adds a mask for every socket that a grant would show. What is
// masked cannot be connected to: an empty file lies over it.
func maskSockets(view []Entry, sockets []string) ([]Entry, error) {
	var masks []Entry
	for i := range view {
		g := &view[i]
		if g.Op != "bind" || g.system || !g.open.Dir() {
			continue
		}
		for _, s := range sockets {
			if s == g.From || !within(s, g.From) {
				continue
			}
			at := path.Join(g.At, strings.TrimPrefix(s, g.From))
			if holder(view, at) != g {
				continue // another mount lies over it
			}
			masks = append(masks, Entry{Op: "mask", At: at, From: s, Clause: g.Clause, Source: g.Source, open: g.open, system: true})
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
