package trace

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrClosed is returned by Append after Close.
var ErrClosed = errors.New("trace: the record is closed")

// Options configure a Writer.
type Options struct {
	// MaxBytes bounds the file; 0 means no bound. From half of it on, files that
	// are only read are counted and not named. Records of bulk kinds may fill
	// 6/8 of it and denials 7/8, so that a flood of either cannot push out the
	// exec that it hides; a last part is kept back for what Close writes. What
	// does not fit is counted.
	MaxBytes int64
	// Mono and Wall are the same instant on CLOCK_BOOTTIME (ns) and on the wall
	// clock. Wall times of records are Mono plus their difference, so that a
	// clock set during the run does not bend the record.
	Mono uint64
	Wall time.Time
	// BootID is the kernel's boot id; its first 8 characters are in every
	// process id.
	BootID string
	// Durable makes Close wait until the record is on disk.
	Durable bool
	// Settled, if set, is given every record that reached the destination and
	// will stay, as whole lines in their order, before Close or Settle returns.
	// It must not keep them or call the Writer.
	Settled func(lines []byte)
}

const (
	flushAt  = 64 << 10 // bytes buffered before a write
	tailRoom = 64 << 10 // bytes of MaxBytes kept back for loss records and the summary
	tailKept = 16 << 10 // bytes of written records that Close may give up for them
)

// Writer appends events to a record. It is safe for concurrent use.
//
// The protocol with the disk: whole records are collected in one buffer and
// written together. When a write fails, the record is cut back to its last whole
// line if the destination can Truncate, the error sticks, and every later event is
// only counted. Close tries once more to write what was lost and the summary; if
// there is still no room, the last records make room: a record that says what
// it lacks is worth more than a few lines more of one that does not.
type Writer struct {
	mu     sync.Mutex
	w      io.Writer
	o      Options
	offset int64 // ns to add to Mono
	boot   string
	line   line // pending whole records

	seq      uint64 // last one assigned
	written  int64  // bytes that reached w
	durable  uint64 // last seq that reached w
	tail     []byte // copy of the last whole records that reached w, up to tailKept
	err      error  // first failure of w
	closed   bool
	sealed   bool     // Close wrote the summary
	findings []string // of the summary
	degraded []string // of the start

	room     int64 // bytes for records, without what Close needs; 0: no bound
	counts   map[Kind]uint64
	losses   []Loss // by class and cause, to be written by Close
	reported uint64 // records lost according to loss events that were appended
	told     []Loss // these, summed up by class and cause
	numbers  ledger // of the records that are kept
	crowd    crowd  // opens that are counted by process
}

// NewWriter starts a record at the beginning of w. Where w has Truncate and Sync
// (as *os.File has), they are used; a file should be opened with O_APPEND.
func NewWriter(w io.Writer, o Options) *Writer {
	t := &Writer{w: w, o: o, counts: make(map[Kind]uint64, 32)}
	t.offset = o.Wall.UnixNano() - int64(o.Mono)
	t.boot = o.BootID[:min(8, len(o.BootID))]
	t.line.b = make([]byte, 0, flushAt+8<<10)
	if o.MaxBytes > 0 {
		t.room = max(o.MaxBytes-min(tailRoom, o.MaxBytes/4), 1)
	}
	return t
}

// Append writes e at the end of the record and assigns its Seq, Wall and, where
// empty, the boot part of its ids. The error is that of the destination and
// sticks; the event is then counted as lost. A record over MaxBytes is counted
// as lost without an error.
func (t *Writer) Append(e *Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if t.err != nil {
		t.drop(e, "disk", 0)
		return t.err
	}
	if t.crowded(e) {
		return nil
	}
	if e.Kind == KindExit {
		t.leaveCrowd(&e.Proc)
	}
	before := len(t.line.b)
	t.encode(e)
	size := len(t.line.b) - before
	if cause := t.refuses(e, size); cause != "" {
		t.line.b = t.line.b[:before]
		t.seq--
		e.Seq = 0
		t.drop(e, cause, size)
		return nil
	}
	t.counts[e.Kind] += e.Times()
	t.numbers.line(e)
	if e.Kind == KindStart {
		t.degraded = e.Degraded
	}
	if e.Kind == KindLoss {
		t.reported += e.Loss.Count
		t.told = addLoss(t.told, e.Loss)
	}
	if len(t.line.b) >= flushAt {
		return t.flush()
	}
	return nil
}

func (t *Writer) encode(e *Event) {
	t.seq++
	e.Seq, e.Wall = t.seq, int64(e.Mono)+t.offset
	for _, p := range [...]*Proc{&e.Proc, &e.Child, &e.Target} {
		if p.Boot == "" {
			p.Boot = t.boot
		}
	}
	t.line.appendEvent(e)
}

// refuses says why a record that was just encoded cannot be kept, or "".
func (t *Writer) refuses(e *Event, size int) string {
	if size > MaxLine {
		return "too_long"
	}
	eighths := int64(8)
	switch {
	case e.Verdict == VerdictDeny:
		eighths = 7
	case e.Kind.bulk():
		eighths = 6
	}
	if t.room != 0 && t.written+int64(len(t.line.b)) > min(t.room/8*eighths, t.room-t.crowd.reserve) {
		return "max_bytes"
	}
	return ""
}

// Seq is the number of the last record that was appended.
func (t *Writer) Seq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

// Fold counts a record of the kernel's on cpu that has no line of its own: what
// it says is in the line of another, or was said before.
func (t *Writer) Fold(cpu uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers.at(cpu).folded++
}

// Lost returns how many records are known to be missing so far.
func (t *Writer) Lost() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost()
}

// drop counts an event that is not kept.
func (t *Writer) drop(e *Event, cause string, size int) {
	if e.Kind == KindLoss { // what it says stays true
		t.lose(e.Loss.Class, e.Loss.Cause, e.Loss.Count, e.Loss.Bytes)
		if e.Loss.numbered() {
			t.numbers.at(uint32(e.Loss.CPU)).dropped += e.Loss.Count
		}
	}
	if e.CPUSeq != 0 {
		t.numbers.at(e.CPU).dropped++
	}
	t.lose(string(e.Kind), cause, e.Times(), uint64(size))
}

// lose counts records that will never be in the file.
func (t *Writer) lose(class, cause string, n, size uint64) {
	for i := range t.losses {
		if l := &t.losses[i]; l.Class == class && l.Cause == cause {
			l.Count += n
			l.Bytes += size
			return
		}
	}
	t.losses = append(t.losses, Loss{Class: class, Cause: cause, Count: n, Bytes: size, AfterSeq: t.seq, CPU: -1})
}

// Flush hands buffered records to the destination.
func (t *Writer) Flush() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flush()
}

// Settle hands buffered records to the destination, and everything that is there
// to Options.Settled: none of it will be taken back.
func (t *Writer) Settle() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.flush()
	t.settle(t.tail)
	t.tail = t.tail[:0]
	return err
}

func (t *Writer) flush() error {
	if t.err != nil || len(t.line.b) == 0 {
		return t.err
	}
	n, err := t.w.Write(t.line.b)
	if err == nil && n < len(t.line.b) {
		err = io.ErrShortWrite
	}
	if err == nil {
		t.reached(t.line.b)
		t.durable = t.seq
		t.line.b = t.line.b[:0]
		return nil
	}
	t.cutBack(max(n, 0))
	return t.fail(err)
}

func (t *Writer) fail(err error) error {
	if t.err == nil {
		t.err = fmt.Errorf("trace: the record is incomplete: %w", err)
	}
	return t.err
}

// lost returns how many records are known to be missing: those of the loss
// events that were appended, and those that this Writer could not keep.
func (t *Writer) lost() uint64 {
	n := t.reported
	for _, l := range t.losses {
		n += l.Count
	}
	return n
}
