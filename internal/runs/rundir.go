package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// NewID returns a name for a run: its start in UTC and six letters, such as
// "20261129-163624-7f3k2q". The first two count the milliseconds, so that names
// sort by time; the other four are 20 random bits.
func NewID(now time.Time) string {
	const letters = "0123456789abcdefghjkmnpqrstvwxyz" // no i, l, o, u: easy to read aloud
	var r [6]byte
	if n, err := unix.Getrandom(r[:], 0); n != len(r) { // crypto/rand takes 50 us for its first byte
		panic(err) // never: the call is there since 3.17, and not interrupted below 256 bytes (getrandom(2))
	}
	ms := now.Nanosecond() / 1e6
	r[0], r[1] = byte(ms>>5), byte(ms)
	for i := range r {
		r[i] = letters[r[i]%32]
	}
	return now.UTC().Format("20060102-150405-") + string(r[:])
}

// Began is when a run with that name began, to the second; the zero time when
// the name is not one of NewID's.
func Began(id string) time.Time {
	const form = "20060102-150405"
	t, _ := time.Parse(form, id[:min(len(id), len(form))]) // the zero time
	return t
}

func validID(id string) bool {
	for i := 0; i < len(id); i++ {
		c := id[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0) {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 64
}

// RunDir is the directory of one run. The RunDir that Create returns holds an
// exclusive flock(2) on it: that is how others tell a live run from one whose
// supervisor died, so it is to be closed last.
type RunDir struct {
	id    string
	owner int
	dir   *os.File
	shown bool // read-only: somebody else decides

	readable bool // as the State's
}

// Shown reports whether the run can only be read here (see [View]).
func (d *RunDir) Shown() bool { return d.shown }

// Names of the files of a run.
const (
	PlanFile   = "plan.json"
	TraceFile  = "trace.jsonl"
	StdoutFile = "stdout"
	StderrFile = "stderr"
	ResultFile = "result.json"
	CodeDir    = "code" // a directory: contents that were executed, by digest
	ChangesDir = "changes"
	CommitFile = "commit.jsonl" // journal of commits of the changes
)

const maxFileSize = 16 << 20 // bytes of a plan or a result that is read back

// Create makes the directory of a new run and locks it. It appears under its
// name only when the lock is held. An id that exists is fs.ErrExist.
func (s *State) Create(id string) (*RunDir, error) {
	if !validID(id) {
		return nil, fmt.Errorf("runs: not a run id: %q", id)
	}
	runs, tmp := int(s.runs.Fd()), ".new-"+id
	if err := makeDir(runs, tmp, s.owner); err != nil {
		return nil, fmt.Errorf("runs: create %s: %w", id, err)
	}
	d, err := s.openAt(tmp, id)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(d.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && d.readable {
		err = d.dir.Chmod(0o755)
	}
	if err == nil {
		err = publish(runs, tmp, id)
	}
	if err != nil {
		unix.Unlinkat(runs, tmp, unix.AT_REMOVEDIR)
		return nil, errors.Join(fmt.Errorf("runs: create %s: %w", id, err), d.Close())
	}
	return d, nil
}

// publish gives a new run its name. Where the file system cannot refuse to
// replace (NFS), plain rename still never replaces a directory with files.
func publish(runs int, tmp, id string) error {
	err := unix.Renameat2(runs, tmp, runs, id, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL || err == unix.ENOSYS {
		err = unix.Renameat(runs, tmp, runs, id)
	}
	if err == unix.ENOTEMPTY {
		err = unix.EEXIST
	}
	return err
}

// Open opens the directory of an existing run for reading; it takes no lock.
func (s *State) Open(id string) (*RunDir, error) {
	if !validID(id) {
		return nil, fmt.Errorf("runs: not a run id: %q", id)
	}
	return s.openAt(id, id)
}

func (s *State) openAt(name, id string) (*RunDir, error) {
	fd, err := unix.Openat(int(s.runs.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: open %s: %w", id, err)
	}
	return &RunDir{id: id, owner: s.owner, shown: s.shown, readable: s.readable, dir: os.NewFile(uintptr(fd), s.path+"/runs/"+id)}, nil
}

// ID returns the name of the run.
func (d *RunDir) ID() string { return d.id }

// Path returns where the directory lies, for people.
func (d *RunDir) Path() string { return d.dir.Name() }

// Unlock releases the lock before Close does: the record is complete.
func (d *RunDir) Unlock() error {
	return os.NewSyscallError("flock", unix.Flock(int(d.dir.Fd()), unix.LOCK_UN))
}

// Close closes the directory, and so releases the lock.
func (d *RunDir) Close() error { return d.dir.Close() }

// Dir is the directory itself; it is closed with d.
func (d *RunDir) Dir() *os.File { return d.dir }

func fileName(name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return fmt.Errorf("runs: not a file name: %q", name)
	}
	return nil
}

// Create makes a file of the run for appending, mode 0600. It must not exist.
func (d *RunDir) Create(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(d.dir.Fd()), name, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("runs: create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), d.Path()+"/"+name)
	if d.readable {
		err = f.Chmod(0o644)
	}
	if d.owner != os.Geteuid() {
		err = errors.Join(err, f.Chown(d.owner, -1))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("runs: create %s: %w", name, err), f.Close())
	}
	return f, nil
}

// Sub makes or opens a directory of the run, mode 0700. It holds no lock.
func (d *RunDir) Sub(name string) (*RunDir, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	if err := makeDir(int(d.dir.Fd()), name, d.owner); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("runs: create %s: %w", name, err)
	}
	return d.sub(name)
}

// Unlink removes a file.
func (d *RunDir) Unlink(name string) error {
	if err := fileName(name); err != nil {
		return err
	}
	return unix.Unlinkat(int(d.dir.Fd()), name, 0)
}

// Open opens a file of the run for reading. Anything but a regular file is
// refused.
func (d *RunDir) Open(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(int(d.dir.Fd()), name, flags, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: open %s of %s: %w", name, d.id, err)
	}
	f := os.NewFile(uintptr(fd), d.Path()+"/"+name)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("runs: %s of %s is not a regular file: %w", name, d.id, fs.ErrInvalid), err, f.Close())
	}
	return f, nil
}

// MakeDir makes a directory of the run. It must not exist. Its mode is 0755, for
// helpers with other ids that get it by descriptor; the state directory lets
// nobody else come near.
func (d *RunDir) MakeDir(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(int(d.dir.Fd()), name, 0o755); err != nil {
		return nil, fmt.Errorf("runs: create %s: %w", name, err)
	}
	f, err := d.OpenDir(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Fchmod(int(f.Fd()), 0o755); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenDir opens a directory of the run for reading.
func (d *RunDir) OpenDir(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(d.dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: open %s of %s: %w", name, d.id, err)
	}
	return os.NewFile(uintptr(fd), d.Path()+"/"+name), nil
}

// RemoveDir removes a directory of the run with all that is in it.
func (d *RunDir) RemoveDir(name string) error {
	if err := fileName(name); err != nil {
		return err
	}
	return removeTree(int(d.dir.Fd()), name, 0)
}

// OpenAppend opens a file of the run for reading and appending, mode 0600. It is
// made when it does not exist. Of a run that is shown it is opened for reading, and is
// empty when it does not exist.
func (d *RunDir) OpenAppend(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	if d.shown {
		f, err := d.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return os.Open(os.DevNull)
		}
		return f, err
	}
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(d.dir.Fd()), name, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("runs: open %s of %s: %w", name, d.id, err)
	}
	return os.NewFile(uintptr(fd), d.Path()+"/"+name), nil
}

// WriteFile makes or replaces a file of the run in one step: readers see the old
// content or the new. With durable, it is on disk when WriteFile returns.
func (d *RunDir) WriteFile(name string, data []byte, durable bool) error {
	if err := fileName(name); err != nil {
		return err
	}
	tmp := "." + name + ".tmp"
	f, err := d.Create(tmp)
	if errors.Is(err, fs.ErrExist) { // left by a writer that was killed
		unix.Unlinkat(int(d.dir.Fd()), tmp, 0)
		f, err = d.Create(tmp)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = unix.Renameat(int(d.dir.Fd()), tmp, int(d.dir.Fd()), name)
	}
	if err == nil && durable {
		err = d.dir.Sync()
	}
	if err != nil {
		unix.Unlinkat(int(d.dir.Fd()), tmp, 0)
		return fmt.Errorf("runs: write %s: %w", name, err)
	}
	return nil
}
