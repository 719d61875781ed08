package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/internal/overlay"
	"github.com/agentguard/agentguard/landlock"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// A copy-on-write grant is an overlay: below is the granted directory, read-only
// and idmapped where the command's identity needs it; above is a directory of
// the one sized scratch file system, so that what is changed, /tmp and /dev/shm
// share one limit. The overlay is mounted by the run's own process, because
// layers must be attached in the mounter's namespace before Linux 6.15. They lie
// below ownDir, which is covered before the command starts: inside, the merged
// tree is the only name of either layer. The supervisor keeps the upper open, so
// that it outlives the run.

// coverName is the empty directory of the scratch file system that is mounted
// over ownDir in the end.
const coverName = "cover"

// layersOf are the layers of a cow entry, as its process names them.
func layersOf(e *Entry, mode string) overlay.Layers {
	return overlay.Layers{
		User:  mode == ModeUserNS,
		Lower: ownDir + "/" + e.Layer,
		Upper: scratchAt + "/" + e.Layer + "/upper",
		Work:  scratchAt + "/" + e.Layer + "/work",
	}
}

// nameLayers gives each cow entry of a view the name of its layers.
func nameLayers(view []Entry) {
	n := 0
	for i := range view {
		if view[i].Op == "cow" {
			view[i].Layer = "cow" + strconv.Itoa(n)
			n++
		}
	}
}

// countCow is the number of cow entries of a view.
func countCow(view []Entry) int64 {
	n := int64(0)
	for i := range view {
		if view[i].Op == "cow" {
			n++
		}
	}
	return n
}

// scratchObjects counts what cow entries and the cover take of the file limit.
func scratchObjects(view []Entry) int64 { return 1 + overlay.Objects*countCow(view) }

// placeCow makes the detached lower and the directories of the upper.
func (m *mountSet) placeCow(p *Plan, e *Entry, userns *os.File) error {
	lower, mapped, err := cowLower(e, userns)
	if err != nil {
		return err
	}
	if e.IDMap && !mapped {
		m.unmapped = append(m.unmapped, e.From)
	}
	m.mounts[e.At] = lower
	for _, d := range []struct {
		base       *os.File
		label, rel string
	}{{m.root, "root", ownDir + "/" + e.Layer}, {m.scratch, "scratch", e.Layer + "/upper"}, {m.scratch, "scratch", e.Layer + "/work"}} {
		if err := m.makeDir(d.base, d.label, d.rel, 0o700); err != nil {
			return err
		}
	}
	upper := m.dirs["scratch/"+e.Layer+"/upper"]
	if p.Host.Mode == ModeUserNS {
		if err := marksItself(upper, e, p.Host.Kernel); err != nil {
			return err
		}
	}
	return likeLower(upper, e, p)
}

// marksItself refuses an upper that takes no attributes of users: an overlay in a user namespace
// keeps its marks in them, and without would fail in the midst of a command.
// The state directory would take them, and could not be bounded: what is copied up to it is
// no process's to count, and other programs of the user could alter what is staged.
func marksItself(upper *os.File, e *Entry, kernel string) error {
	const mark = "user.agentguard-try"
	err := unix.Fsetxattr(int(upper.Fd()), mark, nil, 0)
	if err == nil {
		return os.NewSyscallError("fremovexattr", unix.Fremovexattr(int(upper.Fd()), mark))
	}
	if err != unix.EOPNOTSUPP {
		return os.NewSyscallError("fsetxattr", err)
	}
	return &Refusal{
		What: trace.Quote(e.From) + " cannot be shown copy-on-write without root: a tmpfs of this kernel (" + kernel + ") keeps no attributes of users, as it does from Linux 6.6 on",
		Err:  err, Clause: e.Clause, Remedy: "use a kernel from 6.6 on, use --mode ro or rw, or " + helperRemedy,
	}
}

// cowLower is the granted directory alone, without what is mounted in it: an
// overlay's layer is one mount. Where it cannot be shown with mapped ids, root's
// files in it stay root's, and only the top directory is the run's own.
func cowLower(e *Entry, userns *os.File) (lower *os.File, mapped bool, err error) {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	if !e.IDMap || userns == nil {
		lower, err = cloneMount(e.open.File, &attr)
		return lower, false, err
	}
	plain := attr
	attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
	attr.Userns_fd = uint64(userns.Fd())
	if lower, err = cloneMount(e.open.File, &attr); errors.Is(err, unix.EINVAL) {
		lower, err = cloneMount(e.open.File, &plain)
		return lower, false, err
	}
	return lower, true, err
}

// likeLower gives the upper's root, which is the root of the merged tree, the
// owner, mode, times and access lists of the granted directory.
func likeLower(upper *os.File, e *Entry, p *Plan) error {
	fd, st, id := int(upper.Fd()), &e.open.Stat, p.Identity
	uid, gid := int(st.Uid), int(st.Gid)
	if p.Host.Mode == ModeUserNS { // there are no others
		uid, gid = id.UID, id.GID
	}
	if id.Own && uid == 0 {
		uid = id.UID
	}
	if id.Own && gid == 0 {
		gid = id.GID
	}
	if err := errors.Join(unix.Fchown(fd, uid, gid), unix.Fchmod(fd, st.Mode&0o7777)); err != nil {
		return fmt.Errorf("upper of %s: %w", e.At, err)
	}
	if err := copyXattrs(e.open.File, fd); err != nil {
		return fmt.Errorf("upper of %s: %w", e.At, err)
	}
	times := []unix.Timeval{unix.NsecToTimeval(st.Atim.Nano()), unix.NsecToTimeval(st.Mtim.Nano())}
	return os.NewSyscallError("futimes", unix.Futimes(fd, times))
}

// copyXattrs copies the access lists and user attributes of a path held O_PATH,
// as a copy-up does.
func copyXattrs(from *os.File, to int) error {
	link := "/proc/self/fd/" + strconv.Itoa(int(from.Fd()))
	n, err := unix.Listxattr(link, nil)
	if err == unix.EOPNOTSUPP || err == nil && n == 0 { // as of most directories
		return nil
	}
	if err != nil {
		return os.NewSyscallError("listxattr", err)
	}
	return copyEach(link, to)
}

// maxXattr bounds a list of attributes and a value (XATTR_LIST_MAX, XATTR_SIZE_MAX
// of linux/limits.h).
const maxXattr = 64 << 10

// copyEach is apart from copyXattrs because its buffers lie on the stack, which
// would be moved for them although there is nothing to copy.
func copyEach(link string, to int) error {
	buf, value := make([]byte, maxXattr), make([]byte, maxXattr)
	n, err := unix.Listxattr(link, buf)
	if err != nil {
		return os.NewSyscallError("listxattr", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		n, err := unix.Getxattr(link, name, value)
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:n], 0)
		}
		if err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP { // tmpfs has user attributes since Linux 6.6
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// takeUppers hands over the uppers of a prepared view, by layer name. Their
// descriptors keep the scratch file system alive when the run's mounts are gone.
func (m *mountSet) takeUppers(view []Entry) map[string]*os.File {
	out := map[string]*os.File{}
	for i := range view {
		if view[i].Op == "cow" {
			at := "scratch/" + view[i].Layer + "/upper"
			out[view[i].Layer] = m.dirs[at]
			delete(m.dirs, at)
		}
	}
	return out
}

// keepUppers holds the uppers until the run is released.
func (r *Run) keepUppers(uppers map[string]*os.File) {
	r.uppers = uppers
	for _, f := range uppers {
		r.release.push("upper", f.Close)
	}
}

// needsIDMap reports whether an entry cannot do without mapped ids: one that
// is written in place.
func needsIDMap(view []Entry) bool {
	return slices.ContainsFunc(view, func(e Entry) bool { return e.IDMap && e.Op != "cow" })
}

// openLabel is the step that needs overlayfs in the kernel.
const openLabel = "fsopen(overlay)"

// createLabel begins the step in which the kernel accepts or refuses a lower.
const createLabel = "fsconfig(CMD_CREATE, overlay of "

// lowerRefused says that a directory cannot be beneath an overlay.
func (r *Run) lowerRefused(at string, err error) *Refusal {
	at = strings.TrimSuffix(strings.TrimPrefix(at, createLabel), ")")
	ref := &Refusal{
		What: "the file system of " + trace.Quote(at) + " cannot be shown copy-on-write", Err: err,
		Remedy: "use --mode ro, or --mode rw to write it in place; agentguard doctor says more",
	}
	if i := slices.IndexFunc(r.plan.View, func(e Entry) bool { return e.Op == "cow" && e.At == at }); i >= 0 {
		ref.Clause = r.plan.View[i].Clause
	}
	return ref
}

// attachCow mounts the overlay of an entry and grants it to Landlock, which
// knows the merged tree only once it is there.
func (b *builder) attachCow(e *Entry, empty initproc.Arg) {
	l := layersOf(e, b.plan.Host.Mode)
	b.Call("mount", "move_mount(lower of "+e.At+", "+l.Lower+")", unix.SYS_MOVE_MOUNT, b.File(int(b.m.mounts.mounts[e.At].Fd())), empty, at(),
		b.String(l.Lower), initproc.Value(unix.MOVE_MOUNT_F_EMPTY_PATH))
	fs := b.NewSlot()
	b.Call("mount", openLabel, unix.SYS_FSOPEN, b.String("overlay"), initproc.Value(unix.FSOPEN_CLOEXEC)).Save(fs)
	options, err := l.Options()
	if err != nil {
		panic(err) // the names are ours
	}
	for _, o := range options {
		if o.Value == "" {
			b.Call("mount", "fsconfig("+o.Key+")", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_SET_FLAG), b.String(o.Key), zero(), zero())
			continue
		}
		b.Call("mount", "fsconfig("+o.Key+"="+o.Value+")", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_SET_STRING), b.String(o.Key), b.String(o.Value), zero())
	}
	b.Call("mount", createLabel+e.At+")", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_CMD_CREATE), zero(), zero(), zero())
	rule := b.Bytes(landlock.PathBeneath(landlock.Rights(landlock.Write, b.plan.LandlockABI, true)))
	merged := b.Slot(rule, landlock.ParentFDOffset)
	b.Call("mount", "fsmount()", unix.SYS_FSMOUNT, b.Saved(fs), initproc.Value(unix.FSMOUNT_CLOEXEC), initproc.Value(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)).Save(merged)
	if b.plan.LandlockABI > 0 {
		b.Call("landlock", "landlock_add_rule("+e.At+")", landlock.SysAddRule, b.File(int(b.m.ruleset.Fd())), initproc.Value(landlock.RulePathBeneath), rule, zero())
	}
	// All of the overlay: pinned directories are further mounts of it.
	b.moveTo(b.watched(b.Saved(merged), e.At, codewatch.MarkFileSystem), e.At, empty)
}

// pinMount mounts a directory of a merged tree over itself, so that it cannot
// be renamed away with what is mounted in it.
func (b *builder) pinMount(e *Entry, empty initproc.Arg) {
	dir, tree := b.openBeneath(e.At), b.NewSlot()
	b.Call("mount", "open_tree("+e.At+", CLONE)", unix.SYS_OPEN_TREE, b.Saved(dir), empty,
		initproc.Value(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)).Save(tree)
	b.moveTo(b.Saved(tree), e.At, empty)
}

// limitFiles sets the limit of files when the overlays are there: to mount one,
// the kernel makes some in its work directory for a moment.
func (b *builder) limitFiles() {
	if b.plan.Limits.Files < 0 || countCow(b.plan.View) == 0 || b.plan.Upper == upperDisk { // ext4 has the files that it was made with
		return
	}
	fs := b.NewSlot()
	b.Call("mount", "fspick("+scratchAt+")", unix.SYS_FSPICK, at(), b.String(scratchAt), initproc.Value(unix.FSPICK_CLOEXEC)).Save(fs)
	n := tmpfsLimit(filesAndOurs(b.plan))
	b.Call("mount", "fsconfig(nr_inodes="+n+")", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_SET_STRING), b.String("nr_inodes"), b.String(n), zero())
	b.Call("mount", "fsconfig(CMD_RECONFIGURE)", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_CMD_RECONFIGURE), zero(), zero(), zero())
}

// coverOwn puts an empty directory that nobody may enter over ownDir.
func (b *builder) coverOwn(empty initproc.Arg) {
	b.cloneTo(scratchAt+"/"+coverName, "/"+ownDir, empty)
}
