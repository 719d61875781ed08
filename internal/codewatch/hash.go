package codewatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cached settles the entry of a system file whose digest an earlier run took. It
// is quick, since system directories do not hang.
func (w *Watch) cached(e *entry, fd int, out File) bool {
	sum, ok := w.cfg.Cache.get(e.key)
	if !ok || isScript(fd) { // the content of a script is wanted too
		return false
	}
	out.State, out.SHA256, out.Mutable = OK, sum, mutable(fd)
	w.count(func(c *Counts) { c.Cached++ })
	return w.settle(e, out)
}

// hash settles an entry and closes its file. All that may hang happens here.
func (w *Watch) hash(e *entry, f *os.File, on mount, out File) {
	defer f.Close()
	switch {
	case on.fuse:
		out.State = FUSE
	case e.key.Size > w.cfg.Limits.File:
		out.State = TooBig
	}
	if out.State != "" {
		w.settle(e, out)
		return
	}
	out.Script, out.Mutable = isScript(int(f.Fd())), mutable(int(f.Fd()))
	plain := on.system && !out.Script
	if !w.take(e) {
		return
	}
	defer w.give(e)
	w.digest(e, f, &out, !plain)
	if w.settle(e, out) && plain && out.State == OK {
		w.cfg.Cache.put(e.key, out.SHA256)
	}
}

// note says which file it is, for an outcome that comes from a timer.
func (w *Watch) note(e *entry, f File, system bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-e.done:
	default:
		e.File, e.system = f, system
	}
}

// take waits for one of the slots. It gives up with the entry, and when the
// run's hashes have read their fill or all hang.
func (w *Watch) take(e *entry) bool {
	if w.spent.Load()+e.key.Size > w.cfg.Limits.Total || w.allHang() {
		w.settle(e, File{State: Limit})
		return false
	}
	select {
	case w.slots <- struct{}{}:
	case <-e.done: // by its timer
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.reading = true
	return true
}

func (w *Watch) give(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.reading = false; e.hangs {
		w.hung--
	}
	<-w.slots
}

func (w *Watch) allHang() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung >= cap(w.slots)
}

// expire settles an entry that took too long.
func (w *Watch) expire(e *entry) {
	if !w.settle(e, File{State: Limit}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.reading {
		e.hangs = true
		w.hung++
	}
}

// digest reads the whole file.
func (w *Watch) digest(e *entry, f *os.File, out *File, keep bool) {
	awaitTick(e.key.Ctime)
	written := w.hasWriter(int(f.Fd()), e.key.Version)
	sum, content, err := w.read(f, e.key.Size, keep && e.key.Size <= w.cfg.Limits.Object)
	var now key
	if err == nil {
		now, _, err = keyOf(int(f.Fd()), 0)
	}
	switch {
	case err != nil:
		out.State = Error
		return
	case now != e.key || written:
		out.State = Raced
	case now.dev == memfdDev():
		out.State, out.Gone = Memfd, false // it never had a name
		out.Path = strings.TrimPrefix(out.Path, "/")
	default:
		out.State = OK
	}
	out.SHA256 = sum
	if keep && w.store != nil {
		out.Stored = w.store.put(sum, content, e.key.Size)
	}
	w.count(func(c *Counts) { c.Hashed++ })
}

// buffers are what files are read into; one holds a content that may be stored.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// read returns the digest of size bytes, and the bytes too when they are to be kept.
func (w *Watch) read(f *os.File, size int64, keep bool) (string, []byte, error) {
	h := sha256.New()
	var kept bytes.Buffer
	var to io.Writer = h
	if keep {
		kept.Grow(int(size))
		to = io.MultiWriter(h, &kept)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// One byte more than expected shows that the file has grown, which its
	// version shows too.
	n, err := io.CopyBuffer(onlyWriter{to}, onlyReader{io.NewSectionReader(f, 0, size+1)}, *buf)
	w.spent.Add(n)
	return hex.EncodeToString(h.Sum(nil)), kept.Bytes(), err
}

// onlyReader and onlyWriter hide the ways around the buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// awaitTick waits until a later change of the file would show in its ctime: that
// is taken from a clock that stands still for a tick (4 ms at 250 Hz), so what was
// written in this tick can be written again without a trace. From Linux 6.13 on,
// times that somebody has asked for are exact, and this waits in vain.
func awaitTick(ctime int64) {
	const longest = 10 * time.Millisecond // a tick at 100 Hz
	for range 2 * longest / time.Millisecond {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
			return
		}
		ahead := time.Duration(ctime - now.Nano())
		if ahead < 0 || ahead > longest { // the past, or a clock that was set back: any change will differ
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// isScript reports whether a file begins with #!.
func isScript(fd int) bool {
	var b [2]byte
	n, err := unix.Pread(fd, b[:], 0)
	return err == nil && n == 2 && b == [2]byte{'#', '!'}
}

// memfdDev is the device of the kernel's own tmpfs, which holds what memfd_create makes.
var memfdDev = sync.OnceValue(func() uint64 {
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		return 0 // then nothing that was made so can be executed either
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	return st.Dev
})
