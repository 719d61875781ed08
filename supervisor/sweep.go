package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
)

// lockPath is the file whose lock says that a run's supervisor lives.
func lockPath(dir, id string) string { return filepath.Join(dir, "live", id) }

// alive reports whether the supervisor of a run still holds its lock. Where that
// cannot be asked (no descriptors or memory left), the run is not taken for dead.
// A shared lock is tried, so that two who ask do not see each other.
func alive(dir, id string) bool {
	f, err := os.OpenFile(lockPath(dir, id), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ELOOP)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// A lock holds the identity of the state directory that the record is in. When
// a start that keeps its records elsewhere sweeps up after a dead supervisor, the
// lock moves to another directory, as a note that the record is still to be
// recovered. Each state directory has its own notes: no start reads those of others,
// which stay where the directory is gone, until the next boot.
func notePath(dir, state, id string) string { return filepath.Join(dir, "dead", state, id) }

// bury removes the lock of a dead supervisor, or makes it a note.
func bury(dir, id, state string) error {
	if of, err := os.ReadFile(lockPath(dir, id)); err == nil && len(of) > 0 && string(of) != reserveMark && string(of) != state {
		note := notePath(dir, string(of), id)
		if err := os.MkdirAll(filepath.Dir(note), 0o700); err != nil {
			return err
		}
		return os.Rename(lockPath(dir, id), note)
	}
	return os.Remove(lockPath(dir, id))
}

// notes lists the notes for a state directory.
func notes(dir, state string) []string {
	list, err := os.ReadDir(filepath.Dir(notePath(dir, state, "x")))
	if err != nil {
		return nil // there are none
	}
	var out []string
	for _, e := range list {
		out = append(out, notePath(dir, state, e.Name()))
	}
	return out
}

// removeNotes removes notes of one state directory, and with the last one their
// directory. A supervisor that is buried there meanwhile keeps its lock, and is
// found by the next start.
func removeNotes(list []string) error {
	var errs []error
	for _, name := range list {
		errs = append(errs, ignoreMissing(os.Remove(name)))
		_ = os.Remove(filepath.Dir(name)) // not while there are others
	}
	return errors.Join(errs...)
}

// sweepLocks buries supervisors that died between taking a lock and making a
// leaf. Only locks that nobody holds and that are a minute old are touched: a
// supervisor holds its lock from the instant it makes it.
func sweepLocks(dir, state string) error {
	list, err := os.ReadDir(filepath.Dir(lockPath(dir, "x")))
	if err != nil {
		return nil // none has run yet
	}
	var errs []error
	for _, e := range list {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > time.Minute && !alive(dir, e.Name()) {
			errs = append(errs, bury(dir, e.Name(), state))
		}
	}
	return errors.Join(errs...)
}

// sweepEvery is how often a start looks for debris that no lock tells of.
const sweepEvery = time.Hour

// needsSweep reports whether a supervisor has died without cleaning up. It
// leaves its lock, which was there before anything else of its run; that is
// cheap to see. Once in a while everything is looked at all the same.
func needsSweep(dir, own, state string) bool {
	locks := filepath.Dir(lockPath(dir, "x"))
	st, err := os.Stat(locks + ".swept")
	if err != nil || time.Since(st.ModTime()).Abs() > sweepEvery {
		return true
	}
	list, err := os.ReadDir(locks)
	if err != nil {
		return true
	}
	for _, e := range list {
		if e.Name() != own && !alive(dir, e.Name()) {
			return true
		}
	}
	return len(notes(dir, state)) > 0
}

// swept notes that all was looked at.
func swept(dir string) error {
	name := filepath.Dir(lockPath(dir, "x")) + ".swept"
	now := time.Now()
	err := os.Chtimes(name, now, now)
	if errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(name, nil, 0o600)
	}
	return err
}

// sweep removes what killed supervisors left behind.
func (r *Run) sweep() error {
	dir, state := r.runtime, r.state.Identity()
	if !needsSweep(dir, r.lease, state) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	live := func(id string) bool { return alive(dir, id) }
	var ids []string
	var err error
	if r.host.parent != nil {
		ids, err = r.host.parent.Sweep(ctx, live)
	}
	if len(seams()) == 0 && r.host.Info.Mode == ModeRoot {
		old, oerr := r.host.layout.SweepOthers(ctx, cgroup.DefaultParent+"-", filepath.Base(r.host.parent.Path), live)
		ids, err = append(ids, old...), errors.Join(err, oerr)
	}
	errs := []error{err}
	for _, id := range ids {
		r.cfg.Log.Warn().Str("run", id).Msg("removed what a dead supervisor left")
		errs = append(errs, ignoreMissing(bury(dir, id, state)))
	}
	if r.host.programs != nil {
		errs = append(errs, bpf.Sweep(r.host.bpf))
	}
	done := notes(dir, state)
	r.recoverDead()
	errs = append(errs, r.sweepPrivate(), removeNotes(done), ignoreMissing(sweepLocks(dir, state)), r.state.Sweep(time.Minute), swept(dir)) // directories that never became a run
	return errors.Join(errs...)
}

// ignoreMissing forgives that another start was faster.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
