package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

// devIno identifies a file: st_dev and st_ino of stat(2).
type devIno struct{ Dev, Ino uint64 }

// reaches reports whether a grant of the directory (dev, ino) would show the
// state directory: it is the state directory, lies above it, or lies above
// another mount of it or of a part of it.
func (s *State) reaches(dev, ino uint64) (bool, error) {
	d := devIno{dev, ino}
	if slices.Contains(s.chain, d) {
		return true, nil
	}
	others, err := s.aliases()
	return slices.Contains(others, d), err
}

// Covers reports whether a grant of what fd refers to (an O_PATH descriptor
// will do) would show the state directory or anything in it.
func (s *State) Covers(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if hit, err := s.reaches(st.Dev, st.Ino); hit || err != nil {
		return hit, err
	}
	up, name := fd, "."
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// A file knows no parent; the kernel's name for it does.
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return false, err
		}
		up, name = unix.AT_FDCWD, filepath.Dir(path)
	}
	dir, err := unix.Openat(up, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("openat", err)
	}
	return s.below(dir)
}

// below climbs from the directory fd, which it closes, and reports whether it
// meets the state directory.
func (s *State) below(fd int) (bool, error) {
	state := s.chain[len(s.chain)-1]
	last := devIno{}
	for {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		here := devIno{st.Dev, st.Ino}
		if err != nil || here == state || here == last {
			unix.Close(fd)
			return err == nil && here == state, os.NewSyscallError("fstat", err)
		}
		last = here
		up, err := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			return false, os.NewSyscallError("openat ..", err)
		}
		fd = up
	}
}

// UseMounts gives the text of /proc/self/mountinfo to Covers, which reads it
// itself otherwise: the kernel takes a while to write it.
func (s *State) UseMounts(table []byte) { s.mounts = table }

// findAliases returns the directories above every other place where the mount
// table shows the state directory or a part of it, for example a bind mount of
// /var elsewhere.
func (s *State) findAliases() ([]devIno, error) {
	text := s.mounts
	if text == nil {
		var err error
		if text, err = os.ReadFile("/proc/thread-self/mountinfo"); err != nil {
			return nil, fmt.Errorf("runs: where else is the state directory mounted: %w", err)
		}
	}
	var stx unix.Statx_t
	if err := unix.Statx(int(s.dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stx); err != nil {
		return nil, os.NewSyscallError("statx", err)
	}
	var out []devIno
	for _, p := range aliasPaths(slices.Collect(mountinfo.All(text)), stx.Mnt_id, s.path) {
		for ; ; p = filepath.Dir(p) {
			var st unix.Stat_t
			if unix.Lstat(p, &st) == nil {
				out = append(out, devIno{st.Dev, st.Ino})
			}
			if p == "/" {
				break
			}
		}
	}
	return out, nil
}

// aliasPaths returns the other paths of the directory at path, which lies on the
// mount with the given id, and the mounts of parts of it. In a chroot the table
// may lack the mount itself: then no other place is known.
func aliasPaths(mounts []mountinfo.Mount, id uint64, path string) []string {
	i := slices.IndexFunc(mounts, func(m mountinfo.Mount) bool { return m.ID == id })
	if i < 0 {
		return nil
	}
	home := mounts[i]
	rel, ok := relative(home.Point, path)
	if !ok {
		return nil
	}
	inside := filepath.Join(home.Root, rel)
	var out []string
	for _, m := range mounts {
		if m.ID == id || m.Major != home.Major || m.Minor != home.Minor {
			continue
		}
		if rest, ok := relative(m.Root, inside); ok {
			out = append(out, filepath.Join(m.Point, rest))
		} else if _, ok := relative(inside, m.Root); ok {
			out = append(out, m.Point)
		}
	}
	return out
}

// relative returns path below base, and whether it is below or equal.
func relative(base, path string) (string, bool) {
	if base == "/" || path == base {
		return strings.TrimPrefix(path, base), true
	}
	return strings.CutPrefix(path, base+"/")
}
