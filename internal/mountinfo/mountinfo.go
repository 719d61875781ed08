// Package mountinfo reads mount tables (proc_pid_mountinfo(5)). Names in them are the
// choice of whoever mounted: a line that is not as the manual says is passed over.
package mountinfo

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line. All of its texts are as they were before the kernel escaped them.
type Mount struct {
	ID, Parent   uint64 // of mounts, as statx(2) gives them for STATX_MNT_ID
	Major, Minor uint32 // the device number of the file system
	Root         string // what of the file system is mounted
	Point        string // where, as seen from the root of the process that read the table
	Options      string // of this mount, with commas between them
	Kind         string // the type of the file system, "fuse.sshfs" for example
	Source       string // a device, or what the file system calls itself
	Super        string // options of the file system, with commas between them
}

// All gives the mounts of a table, in its order: of two at one place the later is on top.
func All(text []byte) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range strings.Lines(string(text)) {
			if m, ok := parse(strings.TrimSuffix(line, "\n")); ok && !yield(m) {
				return
			}
		}
	}
}

// parse reads ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPEROPTIONS.
// Blanks in names are escaped, so the first " - " is the separator.
func parse(line string) (m Mount, ok bool) {
	left, right, ok := strings.Cut(line, " - ")
	head, tail := strings.SplitN(left, " ", 7), strings.SplitN(right, " ", 3)
	if !ok || len(head) < 6 || len(tail) < 3 {
		return m, false
	}
	number := func(text string, bits int) uint64 {
		n, err := strconv.ParseUint(text, 10, bits)
		ok = ok && err == nil
		return n
	}
	major, minor, _ := strings.Cut(head[2], ":")
	m.ID, m.Parent = number(head[0], 64), number(head[1], 64)
	m.Major, m.Minor = uint32(number(major, 32)), uint32(number(minor, 32))
	m.Root, m.Point, m.Options = unescape(head[3]), unescape(head[4]), head[5]
	m.Kind, m.Source, m.Super = unescape(tail[0]), unescape(tail[1]), unescape(tail[2])
	return m, ok
}

// Has reports whether the mount has an option of its own, as "ro" or "noexec".
func (m *Mount) Has(option string) bool {
	return slices.Contains(strings.Split(m.Options, ","), option)
}

// unescape undoes \ooo, three octal digits for one byte: mangle_path and seq_escape in
// fs/seq_file.c, called by fs/proc_namespace.c.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
