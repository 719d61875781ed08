package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

// ErrLive is returned for what may be done to an ended run only, and that nobody commits.
var ErrLive = errors.New("the run is live")

// Summary is one line of a list of runs.
type Summary struct {
	ID     string
	Live   bool
	Gone   bool    // the host's log has it, and the state directory has not
	Result *Result // nil when there is none: the run is live, or its supervisor died
	Err    error   // why a result that is there could not be read
}

// IDs returns the names of all runs, newest first.
func (s *State) IDs() ([]string, error) {
	names, err := readNames(s.runs)
	if err != nil {
		return nil, fmt.Errorf("runs: list: %w", err)
	}
	ids := slices.DeleteFunc(names, func(n string) bool { return !validID(n) })
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids, nil
}

// readNames reads a directory from its beginning, with a description of its
// own, so that it can be done again and by several at once.
func readNames(dir *os.File) ([]string, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

// List returns the newest runs, at most limit of them when it is positive.
// A damaged run is listed with its error.
func (s *State) List(limit int) ([]Summary, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	if limit > 0 && len(ids) > limit {
		ids = ids[:limit]
	}
	out := make([]Summary, 0, len(ids))
	for _, id := range ids {
		if sum, ok := s.summary(id); ok {
			out = append(out, sum)
		}
	}
	return out, nil
}

// summary is not ok when the run was removed meanwhile.
func (s *State) summary(id string) (sum Summary, ok bool) {
	sum = Summary{ID: id}
	d, err := s.Open(id)
	if err != nil {
		sum.Err = err
		return sum, !errors.Is(err, fs.ErrNotExist)
	}
	defer d.Close()
	sum.Live = d.Live()
	switch r, err := d.Result(); {
	case err == nil:
		sum.Result = r
		if !sum.Live && !d.sealed() { // killed between the two: the result was stored while the seal was made
			r.Record.Verdict = string(trace.Unsealed)
		}
	case !errors.Is(err, fs.ErrNotExist):
		sum.Err = err
	}
	return sum, true
}

// sealed reports whether the run has a seal, whatever that is worth.
func (d *RunDir) sealed() bool {
	n, err := d.Size(sealFile)
	return err == nil && n > 0
}

const sealFile = "seal.json" // of package trace/seal

// Live reports whether the run's supervisor is at work: whether somebody holds the lock that Create took. A shared lock
// is tried, so that two who ask do not see each other.
func (d *RunDir) Live() bool {
	fd := int(d.dir.Fd())
	if err := unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return err == unix.EWOULDBLOCK
	}
	unix.Flock(fd, unix.LOCK_UN)
	return false
}

// AmbiguousError says that a prefix fits several runs.
type AmbiguousError struct {
	Prefix string
	IDs    []string // newest first
}

func (e *AmbiguousError) Error() string {
	shown := e.IDs[:min(len(e.IDs), 3)]
	more := ""
	if n := len(e.IDs) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%q fits %d runs: %s%s", e.Prefix, len(e.IDs), strings.Join(shown, ", "), more)
}

// Find returns the id of the run that a prefix, or a part of the random end,
// names; "last" is the newest. No match is fs.ErrNotExist, several are an
// *AmbiguousError.
func (s *State) Find(prefix string) (string, error) {
	ids, err := s.IDs()
	if err != nil {
		return "", err
	}
	if prefix == "last" {
		if len(ids) == 0 {
			return "", fmt.Errorf("no runs in %s: %w", s.path, fs.ErrNotExist)
		}
		return ids[0], nil
	}
	if slices.Contains(ids, prefix) {
		return prefix, nil
	}
	fit := slices.DeleteFunc(ids, func(id string) bool {
		end := id[strings.LastIndexByte(id, '-')+1:]
		return prefix == "" || !strings.HasPrefix(id, prefix) && !strings.HasPrefix(end, prefix)
	})
	switch len(fit) {
	case 0:
		return "", fmt.Errorf("no run %q in %s: %w", prefix, s.path, fs.ErrNotExist)
	case 1:
		return fit[0], nil
	}
	return "", &AmbiguousError{prefix, fit}
}

// Remove deletes an ended run and its record. A live one is ErrLive.
func (s *State) Remove(id string) error {
	d, err := s.Open(id)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.lockDead(); err != nil {
		return fmt.Errorf("runs: remove %s: %w", id, err)
	}
	return s.RemoveAdopted(d)
}

// RemoveAdopted deletes a run that [State.Adopt] or [State.Create] has opened.
func (s *State) RemoveAdopted(d *RunDir) error {
	runs, tmp := int(s.runs.Fd()), ".del-"+d.id
	if err := unix.Renameat(runs, d.id, runs, tmp); err != nil {
		return fmt.Errorf("runs: remove %s: %w", d.id, err)
	}
	if err := removeTree(runs, tmp, 0); err != nil {
		return fmt.Errorf("runs: remove %s: %w", d.id, err)
	}
	return nil
}

// RemoveEmpty removes the directory of a run that Adopt has opened, if nothing is in it: its supervisor was killed
// when it had just made it.
func (s *State) RemoveEmpty(d *RunDir) (removed bool, err error) {
	if names, err := readNames(d.dir); err != nil || len(names) > 0 {
		return false, err
	}
	if err := unix.Unlinkat(int(s.runs.Fd()), d.id, unix.AT_REMOVEDIR); err != nil {
		return false, fmt.Errorf("runs: remove %s: %w", d.id, err)
	}
	return true, nil
}

// Adopt opens a run whose supervisor has died, and takes its lock. A live one is
// ErrLive.
func (s *State) Adopt(id string) (*RunDir, error) {
	d, err := s.Open(id)
	if err != nil {
		return nil, err
	}
	if err := d.lockDead(); err != nil {
		return nil, errors.Join(fmt.Errorf("runs: %s: %w", id, err), d.Close())
	}
	return d, nil
}

// lockDead takes the lock of an ended run. Others may hold it for a moment to
// see whether it is live, and for longer to commit what it staged: the process that does goes on when
// whoever began it is killed, and has the journal's lock.
func (d *RunDir) lockDead() error {
	for try := 0; ; try++ {
		err := unix.Flock(int(d.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return d.notCommitting()
		case err != unix.EWOULDBLOCK:
			return os.NewSyscallError("flock", err)
		case try == 5 && !d.Live():
			return errCommitting
		case try == 5:
			return ErrLive
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var errCommitting = fmt.Errorf("%w: its changes are being committed", ErrLive)

func (d *RunDir) notCommitting() error {
	f, err := d.Open(CommitFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return errors.Join(errCommitting, f.Close())
	}
	return errors.Join(os.NewSyscallError("flock", err), f.Close())
}

// shareLimit is how long a supervisor may take for the seal of a run that has its result.
const shareLimit = 30 * time.Second

// Share keeps an ended run from being deleted until Close. Several may share it. A live one is ErrLive,
// after it was waited for.
func (d *RunDir) Share() error {
	for end := time.Now().Add(shareLimit); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(d.dir.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK {
			return os.NewSyscallError("flock", err)
		}
		if time.Now().After(end) {
			return ErrLive
		}
	}
}

const maxTree = 16 // levels below a run: what we make has two

// removeTree removes name below the directory parent and follows no link.
func removeTree(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM || depth > maxTree {
		return fmt.Errorf("unlink %q: %w", name, err)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", name, err)
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeTree(fd, n, depth+1); err != nil {
			return err
		}
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

// Sweep removes what a killed supervisor left half made or half removed: hidden
// directories that nobody holds and that are older than age.
func (s *State) Sweep(age time.Duration) error {
	names, err := readNames(s.runs)
	if err != nil {
		return fmt.Errorf("runs: sweep: %w", err)
	}
	var errs []error
	for _, n := range names {
		if strings.HasPrefix(n, ".new-") || strings.HasPrefix(n, ".del-") {
			errs = append(errs, s.sweep(n, age))
		}
	}
	return errors.Join(errs...)
}

func (s *State) sweep(name string, age time.Duration) error {
	d, err := s.openAt(name, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	st, err := d.dir.Stat()
	if err != nil {
		return err
	}
	if time.Since(st.ModTime()) < age || d.lockDead() != nil {
		return nil
	}
	return removeTree(int(s.runs.Fd()), name, 0)
}
