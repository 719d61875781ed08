package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/overlay"
	"github.com/agentguard/agentguard/landlock"
)

// mountSet is a view made ready: every mount detached and held by descriptor,
// so that the run's own process only has to attach them, in order, to a root
// that nobody else can see.
type mountSet struct {
	root    *os.File            // tmpfs with the directories, links, devices and generated files
	scratch *os.File            // the one sized file system
	probe   *os.File            // a tmpfs that is never attached: the canary's Landlock probe
	mounts  map[string]*os.File // detached mounts by where they go
	rules   []landlock.Grant    // on descriptors of the above

	dirs     map[string]*os.File
	unmapped []string        // copy-on-write grants whose file system cannot map ids
	masked   map[string]bool // sockets that an empty file goes over
}

// given is what there is before the mounts are made.
type given struct {
	leaf   map[string]*os.File // directories shown at /sys/fs/cgroup, by name
	userns *os.File            // maps ids for idmapped mounts
	record *os.File            // the run's directory, for storage on disk
	devpts *os.File            // of an interactive run, and taken over; else nil: it is made
}

// prepareMounts makes the detached mounts of a plan.
func prepareMounts(p *Plan, g given) (*mountSet, error) {
	m := &mountSet{mounts: map[string]*os.File{}, dirs: map[string]*os.File{}, masked: map[string]bool{}}
	if g.devpts != nil {
		m.mounts[devptsAt] = g.devpts
	}
	err := m.prepare(p, g.leaf, g.userns, g.record)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *mountSet) prepare(p *Plan, leaf map[string]*os.File, userns, record *os.File) error {
	var err error
	if m.root, err = newTmpfs("root", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "mode=0755", "size=4m", "nr_inodes=4096"); err != nil {
		return err
	}
	if m.scratch, err = newScratch(p, record); err != nil {
		return err
	}
	if err = errors.Join(m.makeProbe(), writeFileAt(int(m.scratch.Fd()), maskFile, "", 0)); err != nil {
		return err
	}
	m.rule(m.root, landlock.List, true, "/")
	for i := range p.View {
		e := &p.View[i]
		if err := m.place(p, e, leaf, userns); err != nil {
			return fmt.Errorf("%s: %w", e.At, err)
		}
	}
	if err := m.makeDir(m.root, "root", ownDir, 0o700); err != nil {
		return err
	}
	return errors.Join(m.makeDir(m.root, "root", scratchAt, 0o700), m.makeDir(m.scratch, "scratch", coverName, 0))
}

// maxPtys bounds the terminals of a run: the pool is the host's (kernel.pty.max).
const maxPtys = 256

const devptsAt = "/dev/pts"

// ttyGroup owns terminals, as on every distribution and in the run's /etc/group.
const ttyGroup = 5

// newDevpts makes a detached instance of the terminals' file system: names and
// numbers of its own (Documentation/filesystems/devpts.rst).
// In a user namespace that has no such group, they belong to the caller's.
func newDevpts(mode string) (*os.File, error) {
	if mode == ModeLandlock { // the host's: ptmx lies beside it, and leads to it
		return os.OpenFile("/dev", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	options := []string{"mode=0620", "ptmxmode=0666", fmt.Sprintf("max=%d", maxPtys)}
	if mode != ModeUserNS {
		options = append(options, fmt.Sprintf("gid=%d", ttyGroup))
	}
	return newFS("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, options...)
}

// tmpfsLimit writes a limit as tmpfs takes it: 0 means none (tmpfs(5)).
func tmpfsLimit(n int64) string {
	if n < 0 {
		return "0"
	}
	return strconv.FormatInt(max(n, 1), 10)
}

// filesAndOurs adds what the scratch file system holds before the command
// starts: its root, the mask, the directories of its parts and of mounts in them.
func filesAndOurs(p *Plan) int64 {
	if p.Limits.Files < 0 {
		return -1
	}
	places := map[string]bool{}
	for i := range p.View {
		h := holder(p.View, p.View[i].At)
		if h == nil || h.Op != "scratch" {
			continue
		}
		for at := p.View[i].At; at != h.At; at = path.Dir(at) {
			places[at] = true
		}
	}
	return p.Limits.Files + scratchObjects(p.View) + int64(2+len(scratchDirs)+len(places))
}

// filesToMount is the limit while the overlays are being mounted.
func filesToMount(p *Plan) int64 {
	n := filesAndOurs(p)
	if n >= 0 {
		n += overlay.Transient * countCow(p.View)
	}
	return n
}

// place makes one entry: an object in the root, or a detached mount and the
// directory or file that it goes onto.
func (m *mountSet) place(p *Plan, e *Entry, leaf map[string]*os.File, userns *os.File) error {
	rel := strings.TrimPrefix(e.At, "/")
	switch e.Op {
	case "dir":
		return m.makeDir(m.root, "root", rel, e.Mode)
	case "symlink":
		return m.inDir(rel, func(dir int, name string) error { return unix.Symlinkat(e.From, dir, name) })
	case "file":
		return m.inDir(rel, func(dir int, name string) error { return writeFileAt(dir, name, e.content, e.Mode) })
	case "device":
		return m.inDir(rel, func(dir int, name string) error { return mknodAt(dir, name, unix.S_IFCHR|e.Mode, e.rdev) })
	case "scratch":
		return m.placeScratch(p, e)
	case "cgroup":
		return m.placeCgroup(e, leaf)
	case "mask":
		return m.placeMask(p, e)
	case "pin":
		return nil // made of the merged tree, when that is there
	}
	if err := m.target(p, e); err != nil {
		return err
	}
	var err error
	switch e.Op {
	case "bind":
		err = m.placeBind(e, userns)
	case "cow":
		err = m.placeCow(p, e, userns)
	case "devpts":
		if m.mounts[e.At] == nil {
			m.mounts[e.At], err = newDevpts(p.Host.Mode)
		}
	}
	return err
}

func (m *mountSet) placeBind(e *Entry, userns *os.File) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if e.Access == "device" { // a node of the host's
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	}
	if e.Access != "rw" {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if e.Access == "plain" {
		attr.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	if e.IDMap {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(userns.Fd())
	}
	f, err := cloneTree(e.open.File, &attr)
	if errors.Is(err, unix.EINVAL) && e.IDMap {
		return &Refusal{
			What:   fmt.Sprintf("the file system of %s cannot be shown with mapped user ids, so the run's own user could not write it", e.From),
			Clause: e.Clause, Remedy: "use --mode ro, or give the directory to a user (chown) so that the command runs as that user", Err: err,
		}
	}
	if err != nil {
		return err
	}
	m.mounts[e.At] = f
	m.rule(f, e.kind(), e.open.Dir(), e.At)
	return nil
}

// placeScratch makes a directory of the scratch file system and its target.
func (m *mountSet) placeScratch(p *Plan, e *Entry) error {
	if err := m.target(p, e); err != nil {
		return err
	}
	if err := m.makeDir(m.scratch, "scratch", e.From, e.Mode); err != nil {
		return err
	}
	uid, gid := 0, 0
	if e.Mode&unix.S_ISVTX == 0 || p.Host.Mode == ModeUserNS { // where there is no root
		uid, gid = p.Identity.UID, p.Identity.GID
	}
	if err := unix.Fchownat(int(m.scratch.Fd()), e.From, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	m.rule(m.dirs["scratch/"+e.From], landlock.Write, true, e.At)
	return nil
}

// placeCgroup shows the run's own cgroups, read-only, where runtimes look for
// their limits.
func (m *mountSet) placeCgroup(e *Entry, leaf map[string]*os.File) error {
	for name, dir := range leaf {
		at := path.Join(e.At, name)
		if err := m.makePlace(m.root, "root", strings.TrimPrefix(at, "/")); err != nil {
			return err
		}
		attr := unix.MountAttr{Propagation: unix.MS_PRIVATE, Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV |
			unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY}
		f, err := cloneTree(dir, &attr)
		if err != nil {
			return err
		}
		m.mounts[at] = f
		m.rule(f, landlock.Plain, true, at)
	}
	return nil
}

// target makes the directory or file that a mount goes onto, in the synthetic
// root or in the scratch file system. Inside a host directory it must exist:
// nothing is ever created on the host for a mount.
func (m *mountSet) target(p *Plan, e *Entry) error {
	dir := e.open == nil || e.open.Dir()
	base, label, rel := m.root, "root", strings.TrimPrefix(e.At, "/")
	if h := holder(p.View, e.At); h != nil {
		if h.Op != "scratch" {
			return targetExists(h, e)
		}
		base, label, rel = m.scratch, "scratch", h.From+strings.TrimPrefix(e.At, h.At)
	}
	if dir {
		return m.makePlace(base, label, rel)
	}
	if path.Dir(rel) == "." {
		return writeFileAt(int(base.Fd()), rel, "", 0o444)
	}
	if err := m.makeDir(base, label, path.Dir(rel), 0o755); err != nil {
		return err
	}
	return writeFileAt(int(m.dirs[label+"/"+path.Dir(rel)].Fd()), path.Base(rel), "", 0o444)
}

func targetExists(h, e *Entry) error {
	if h.open == nil {
		return fmt.Errorf("nothing can be mounted in %s", h.At)
	}
	fd, err := unix.Openat2(int(h.open.File.Fd()), strings.TrimPrefix(e.At, h.At+"/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return &Refusal{
			What: fmt.Sprintf("%s cannot be shown at %s, which lies in %s", e.From, e.At, h.At), Err: err, Clause: e.Clause,
			Remedy: "create the place first, or choose another with PATH:AT",
		}
	}
	return unix.Close(fd)
}

// makeDir makes rel and its parents below base, without following links, and
// keeps the descriptor. mode is that of the last component.
func (m *mountSet) makeDir(base *os.File, label, rel string, mode uint32) error {
	at, dir := label, base
	parts := split(rel)
	for i, name := range parts {
		at += "/" + name
		next := m.dirs[at]
		if next == nil {
			bits := uint32(0o755)
			if i == len(parts)-1 {
				bits = mode
			}
			f, err := mkdirAt(dir, name, bits)
			if err != nil {
				return fmt.Errorf("mkdir %s: %w", at, err)
			}
			m.dirs[at], next = f, f
		}
		dir = next
	}
	return nil
}

// makePlace makes the directory that a mount goes onto, and its parents. Nothing
// is done in it, so that it need not be opened.
func (m *mountSet) makePlace(base *os.File, label, rel string) error {
	if m.dirs[label+"/"+rel] != nil {
		return nil
	}
	dir := base
	if up := path.Dir(rel); up != "." {
		if err := m.makeDir(base, label, up, 0o755); err != nil {
			return err
		}
		dir = m.dirs[label+"/"+up]
	}
	err := unix.Mkdirat(int(dir.Fd()), path.Base(rel), 0o755)
	if err == unix.EEXIST { // made before, or no directory
		return m.makeDir(base, label, rel, 0o755)
	}
	if err == nil {
		err = unix.Fchmodat(int(dir.Fd()), path.Base(rel), 0o755, 0) // mkdir's mode is cut by the umask
	}
	if err != nil {
		return fmt.Errorf("mkdir %s/%s: %w", label, rel, err)
	}
	return nil
}

// inDir calls fn with the directory of rel in the synthetic root.
func (m *mountSet) inDir(rel string, fn func(dir int, name string) error) error {
	if err := m.makeDir(m.root, "root", path.Dir(rel), 0o755); err != nil {
		return err
	}
	dir := m.root
	if d := path.Dir(rel); d != "." {
		dir = m.dirs["root/"+d]
	}
	return fn(int(dir.Fd()), path.Base(rel))
}

// rule grants kind on the hierarchy held by f.
func (m *mountSet) rule(f *os.File, kind landlock.Kind, dir bool, name string) {
	m.rules = append(m.rules, landlock.Grant{FD: int(f.Fd()), Kind: kind, Dir: dir, Name: name})
}

// ruleset makes the run's Landlock ruleset. /etc and /dev of the synthetic
// root get one rule each; /proc gets its own inside, since it does not exist yet.
func (m *mountSet) ruleset(abi int) (*os.File, error) {
	for at, kind := range map[string]landlock.Kind{"root/etc": landlock.Plain, "root/dev": landlock.Device} {
		if f := m.dirs[at]; f != nil {
			m.rule(f, kind, true, strings.TrimPrefix(at, "root"))
		}
	}
	return landlock.NewRuleset(abi, m.rules)
}

// makeProbe makes the file that only Landlock refuses: it lies on a mount
// that is attached nowhere, is readable by all, and no rule grants it.
func (m *mountSet) makeProbe() error {
	var err error
	if m.probe, err = newTmpfs("probe", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "mode=0755", "size=4k", "nr_inodes=8"); err != nil {
		return err
	}
	return writeFileAt(int(m.probe.Fd()), "probe", "", 0o444)
}

// Close releases every descriptor; mounts that were attached stay. Safe to call
// twice.
func (m *mountSet) Close() error {
	var errs []error
	for _, f := range []**os.File{&m.root, &m.scratch, &m.probe} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	for _, held := range []map[string]*os.File{m.mounts, m.dirs} {
		for _, f := range held {
			if f != nil {
				errs = append(errs, f.Close())
			}
		}
		clear(held)
	}
	return errors.Join(errs...)
}
