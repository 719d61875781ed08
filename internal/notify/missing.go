//go:build linux

package notify

import (
	"strings"

	"golang.org/x/sys/unix"
)

// missing says why an execve failed, where another look for its file tells it: where
// the process looks, with its root. 0: it does not.
func missing(e *Event) unix.Errno {
	switch {
	case e.Unreadable:
		return unix.EFAULT
	case e.Cut:
		return unix.ENAMETOOLONG
	case len(e.Path) == 0:
		return 0
	}
	root, err := unix.Open(procPath(e.TID, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(root)
	full := string(e.Path)
	if full[0] != '/' {
		full = string(e.Dir) + "/" + full
	}
	fd, why := openIn(root, full)
	if why == nil {
		_ = unix.Close(fd) // of a path, not of a file
	}
	if (why == unix.ENOENT || why == unix.ENOTDIR) && lacks(root, full) {
		return why.(unix.Errno)
	}
	return 0
}

func openIn(root int, path string) (int, error) {
	return unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
}

// maxUp bounds how many directories of a path are looked for.
const maxUp = 32

// lacks reports whether what is missing of a path is missing for everybody. In a procfs "self"
// is somebody else to us than to the process, and so is what a symbolic link may lead to: so
// the first name that is not there has to be one that nothing has, outside of any procfs.
func lacks(root int, path string) bool {
	for range maxUp {
		path = strings.TrimRight(path, "/")
		at := strings.LastIndexByte(path, '/') + 1
		name := path[at:]
		if name == "" {
			return false
		}
		dir, err := openIn(root, "/"+path[:at])
		if err == nil {
			gone := hasNo(dir, name)
			_ = unix.Close(dir) // of a path
			return gone
		}
		if err != unix.ENOENT && err != unix.ENOTDIR {
			return false
		}
		path = path[:at]
	}
	return false
}

func hasNo(dir int, name string) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(dir, &fs) != nil || fs.Type == unix.PROC_SUPER_MAGIC {
		return false
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == unix.ENOENT || err == unix.ENOTDIR
}
