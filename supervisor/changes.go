package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// packChanges puts what the command changed in its copy-on-write trees into the
// record. The tree is dead by now: nothing changes an upper any more. A run that
// changed nothing has no change set.
func (r *Run) packChanges(res *runs.Result) {
	res.Planted, res.Linked = r.grants.planted(), r.grants.linkedWrites(r.wall)
	trees := r.changedTrees(res)
	if len(trees) == 0 {
		return
	}
	sum, err := r.pack(trees)
	if err != nil {
		r.cfg.Log.Error().Err(err).Msg("changes")
		sum.Findings = append(sum.Findings, err.Error())
		res.Error = joinText(res.Error, "the changes could not be kept: "+err.Error())
	}
	if sum.Empty() && len(sum.Findings) == 0 {
		err = r.dir.RemoveDir(runs.ChangesDir) // copied up, and nothing changed
		if err != nil {
			r.cfg.Log.Error().Err(err).Msg("changes")
		}
		return
	}
	res.Changes = &runs.Changes{
		Added: sum.Added, Modified: sum.Modified, Deleted: sum.Deleted, Renamed: sum.Renamed,
		Protect: names(r.cfg.Policy.Protect), SHA256: sum.SHA256, Findings: sum.Findings,
	}
	r.rec.appendOwn(&trace.Event{
		Kind: trace.KindOutput, Phase: trace.PhaseCommand, Mono: bootTime(), Stream: "changes",
		Bytes: uint64(sum.Bytes), Kept: uint64(sum.Bytes), SHA256: sum.SHA256,
	})
}

// storageFull reports that the run's own storage has no room left, or may have no more
// files: what it was refused for want of these, it was refused by the limit.
func (r *Run) storageFull() (room, files bool) {
	for _, f := range r.uppers {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err == nil && st.Blocks > 0 {
			return st.Bavail <= st.Blocks/100, r.plan.Limits.Files > 0 && st.Ffree == 0
		}
	}
	return false, false
}

// changedTrees are the copy-on-write grants whose upper is not empty.
func (r *Run) changedTrees(res *runs.Result) []changes.Tree {
	var out []changes.Tree
	for i := range r.plan.View {
		e := &r.plan.View[i]
		if e.Op != "cow" || e.Cache != "" || r.uppers[e.Layer] == nil {
			continue
		}
		t := changes.Tree{Upper: r.uppers[e.Layer], Lower: e.open.File, Host: e.From, UID: uint32(r.plan.Identity.UID), GID: uint32(r.plan.Identity.GID), User: r.plan.Host.Mode == ModeUserNS}
		if o := outermost(r.plan.View, e); o != nil {
			t.In = strings.TrimPrefix(e.At, o.At+"/")
		}
		if r.plan.Identity.Own {
			t.Own, t.UID, t.GID = t.UID, 0, 0
		}
		same, err := changes.Untouched(&t)
		if err != nil {
			res.Error = joinText(res.Error, fmt.Sprintf("changes of %s: %v", trace.Quote(e.From), err))
			continue
		}
		if !same {
			out = append(out, t)
		}
	}
	return out
}

// outermost is the copy-on-write tree that the one of e is mounted in, or nil: a mount of the
// host's in a workspace is a tree of its own.
func outermost(view []Entry, e *Entry) (out *Entry) {
	for i := range view {
		if o := &view[i]; o.Op == "cow" && o.At != e.At && within(e.At, o.At) && (out == nil || len(o.At) < len(out.At)) {
			out = o
		}
	}
	return out
}

func (r *Run) pack(trees []changes.Tree) (changes.Summary, error) {
	var dir *os.File
	dir, err := r.dir.MakeDir(runs.ChangesDir)
	if err != nil {
		return changes.Summary{}, r.recordError(err)
	}
	sum, err := changes.Pack(dir, trees, changes.DefaultBounds())
	return sum, errors.Join(err, dir.Close())
}
