package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/trace"
)

// watchCode begins to hash what is executed on the prepared mounts. Whatever
// cannot be watched is still hashed when the sensor reports it, and said.
func (r *Run) watchCode(m *mountSet) error {
	if r.host.programs == nil && !r.plan.Notify {
		return nil // there is no record that could tell it
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	cache, err := codewatch.OpenCache(filepath.Join(r.runtime, "code"), boot)
	if err != nil {
		r.cfg.Log.Warn().Err(err).Msg("digests of system files are not kept")
	}
	store := &codeStore{run: r.dir}
	r.release.push("code store", store.Close)
	w := codewatch.New(codewatch.Config{Limits: codewatch.DefaultLimits, Store: store, Cache: cache})
	r.release.push("digest cache", cache.Close)
	r.release.push("code watch", w.Close)
	if err := r.merged(w, m); err != nil {
		return err
	}
	r.code = &codeRecord{watch: w, plan: r.plan, asked: map[codeKey]bool{}, told: map[codeKey]*codewatch.File{}, scripts: map[uint32]string{}}
	if !r.plan.Host.ExecEvents || r.plan.Notify {
		return nil // thin, as the plan says
	}
	if err := errors.Join(w.Err(), w.Mark(r.executable(m))); err != nil {
		r.cfg.Log.Warn().Err(err).Msg("code watch")
		r.code.missing = "code: not held while it is hashed: " + oneLine(err.Error())
	}
	r.materials.watch, r.materials.watched = w.Descriptor(), w.Descriptor() >= 0
	w.Start()
	return nil
}

// merged tells the watch of the copy-on-write trees.
func (r *Run) merged(w *codewatch.Watch, m *mountSet) error {
	for i := range r.plan.View {
		e := &r.plan.View[i]
		if e.Op != "cow" {
			continue
		}
		upper, err := unix.FcntlInt(m.dirs["scratch/"+e.Layer+"/upper"].Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		w.Merge(e.At, os.NewFile(uintptr(upper), "upper of "+e.At))
	}
	return nil
}

// beginCode lets the record tell what is hashed. It keeps the run's mounts
// alive until the end: what is reported of a process that is gone by then is
// still found where that process found it.
func (r *Run) beginCode(w *trace.Writer) error {
	if r.code == nil {
		return nil
	}
	r.code.w = w
	r.release.push("mounts of the run", r.code.letGo)
	if r.host.Info.shared() { // it sees the host's own tree
		root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		r.code.root, r.code.held = root, append(r.code.held, root)
		return nil
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", r.proc.Pid))
	if err != nil {
		return fmt.Errorf("the run's mount namespace: %w", err)
	}
	r.code.held = append(r.code.held, ns)
	root, err := unix.FcntlInt(r.materials.mounts.root.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	r.code.root = os.NewFile(uintptr(root), "root of the run")
	r.code.held = append(r.code.held, r.code.root)
	return nil
}

// executable lists the mounts from which the command can execute. Merged trees
// and the parts of the scratch file system are mounted by the run's own process,
// which marks them (watched).
func (r *Run) executable(m *mountSet) []codewatch.Mount {
	var list []codewatch.Mount
	for i := range r.plan.View {
		e := &r.plan.View[i]
		if e.Op == "bind" && (e.Access == "ro" || e.Access == "rw") {
			list = append(list, codewatch.Mount{Name: e.At, Tree: m.mounts[e.At], Source: e.open.File, System: e.system})
		}
	}
	return list
}
