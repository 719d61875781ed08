package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits bound everything in a leaf; zero or less is no bound.
type Limits struct {
	Memory int64 // bytes; swap is not granted on top
	Tasks  int64 // processes and threads
	Rates  Rates // of CPU time and of devices
}

// Leaf is the cgroup of one run. A nil Leaf is that of a run without one: it bounds, ends
// and counts nothing.
type Leaf struct {
	Path string            // directory in the v2 tree
	V1   map[string]string // directories in v1 hierarchies by controller

	dir     *os.File
	freezer *os.File // cgroup.freeze, once it was used
	lock    *os.File // says that its supervisor lives
	id      uint64
}

// suffix tells leaves from what else may live in a slice: no unit of systemd
// has this type.
const suffix = ".run"

func (p *Parent) leaf(id string) *Leaf {
	l := &Leaf{Path: filepath.Join(p.Path, p.prefix+id+suffix), V1: make(map[string]string, len(p.V1))}
	for c, dir := range p.V1 {
		l.V1[c] = filepath.Join(dir, id+suffix)
	}
	return l
}

// New makes the leaf of the run id with its limits, which must not be there
// yet; the error wraps [os.ErrExist] when it is. extra is the number of tasks
// of agentguard's own that are born into the v2 leaf besides the command's. A
// limit whose controller is in p.Missing is left out; any other that cannot be
// set is an error, and then nothing is left behind.
func (p *Parent) New(id string, lim Limits, extra int64) (*Leaf, error) {
	if id == "" || strings.ContainsAny(id, "/\n") {
		return nil, fmt.Errorf("run id %q is not the name of a directory", id)
	}
	l := p.leaf(id)
	var made []string
	for _, dir := range l.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, removeAll(made, 0))
		}
		made = append(made, dir)
	}
	err := l.limit(lim, extra, p.Missing)
	if err == nil {
		err = p.rate(l, lim.Rates)
	}
	if err == nil {
		err = l.open()
	}
	if err == nil {
		l.lock, err = l.take()
	}
	if err != nil {
		return nil, errors.Join(err, l.Remove(0))
	}
	return l, nil
}

// Bound sets the limits of a leaf that was made without any. It fails where one of
// the leaf's directories, or a controller, is not there any more.
func (p *Parent) Bound(l *Leaf, lim Limits, extra int64) error {
	for _, dir := range l.dirs() {
		if _, err := os.Lstat(dir); err != nil {
			return err
		}
	}
	return errors.Join(l.limit(lim, extra, p.Missing), p.rate(l, lim.Rates))
}

// take locks the leaf for as long as this process lives. Supervisors that share a parent need not share
// a directory of locks: a delegated parent, or mount namespaces with a /run of their own. Only the
// leaf's owner can open the file.
func (l *Leaf) take() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(l.Path, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&os.PathError{Op: "flock", Path: f.Name(), Err: err}, f.Close())
	}
	return f, nil
}

// dirs are the leaf's directories. v2 comes last: while it is there,
// [Parent.Sweep] can kill what is in the others.
func (l *Leaf) dirs() []string {
	var dirs []string
	for _, c := range []string{Memory, Pids} {
		if dir := l.V1[c]; dir != "" && !slices.Contains(dirs, dir) { // both may be on one hierarchy
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, l.Path)
}

func (l *Leaf) open() error {
	var err error
	if l.dir, err = os.Open(l.Path); err != nil {
		return err
	}
	l.id, err = idOf(l.dir)
	return err
}

func (l *Leaf) limit(lim Limits, extra int64, missing []string) error {
	// No cgroup below a leaf: it would be another place for processes and limits.
	if err := write(l.Path, "cgroup.max.descendants", "0"); err != nil {
		return err
	}
	if lim.Memory > 0 && !slices.Contains(missing, Memory) {
		if err := l.limitMemory(strconv.FormatInt(lim.Memory, 10)); err != nil {
			return err
		}
	}
	if lim.Tasks <= 0 || slices.Contains(missing, Pids) {
		return nil
	}
	dir, tasks := l.V1[Pids], lim.Tasks // only what joins is in it: not agentguard's own
	if dir == "" {
		dir, tasks = l.Path, lim.Tasks+extra
	}
	return write(dir, "pids.max", strconv.FormatInt(min(tasks, pidMax), 10))
}

// pidMax is PID_MAX_LIMIT: no host has more tasks, and pids.max takes no more.
const pidMax = 4 << 20

// limitMemory sets the bound and keeps swap out of it. The files about swap are
// there only if the kernel accounts for it.
func (l *Leaf) limitMemory(n string) error {
	if dir := l.V1[Memory]; dir != "" {
		if err := write(dir, "memory.limit_in_bytes", n); err != nil {
			return err
		}
		return errors.Join(
			optional(write(dir, "memory.memsw.limit_in_bytes", n)),    // memory and swap together: after the first
			optional(write(dir, "memory.kmem.tcp.limit_in_bytes", n))) // v1 counts socket buffers apart
	}
	if err := write(l.Path, "memory.max", n); err != nil {
		return err
	}
	// All of a run or nothing: half of a build goes on to a wrong result.
	if err := write(l.Path, "memory.oom.group", "1"); err != nil {
		return err
	}
	return optional(write(l.Path, "memory.swap.max", "0"))
}

func optional(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Dir is the open v2 directory, for CLONE_INTO_CGROUP; nil after [Leaf.Remove].
func (l *Leaf) Dir() *os.File {
	if l == nil {
		return nil
	}
	return l.dir
}

// ID is the leaf's id as bpf_get_current_ancestor_cgroup_id sees it.
func (l *Leaf) ID() uint64 { return l.id }

// JoinFiles opens the files to which a process of the run writes "0" to enter
// the v1 hierarchies, and with v2 the v2 leaf too: for hosts where a birth into
// the leaf is not possible. The kernel judges the writes by who opened the
// files (5.17), so the process needs no right of its own.
func (l *Leaf) JoinFiles(v2 bool) ([]*os.File, error) {
	if l == nil {
		return nil, nil
	}
	var files []*os.File
	for _, dir := range l.dirs() {
		name := "tasks"
		if dir == l.Path {
			name = "cgroup.procs"
		}
		if dir == l.Path && !v2 {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				err = errors.Join(err, f.Close())
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Join moves the process pid with all its threads into the leaf, in all
// hierarchies. The kernel waits for RCU grace periods: some milliseconds each.
func (l *Leaf) Join(pid int) error {
	var errs []error
	for _, dir := range l.dirs() {
		errs = append(errs, write(dir, "cgroup.procs", strconv.Itoa(pid)))
	}
	return errors.Join(errs...)
}

// Enter moves the process pid of the caller's into the v2 leaf, with all its threads.
func (l *Leaf) Enter(pid int) error { return write(l.Path, "cgroup.procs", strconv.Itoa(pid)) }
