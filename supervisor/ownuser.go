package supervisor

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// What a user namespace that maps one user cannot show or change.

// overlayable refuses copy-on-write grants in which something is mounted. What a mount
// hides, a user namespace must not reveal, so that its mounts are locked together
// (mount_namespaces(7)), and none of them alone can be the layer of an overlay.
func overlayable(table []byte) func([]Entry) error {
	return func(entries []Entry) error {
		for i := range entries {
			e := &entries[i]
			if e.Op != "cow" {
				continue
			}
			places, err := mountsBelow(e, table)
			if err != nil {
				return err
			}
			if len(places) > 0 {
				return &Refusal{
					What:   fmt.Sprintf("%s holds another mount at %s, and a user namespace cannot show such a directory copy-on-write", trace.Quote(e.From), trace.Quote(path.Join(e.From, places[0]))),
					Clause: e.Clause, Remedy: "use --mode ro or rw, name a directory beside that mount, or " + helperRemedy,
				}
			}
		}
		return nil
	}
}

// strangers are the copy-on-write grants that are not the caller's own at the top, and so
// hold files that are copied for nobody: their owner or group has no name inside (EOVERFLOW).
func strangers(entries []Entry, c Caller) []Missing {
	var out []Missing
	for i := range entries {
		e := &entries[i]
		if e.Op == "cow" && !e.found && (int(e.open.Stat.Uid) != c.UID || int(e.open.Stat.Gid) != c.GID) {
			out = append(out, Missing{
				Guarantee: clauseText("copy-on-write of "+trace.Quote(e.From), e.Source),
				Why:       "what belongs to another user or group can be read and deleted in it, and not written: a user namespace has one user and one group", Remedy: helperRemedy,
			})
		}
	}
	return out
}

// emptyDirs of procfs hide nothing when something is mounted on them.
var emptyDirs = map[string]bool{"/sys/fs/binfmt_misc": true, "/fs/nfsd": true}

// hiddenProc returns what is mounted over a part of every /proc here, "" where one is whole: as
// container engines hide it, and then the kernel lets nobody but real root mount another one
// (mnt_already_visible in fs/namespace.c, whose rule this is; it could be tried in the run's PID namespace
// only, which is there when all has been decided).
func hiddenProc(table []byte) string {
	under := map[uint64]string{} // by id of a whole procfs, what hides a part of it
	at := map[uint64]string{}
	for m := range mountinfo.All(table) {
		if m.Kind == "proc" && m.Root == "/" {
			under[m.ID], at[m.ID] = "", m.Point
			if m.Has("ro") {
				under[m.ID] = m.Point + " (read-only)"
			}
		}
		if over := at[m.Parent]; over != "" && !emptyDirs[strings.TrimPrefix(m.Point, over)] {
			under[m.Parent] = m.Point
		}
	}
	what := "no /proc is mounted"
	for _, hides := range under {
		if hides == "" {
			return ""
		}
		what = trace.Quote(hides)
	}
	return what
}

// hidePID returns the option by which the /proc here hides processes of others, and those that are not dumpable, from
// who has no CAP_SYS_PTRACE over them (proc(5)); "": it does not.
func hidePID(table []byte) string {
	option := ""
	for m := range mountinfo.All(table) {
		if m.Point != "/proc" {
			continue
		}
		option = "" // of two mounts the later one is on top
		for o := range strings.SplitSeq(m.Super, ",") {
			if m.Kind == "proc" && strings.HasPrefix(o, "hidepid=") && o != "hidepid=0" && o != "hidepid=off" {
				option = o
			}
		}
	}
	return option
}

// openProc mounts /proc, attached to nothing yet, while the one of the host is still there:
// without a whole one to be seen in its mount namespace, nobody but real root may mount
// one (mount_too_revealing in fs/namespace.c).
func (b *builder) openProc(empty initproc.Arg) {
	if !b.userns() {
		return
	}
	b.procfs = b.NewSlot()
	if b.plan.Host.HiddenProc != "" { // and its gap was accepted: the one from here, to be read
		b.Call("proc", "open_tree(/proc, CLONE)", unix.SYS_OPEN_TREE, at(), b.String("/proc"), initproc.Value(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)).Save(b.procfs)
		b.Call("proc", "mount_setattr(/proc, RDONLY)", unix.SYS_MOUNT_SETATTR, b.Saved(b.procfs), empty, initproc.Value(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), b.readOnly(), initproc.Value(32))
		return
	}
	fs := b.NewSlot()
	b.Call("proc", "fsopen(proc)", unix.SYS_FSOPEN, b.String("proc"), initproc.Value(unix.FSOPEN_CLOEXEC)).Save(fs)
	b.Call("proc", "fsconfig(hidepid=ptraceable)", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_SET_STRING), b.String("hidepid"), b.String("ptraceable"), zero())
	b.Call("proc", "fsconfig(CMD_CREATE, proc)", unix.SYS_FSCONFIG, b.Saved(fs), initproc.Value(unix.FSCONFIG_CMD_CREATE), zero(), zero(), zero())
	b.Call("proc", "fsmount(proc)", unix.SYS_FSMOUNT, b.Saved(fs), initproc.Value(unix.FSMOUNT_CLOEXEC),
		initproc.Value(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)).Save(b.procfs)
}
