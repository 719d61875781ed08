package supervisor

import (
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

// localKinds are file systems whose look-ups end: they ask a disk or memory,
// never a server or another program.
var localKinds = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "zfs": true, "f2fs": true, "bcachefs": true, "jfs": true,
	"overlay": true, "tmpfs": true, "ramfs": true, "devtmpfs": true, "squashfs": true, "erofs": true, "iso9660": true,
	"vfat": true, "exfat": true, "ntfs3": true,
}

// Outside returns a function that says what lies at an absolute path of this
// host: "a file", "a program", "a directory" and so on, or "" when there is
// nothing, or when it cannot be told. It looks as the caller, only where the
// path lies on local file systems all the way down, and never follows a link
// from one to another. After limit, over all calls, it looks no more: a disk
// that hangs costs that long and no longer.
func (c Caller) Outside(limit time.Duration) func(path string) string {
	mounts := readMounts()
	timer := time.NewTimer(limit)
	over := false
	return func(path string) string {
		if over || !filepath.IsAbs(path) {
			return ""
		}
		found := make(chan string, 1) // the look-up that hangs has where to put its answer
		go func() {
			_ = c.As(func() error {
				found <- lookOutside(mounts, filepath.Clean(path))
				return nil
			})
		}()
		select {
		case s := <-found:
			return s
		case <-timer.C:
			over = true
			return ""
		}
	}
}

func lookOutside(mounts []mountinfo.Mount, path string) string {
	at, ok := localMount(mounts, path)
	if !ok {
		return ""
	}
	dir, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	rel := strings.TrimPrefix(strings.TrimPrefix(path, at), "/")
	if rel == "" {
		return "a directory"
	}
	fd, err := unix.Openat2(dir, rel, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	return sortOf(st.Mode)
}

// localMount returns the mount that a path lies on. It is not ok when that one,
// or one on the way to it, is not local.
func localMount(mounts []mountinfo.Mount, path string) (at string, ok bool) {
	for _, m := range mounts { // of two at one place the later one is on top
		if !within(path, m.Point) {
			continue
		}
		if !localKinds[m.Kind] {
			return "", false
		}
		if len(m.Point) >= len(at) {
			at, ok = m.Point, true
		}
	}
	return at, ok
}

func sortOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFREG:
		if mode&0o111 != 0 {
			return "a program"
		}
		return "a file"
	}
	return "a device or pipe"
}
