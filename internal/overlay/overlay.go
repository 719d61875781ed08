// Package overlay says how the overlay of a copy-on-write grant is mounted, as
// plain values: the caller makes the system calls.
//
// The options are the same on every kernel from 6.1 on (kernel:
// Documentation/filesystems/overlayfs.rst). Layers are named by path, and must be
// attached in the mounting process's own mount namespace: layers that are held
// by descriptor only are refused before Linux 6.15.
package overlay

import (
	"errors"
	"fmt"
	"strings"
)

// Layers are the directories of one overlay. Upper and Work lie on one file
// system; Work is empty.
type Layers struct {
	Lower, Upper, Work string
	User               bool // mounted in a user namespace: its marks are user.overlay.* (Linux 5.11; on tmpfs 6.6)
}

// Option is one fsconfig(2) string parameter; with an empty Value it is a flag.
type Option struct{ Key, Value string }

// Options are the parameters of the mount, in order.
//
//   - redirect_dir=on: a directory is renamed, not copied (a redirect in the upper).
//   - metacopy=off: the upper holds whole files, so that it can be read by itself.
//   - index=off: the lower may be edited, and a later upper put over it.
//   - userxattr, in a user namespace: it excludes the first two, so that a directory of
//     the lower is renamed by copying it (EXDEV), and metacopy is off.
//   - xino=auto: one st_dev for the tree and lasting inode numbers, where the
//     lower has file handles.
//
// An error says that a path cannot be written in a mount option: before Linux
// 6.5 a comma ends one, and a colon parts two lower directories.
func (l Layers) Options() ([]Option, error) {
	for _, p := range []string{l.Lower, l.Upper, l.Work} {
		if p == "" || strings.ContainsAny(p, ",:\\\x00") {
			return nil, fmt.Errorf("overlay: layer %q: %w", p, errPath)
		}
	}
	layers := []Option{{"source", "agentguard-cow"}, {"lowerdir", l.Lower}, {"upperdir", l.Upper}, {"workdir", l.Work}}
	if l.User {
		return append(layers, Option{"userxattr", ""}, Option{"index", "off"}, Option{"xino", "auto"}), nil
	}
	return append(layers, Option{"redirect_dir", "on"}, Option{"metacopy", "off"}, Option{"index", "off"}, Option{"xino", "auto"}), nil
}

var errPath = errors.New("cannot be written in a mount option")

// Objects is the number of files that an overlay takes on the file system of
// its upper before anything has changed: the place of the layers, upper, work,
// what the kernel makes in work, and, from Linux 6.6 on, where a tmpfs counts
// attributes like files, its marks.
const Objects = 5

// Transient is more than what the kernel makes there for a moment to see what the
// file system of the upper can do (fs/overlayfs/super.c: a temporary file, a
// rename over a whiteout).
const Transient = 8
