package cgroup

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bound is a limit and the cgroup that has it, named from the root of its hierarchy.
// N of zero is none.
type Bound struct {
	N  int64
	At string
}

// unlimited is what v1 shows, and more, where nothing was set: PAGE_COUNTER_MAX
// (include/linux/page_counter.h).
const unlimited = 1 << 62

// Above reads the smallest limits of memory, in bytes, and of tasks on the way from the
// cgroup of a process to the root. membership is its /proc/PID/cgroup (cgroups(7)). What
// lies above the root that this process sees is not known.
func (l Layout) Above(membership []byte) (memory, tasks Bound, err error) {
	if memory, err = l.smallest(membership, Memory, "memory.max", "memory.limit_in_bytes"); err != nil {
		return memory, tasks, err
	}
	tasks, err = l.smallest(membership, Pids, "pids.max", "pids.max")
	return memory, tasks, err
}

func (l Layout) smallest(membership []byte, controller, v2, v1 string) (Bound, error) {
	root, file := l.Unified, v2
	if l.V1[controller] != "" {
		root, file = l.V1[controller], v1
	} else {
		controller = ""
	}
	var b Bound
	at, ok := memberOf(membership, controller)
	if root == "" || !ok {
		return b, nil
	}
	for {
		n, err := bound(filepath.Join(root, at), file)
		if err != nil {
			return b, err
		}
		if n >= 0 && n < unlimited && (b.At == "" || n < b.N) {
			b = Bound{max(n, 1), at} // with none at all nothing runs; zero is no limit here
		}
		if at == "/" {
			return b, nil
		}
		at = path.Dir(at)
	}
}

// memberOf is the cgroup of a process in the hierarchy of a v1 controller, or in v2 for "".
func memberOf(membership []byte, controller string) (string, bool) {
	for line := range bytes.Lines(membership) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 || f[0] == "0" != (controller == "") || controller != "" && !slices.Contains(strings.Split(f[1], ","), controller) {
			continue
		}
		// A path from above our root begins with "/..".
		return f[2], path.IsAbs(f[2]) && path.Clean(f[2]) == f[2] && !strings.HasPrefix(f[2], "/..")
	}
	return "", false
}

// bound reads a limit; -1 where there is none.
func bound(dir, file string) (int64, error) {
	b, err := read(dir, file)
	if errors.Is(err, os.ErrNotExist) { // the root has no such file, and without the controller nobody
		return -1, nil
	}
	text := strings.TrimSpace(string(b))
	if err != nil || text == "max" {
		return -1, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return -1, nil
	}
	return n, err
}
