package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

// mount is one line of /proc/thread-self/mountinfo (proc(5)).
type mount struct {
	id    uint64
	dev   string // major:minor
	root  string // what of the file system is mounted
	point string // where
}

// UseMounts gives the text of /proc/self/mountinfo to Covers, which reads it
// itself otherwise: the kernel takes a while to write it.
func (s *State) UseMounts(mountinfo []byte) { s.mounts = mountinfo }

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
	for _, p := range aliasPaths(parseMounts(text), stx.Mnt_id, s.path) {
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
func aliasPaths(mounts []mount, id uint64, path string) []string {
	i := slices.IndexFunc(mounts, func(m mount) bool { return m.id == id })
	if i < 0 {
		return nil
	}
	home := mounts[i]
	rel, ok := relative(home.point, path)
	if !ok {
		return nil
	}
	inside := filepath.Join(home.root, rel)
	var out []string
	for _, m := range mounts {
		if m.id == id || m.dev != home.dev {
			continue
		}
		if rest, ok := relative(m.root, inside); ok {
			out = append(out, filepath.Join(m.point, rest))
		} else if _, ok := relative(inside, m.root); ok {
			out = append(out, m.point)
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

func parseMounts(text []byte) []mount {
	var out []mount
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(line, " ", 6)
		if len(f) < 6 {
			continue
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			continue
		}
		out = append(out, mount{id, f[2], unescape(f[3]), unescape(f[4])})
	}
	return out
}

// unescape undoes the octal escapes that mountinfo uses for blanks, newline and
// backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
