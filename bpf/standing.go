package bpf

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Standing programs look inside system calls and add to what the sensor tells
// at their end. They are attached as long as the set is pinned, since to attach
// them takes longer than a run may wait, and they cost others nothing but in
// calls that change names. A kernel may lack either part; then, and where one of
// them is skipped, records say what the sensor alone can know.

// standingPart is an object that a kernel takes whole or not at all.
type standingPart struct {
	spec   func() (*ebpf.CollectionSpec, error)
	attach ebpf.AttachType
	names  []string
}

// standing are the parts: names as the kernel has looked them up (fentry), and
// what Landlock says of its refusals (tracepoints, 7.3).
var standing = [...]standingPart{
	{loadResolve, ebpf.AttachTraceFEntry, standingNames[:refuseFrom]},
	{loadRefuse, ebpf.AttachTraceRawTp, standingNames[refuseFrom:]},
}

var standingNames = [...]string{
	"path_unlink", "path_rmdir", "path_mkdir", "path_mknod", "path_truncate",
	"path_chmod", "path_chown", "path_symlink", "path_link", "path_rename", "inode_setxattr", "inode_removexattr",
	"deny_access_fs", "deny_access_net", "deny_ptrace", "deny_scope_signal", "deny_scope_abstract",
}

// refuseFrom is the index of the first of standingNames that is of Landlock's.
const refuseFrom = 12

// standingFrom is the index of the first of standingNames in meta.
const standingFrom = len(cgroupNames) + len(tracingNames)

// buildStanding attaches and pins what the kernel takes of the standing programs.
func buildStanding(dir string, cfg Config, parent uint64, shared map[string]*ebpf.Map, meta *[metaEntries]metaEntry) error {
	if cfg.tier1 {
		return nil
	}
	at := standingFrom
	for _, part := range standing {
		entries := meta[at : at+len(part.names)]
		at += len(part.names)
		c, err := loadTyped(part.spec, cfg, parent, shared)
		if err != nil {
			continue // as Probe says
		}
		err = part.pin(dir, c, entries)
		c.Close()
		if err != nil {
			clear(entries)
			for _, name := range part.names {
				if err := os.Remove(filepath.Join(dir, "l_"+name)); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
		}
	}
	return nil
}

func (part *standingPart) pin(dir string, c *ebpf.Collection, entries []metaEntry) error {
	for i, name := range part.names {
		if err := note(&entries[i], c.Programs[name]); err != nil {
			return err
		}
		if err := attachPinned(filepath.Join(dir, "l_"+name), part.attach, c.Programs[name]); err != nil {
			return err
		}
	}
	return nil
}

// Tier names the programs that are at work, for the record: the tracepoints,
// which all kernels have, "fentry" where names are told as the kernel has looked
// them up, and "landlock" where Landlock itself says what it refuses.
func (p *Programs) Tier() string {
	tier := "tracepoints"
	if p.resolves {
		tier += "+fentry"
	}
	if p.refusals {
		tier += "+landlock"
	}
	return tier
}
