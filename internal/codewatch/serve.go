package codewatch

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Start begins to answer. Marks may be made before and after, but from the first
// execve on a marked mount on, somebody must answer.
func (w *Watch) Start() {
	if w.group != nil {
		w.tasks.Go(w.serve)
	}
}

// serve reads events until the group is closed. It does not give up before:
// what nobody answers hangs. A run can make any number of reads fail, each of
// which refuses one execve, by holding so many that no descriptor is left.
func (w *Watch) serve() {
	buf := make([]byte, 64*eventSize)
	for {
		n, err := w.group.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil { // no descriptor for the event (EMFILE, ENFILE): the kernel has refused this execve
			w.count(func(c *Counts) { c.Failed++ })
			time.Sleep(time.Millisecond)
			continue
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e event
			if e, rest, err = decode(rest); err == nil && e.fd >= 0 {
				w.hold(e)
			}
		}
	}
}

func (w *Watch) count(add func(*Counts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	add(&w.counts)
}

// hold answers one event: at once when the file is known, else when it is.
func (w *Watch) hold(e event) {
	w.mounts.open(e.pid)
	ent, err := w.lookup(e.fd, func() identity { return w.mounts.identify(e.fd, e.pid) })
	if err != nil { // it cannot even be told which file it is
		w.opened(e.pid, &File{State: Error})
		w.answer(e)
		return
	}
	select {
	case <-ent.done:
		w.opened(e.pid, w.asOf(e, ent))
		w.spare(e, ent)
		w.answer(e)
	default:
		w.tasks.Go(func() {
			select {
			case <-ent.done:
				w.opened(e.pid, w.asOf(e, ent))
				w.spare(e, ent)
			case <-w.closed:
			}
			w.answer(e)
		})
	}
}

// asOf is a settled entry as it is for this execve. Where nobody but us sees who
// has a file mapped to write to it, that is asked each time: the version may be
// one that was hashed long before.
func (w *Watch) asOf(e event, ent *entry) *File {
	if ent.State != OK || ent.system || !w.heldBelow(e.fd, ent.Version) {
		return &ent.File
	}
	raced := ent.File
	raced.State = Raced
	return &raced
}

// spare lets later execves of a system file go on without waiting for us, until
// somebody writes to it. The sensor's report of the execve says which version
// ran, by its ctime, and the digest of that is known. Not so of a script, whose
// execve is reported with its interpreter: by its event only we know of it. A
// failure costs the next execve its wait.
func (w *Watch) spare(e event, ent *entry) {
	if ent.system && ent.State == OK && !ent.Script && !ent.Gone {
		_ = w.group.ignore(e.fd)
	}
}

// answer allows. It fails only when the task or the group is gone, and then
// nobody waits.
func (w *Watch) answer(e event) { _ = w.group.allow(e.fd) }

// entry is a version of a file that is being hashed, and settled once done is closed.
type entry struct {
	File
	key   key
	done  chan struct{}
	timer *time.Timer

	system         bool // the run cannot write to it; unchanged once done is closed
	reading, hangs bool // it holds a slot; nobody waits for it any more. Under Watch.mu
}

// key tells versions of files apart: stat's numbers, which are cheaper to have
// than those of ID.
type key struct {
	dev, ino uint64
	Version
}

// keyOf returns the key of an open file and the number of its names. With
// AT_STATX_DONT_SYNC nobody is asked over a network, which may hang.
func keyOf(fd, flags int) (key, uint32, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|flags, unix.STATX_BASIC_STATS, &st); err != nil {
		return key{}, 0, os.NewSyscallError("statx", err)
	}
	return key{
		unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino,
		Version{st.Ctime.Sec*int64(time.Second) + int64(st.Ctime.Nsec), int64(st.Size)},
	}, st.Nlink, nil
}

// lookup returns the entry of the file that fd is open on. A new one begins to
// be hashed. identify says which file it is, if it has to be known.
func (w *Watch) lookup(fd int, identify func() identity) (*entry, error) {
	k, links, err := keyOf(fd, unix.AT_STATX_DONT_SYNC)
	if err != nil {
		return nil, err
	}
	e, isNew := w.entry(k)
	if !isNew {
		return e, nil
	}
	seen := identify()
	out := seen.file(links)
	out.Version = k.Version
	w.note(e, out, seen.mount.system)
	if seen.mount.system && w.cached(e, fd, out) {
		return e, nil
	}
	// The hash has a descriptor of its own: fd is closed when the wait is over,
	// and a hash that hangs would go on with whatever gets its number.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		w.settle(e, File{State: Error})
		return e, nil
	}
	go w.hash(e, os.NewFile(uintptr(own), "executed"), seen.mount, out)
	return e, nil
}

// entry returns the entry of a key and whether it is new: then the caller sees
// to it that it is hashed.
func (w *Watch) entry(k key) (*entry, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.files[k]; e != nil {
		return e, false
	}
	if len(w.files) >= maxFiles {
		clear(w.files)
	}
	e := &entry{key: k, done: make(chan struct{})}
	e.ID, e.Version = ID{k.dev, k.ino}, k.Version // what stat says, until better is known
	e.timer = time.AfterFunc(w.cfg.Limits.Wait, func() { w.expire(e) })
	w.files[k] = e
	return e, true
}

// settle gives the entry its outcome and reports whether it had none yet.
func (w *Watch) settle(e *entry, f File) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-e.done:
		return false
	default:
	}
	if f.Ino == 0 { // which file it is was noted before
		e.State, f = f.State, e.File
		f.State = e.State
	}
	e.File = f
	e.timer.Stop()
	close(e.done)
	return true
}
