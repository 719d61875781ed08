// Package codewatch takes the SHA-256 of what a run executes, before it runs.
//
// A fanotify group (FAN_OPEN_EXEC_PERM, Linux 5.0) on the run's own mounts holds
// each execve while the file that it opened is hashed: the program, the script
// of a #! line and its interpreter, the dynamic loader. What gives no such
// event (memfd, executable mappings, scripts that an interpreter reads) is
// given to the Watch by descriptor when the sensor reports it.
//
// Who waits for whom: the kernel holds the task in execve until the group
// answers; the goroutine of Watch answers when the file's entry is settled, which
// a hash, a limit or a timer does. An unanswered event is allowed by the kernel
// when the group is closed or its owner dies (fs/notify/fanotify, fanotify_release):
// fail open, so a run must not outlive its supervisor.
package codewatch

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// State says what a digest is worth.
type State string

// The states of a digest.
const (
	OK     State = "ok"      // of the content at the time of the event
	TooBig State = "too_big" // larger than Limits.File: no digest
	Raced  State = "raced"   // the file changed meanwhile, or was gone: the digest, if any, may be of other content
	Memfd  State = "memfd"   // of memory without a name, as it was shortly after the event: whoever holds it may write to it
	FUSE   State = "fuse"    // served by a process, which is not asked: no digest
	Limit  State = "limit"   // took too long, or was too much: no digest
	Error  State = "error"   // could not be read: no digest
)

// ID names a file as the kernel's own records do: the device of its file system
// and its inode. stat(2) shows other numbers for some (overlayfs, btrfs).
type ID struct {
	Dev uint64 // as stat encodes it
	Ino uint64
}

// Version is what changes with the content of a file.
type Version struct {
	Ctime int64 // ns since the epoch
	Size  int64 // bytes
}

// File is one version of a file and its digest. It does not change once it was handed out.
type File struct {
	ID
	Version
	Path   string // as the run sees it, or saw it before it was deleted
	State  State
	SHA256 string // lower-case hex; "" where the state says that there is none
	Stored bool   // the content is in the store under its digest
	Script bool   // begins with #!
	Gone   bool   // has no name any more
	// Mutable: a program that has, by its own header, memory that can be written and executed.
	Mutable bool
}

// Limits bound what a Watch does for a run.
type Limits struct {
	File       int64         // bytes of the largest file that is hashed
	Total      int64         // bytes hashed in all
	Object     int64         // bytes of the largest content that is stored
	Store      int64         // bytes stored in all
	Wait       time.Duration // for one digest; then the program runs without
	Concurrent int           // hashes at a time
}

// DefaultLimits are those of every run. At 1 GB/s, which SHA-256 makes with the
// CPU's own instructions, the largest file holds its first execve for half a second.
var DefaultLimits = Limits{
	File: 512 << 20, Total: 64 << 30, Object: 1 << 20, Store: 32 << 20,
	Wait: 10 * time.Second, Concurrent: 4,
}

const (
	maxFiles   = 1 << 16 // remembered at a time; beyond, all are forgotten and met again
	maxChains  = 1 << 12 // processes between the opening of a program and the report of its execve
	maxLinks   = 1 << 10 // files that one of them opened since: a question (AT_EXECVE_CHECK, 6.14) opens too, and is never reported
	maxWaiting = 256     // files that wait to be hashed beside an execve
)

// Config is one run's watch.
type Config struct {
	Limits Limits
	Store  Store  // nil: no content is stored
	Cache  *Cache // of digests of system files; nil: none
}

// Watch hashes for one run. Its methods may be called from several goroutines.
type Watch struct {
	cfg    Config
	group  *group
	err    error // why there is no group
	mounts mounts
	merged []merged
	store  *store
	boot   func() uint64 // CLOCK_BOOTTIME in ns

	slots  chan struct{} // held by the hashes at work
	spent  atomic.Int64  // bytes read for digests
	closed chan struct{}

	stop    sync.Once
	stopped error

	mu      sync.Mutex
	files   map[key]*entry
	chains  map[uint32][]link // by process
	hung    int               // hashes that hold a slot and were given up waiting for
	pending int               // submitted and not reported yet
	counts  Counts
	tasks   sync.WaitGroup // reader, and what waits for a hash to answer
}

// Counts are what a Watch has done.
type Counts struct {
	Opened  uint64 // files that an execve waited for
	Hashed  uint64 // digests taken
	Cached  uint64 // digests of system files that an earlier run took
	Bytes   uint64 // read for digests
	Stored  uint64 // bytes in the store
	Dropped uint64 // contents that did not fit the store
	Failed  uint64 // events that the kernel could not hand over: these execves were refused
}

// link is a file that a process opened to execute it.
type link struct {
	file *File
	at   uint64 // CLOCK_BOOTTIME, before the kernel went on
}

// New makes a Watch that marks nothing yet. Without fanotify it works all the
// same for what is submitted, and Err says why nothing else comes.
func New(cfg Config) *Watch {
	w := &Watch{
		cfg: cfg, boot: bootTime, slots: make(chan struct{}, cfg.Limits.Concurrent), closed: make(chan struct{}),
		mounts: mounts{byID: map[uint64]mount{}}, files: map[key]*entry{}, chains: map[uint32][]link{},
	}
	if cfg.Store != nil {
		w.store = &store{dir: cfg.Store, left: cfg.Limits.Store}
	}
	w.group, w.err = newGroup()
	return w
}

// Err is why programs are not held while they are hashed; nil when they are.
func (w *Watch) Err() error { return w.err }

// Counts returns what was done so far.
func (w *Watch) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.counts
	c.Bytes = uint64(w.spent.Load())
	if w.store != nil {
		c.Stored, c.Dropped = w.store.totals()
	}
	return c
}

// Executed returns what the process opened to execute up to a time on
// CLOCK_BOOTTIME, in the order of the opening (script, interpreter, loader), and
// forgets it. Only an execve opens so: all that is older than its report
// belongs to it, or to one that failed before.
func (w *Watch) Executed(pid uint32, until uint64) []*File {
	w.mu.Lock()
	defer w.mu.Unlock()
	chain := w.chains[pid]
	n := 0
	for n < len(chain) && chain[n].at <= until {
		n++
	}
	if n == 0 {
		return nil
	}
	out := make([]*File, n)
	for i := range out {
		out[i] = chain[i].file
	}
	if n == len(chain) {
		delete(w.chains, pid)
	} else {
		w.chains[pid] = chain[n:]
	}
	return out
}

// Forget drops what is known of a process that has ended.
func (w *Watch) Forget(pid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.chains, pid)
}

// opened notes that a process executes a file. It must be called before the kernel goes on.
func (w *Watch) opened(pid uint32, f *File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.Opened++
	if len(w.chains) >= maxChains { // of processes that were killed in between
		clear(w.chains)
	}
	chain := w.chains[pid]
	if len(chain) >= maxLinks { // the younger half, which the next report is about
		chain = append(chain[:0], chain[maxLinks/2:]...)
	}
	w.chains[pid] = append(chain, link{f, w.boot()})
}

// Descriptor is the group's own, -1 without one, for a process that makes mounts
// of the run itself and marks them before anybody can execute what is in them.
func (w *Watch) Descriptor() int {
	if w.group == nil {
		return -1
	}
	return w.group.fd
}

// MarkFlags is the second argument of fanotify_mark(2).
type MarkFlags uint64

// What is marked. The file system of an overlay's layers must not be: the
// overlay opens what lies in them a second time.
const (
	MarkMount      MarkFlags = unix.FAN_MARK_ADD | unix.FAN_MARK_MOUNT
	MarkFileSystem MarkFlags = unix.FAN_MARK_ADD | unix.FAN_MARK_FILESYSTEM // with every mount of it
)

// MarkMask is the third argument of fanotify_mark(2).
const MarkMask = unix.FAN_OPEN_EXEC_PERM

// String is the kind of the mark without its prefix.
func (m MarkFlags) String() string {
	if m == MarkFileSystem {
		return "FILESYSTEM"
	}
	return "MOUNT"
}

// Release lets go of the run's mounts: from here on no execve is held. It is to
// be called when the processes of the run are dead or dying.
func (w *Watch) Release() error {
	if w.group == nil {
		return nil
	}
	return w.group.unmark()
}

// Stop ends the holding; what waits still is allowed. Digests go on being taken.
// It may be called again.
func (w *Watch) Stop() error {
	if w.group == nil {
		return nil
	}
	w.stop.Do(func() {
		w.stopped = errors.Join(w.group.unmark(), w.group.close())
		close(w.closed)
		w.tasks.Wait()
	})
	return w.stopped
}

// settleTime is how long the kernel needs to be done with marks that were
// removed. A close within it waits for an SRCU grace period of up to 20 ms, one
// after it for none (fs/notify/mark.c, fsnotify_wait_marks_destroyed): measured on 6.18.
const settleTime = time.Millisecond

// Wait returns when everything that was submitted is hashed, at most after
// Limits.Wait; how many files are left then.
func (w *Watch) Wait() int {
	for deadline := time.Now().Add(w.cfg.Limits.Wait); ; time.Sleep(100 * time.Microsecond) {
		w.mu.Lock()
		left := w.pending
		w.mu.Unlock()
		if left == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// DropTable gives back the run's table of mounts, when all is hashed: with the last of
// its descriptors goes the run's mount namespace, which takes the kernel a while.
func (w *Watch) DropTable() error { return w.mounts.close() }

// Close ends the watch. Hashes that hang are left behind.
func (w *Watch) Close() error {
	errs := []error{w.Stop(), w.mounts.close()}
	for _, m := range w.merged {
		errs = append(errs, m.upper.Close())
	}
	return errors.Join(errs...)
}
