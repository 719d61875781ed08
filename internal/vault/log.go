package vault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace/seal"
)

// appender is one addition to the log, under its lock.
type appender struct {
	dir     *os.File
	entries *os.File
	hashes  *os.File
	head    seal.LogHead
}

// Placed is where an entry came to lie.
type Placed struct {
	seal.Place
	Head []byte // signed, for anchors
}

// Append adds an entry to the log and signs the new head; without a key it
// leaves the head to the next one who has one. It waits for other
// writers, each of which takes a fraction of a millisecond. With durable, the
// entry is on disk when it returns; else it, and what others added since the
// last durable one, may be lost when the machine loses power, which the next
// Append finds and says in the log itself.
func (v *Vault) Append(host *seal.Key, e *seal.LogEntry, durable bool) (Placed, error) {
	unlock, err := lock(v.log)
	if err != nil {
		return Placed{}, err
	}
	defer unlock()
	a := &appender{dir: v.log}
	if err := a.open(); err != nil {
		return Placed{}, err
	}
	defer a.close()
	if e.Time == "" {
		e.Time = seal.Stamp(time.Now())
	}
	if err := a.settle(); err != nil {
		return Placed{}, err
	}
	line, err := e.Line()
	if err != nil {
		return Placed{}, err
	}
	index := a.head.Size
	if err := a.add(line); err != nil {
		return Placed{}, err
	}
	if a.head.Root, err = a.root(); err != nil {
		return Placed{}, err
	}
	var note []byte
	if host != nil {
		note, err = a.sign(host, durable)
	}
	return Placed{seal.Place{Index: index, Size: a.head.Size, Root: a.head.Root.String()}, note}, err
}

func (a *appender) open() (err error) {
	if a.entries, err = openIn(a.dir, "entries", unix.O_RDWR|unix.O_CREAT); err != nil {
		return err
	}
	if a.hashes, err = openIn(a.dir, "hashes", unix.O_RDWR|unix.O_CREAT); err != nil {
		return errors.Join(err, a.entries.Close())
	}
	return nil
}

func (a *appender) close() {
	a.entries.Close()
	a.hashes.Close()
}

// settle reads the head and brings the log to a state that can be added to:
// whole entries behind the head, by a writer that was killed, are taken in; a
// torn one is cut off; and a log that does not match its head says so from then on.
func (a *appender) settle() error {
	note, err := readHead(a.dir)
	if err != nil {
		return err
	}
	st, err := a.entries.Stat()
	if err != nil {
		return err
	}
	if len(note) == 0 { // nobody has signed yet
		return a.adopt(st.Size())
	}
	// Whoever could have put another head here could read the key, too: the
	// signature is for readers.
	if a.head, err = seal.PeekLogHead(note); err != nil {
		return a.salvage(note, fmt.Sprintf("the head could not be read: %v", err))
	}
	root, err := a.root()
	switch {
	case st.Size() < a.head.Bytes:
		return a.salvage(note, fmt.Sprintf("%d entries in %d bytes were signed, the file has %d bytes", a.head.Size, a.head.Bytes, st.Size()))
	case err != nil || root != a.head.Root:
		return a.salvage(note, "the stored hashes did not match the signed head")
	}
	return a.adopt(st.Size())
}

// adopt takes in the whole lines between the head and the end of the file.
func (a *appender) adopt(size int64) error {
	if size == a.head.Bytes {
		return nil
	}
	tail := make([]byte, size-a.head.Bytes)
	if _, err := a.entries.ReadAt(tail, a.head.Bytes); err != nil {
		return err
	}
	for line := range bytes.Lines(tail) {
		if _, err := seal.ParseLogEntry(line); err != nil || !bytes.HasSuffix(line, []byte{'\n'}) {
			break
		}
		if err := a.hash(line); err != nil {
			return err
		}
	}
	return a.entries.Truncate(a.head.Bytes)
}

// salvage makes the head anew from the entries that are there, keeps the old
// one beside it, and notes in the log that it was damaged before.
func (a *appender) salvage(note []byte, why string) error {
	if len(note) > 0 {
		if err := replace(a.dir, "head.damaged-"+strconv.FormatInt(time.Now().Unix(), 10), note, true); err != nil {
			return err
		}
	}
	a.head = seal.LogHead{}
	st, err := a.entries.Stat()
	if err == nil {
		err = a.adopt(st.Size())
	}
	if err != nil {
		return err
	}
	line, err := (&seal.LogEntry{Kind: seal.LogDamaged, Time: seal.Stamp(time.Now()), Why: why}).Line()
	if err != nil {
		return err
	}
	return a.add(line)
}

// add writes an entry at the end.
func (a *appender) add(line []byte) error {
	if _, err := a.entries.WriteAt(line, a.head.Bytes); err != nil {
		return fmt.Errorf("the host's log: %w", err)
	}
	return a.hash(line)
}

// hash adds the leaf of an entry that is in the file to the tree.
func (a *appender) hash(line []byte) error {
	list, err := tlog.StoredHashesForRecordHash(a.head.Size, tlog.RecordHash(line), a)
	if err != nil {
		return err
	}
	var b []byte
	for _, h := range list {
		b = fmt.Appendln(b, h) // in base64
	}
	if _, err := a.hashes.WriteAt(b, tlog.StoredHashIndex(0, a.head.Size)*hashLine); err != nil {
		return fmt.Errorf("the host's log: %w", err)
	}
	a.head.Size++
	a.head.Bytes += int64(len(line))
	return nil
}

// hashLine is the length of a stored hash: base64 and a newline. Whatever reads
// the log's files is shown text, never a byte that a terminal acts on.
const hashLine = (tlog.HashSize+2)/3*4 + 1

// ReadHashes implements tlog.HashReader on the file of hashes.
func (a *appender) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	line := make([]byte, hashLine)
	for i, at := range indexes {
		_, err := a.hashes.ReadAt(line, at*hashLine)
		if err == nil {
			out[i], err = tlog.ParseHash(string(line[:hashLine-1]))
		}
		if err != nil {
			return nil, fmt.Errorf("the host's log: hash %d: %w", at, err)
		}
	}
	return out, nil
}

func (a *appender) root() (tlog.Hash, error) { return tlog.TreeHash(a.head.Size, a) }

// sign replaces the head. The entries are on disk before it when durable.
func (a *appender) sign(host *seal.Key, durable bool) ([]byte, error) {
	a.head.Time = time.Now()
	note, err := a.head.Sign(host)
	if err == nil && durable {
		err = errors.Join(a.entries.Sync(), a.hashes.Sync())
	}
	if err == nil {
		err = a.writeHead(note, durable)
	}
	return note, err
}

// headSize is what the head is filled up to, with newlines: less than the
// sector that a disk writes whole. It is written in place, because a file that
// is replaced by rename(2) costs as much as the rest of Append.
const headSize = 512

func (a *appender) writeHead(note []byte, durable bool) error {
	for len(note) < headSize {
		note = append(note, '\n')
	}
	f, err := openIn(a.dir, "head", unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(note, 0); err == nil && durable {
		err = errors.Join(f.Sync(), a.dir.Sync())
	}
	return errors.Join(err, f.Close())
}

// readHead returns the signed head without what fills it up, or nothing.
func readHead(dir *os.File) ([]byte, error) {
	b, err := readIn(dir, "head")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return seal.TrimHead(b), err
}

// Log reads the whole log and checks it. A log that nobody has written to is
// empty.
func (v *Vault) Log(hosts seal.Keys) (*seal.Log, error) {
	s := v.shown
	if s == nil {
		var err error
		if s, err = v.Snapshot(); err != nil {
			return nil, err
		}
		if s.Entries != nil {
			defer s.Entries.Close()
		}
	}
	var in io.Reader = bytes.NewReader(nil)
	if s.Entries != nil {
		in = io.NewSectionReader(s.Entries, 0, s.Size)
	}
	return seal.ReadLog(in, []byte(s.Head), hosts)
}

// Snapshot takes one; its entries stay open until somebody closes them.
func (v *Vault) Snapshot() (*Snapshot, error) {
	unlock, err := lock(v.log)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &Snapshot{}
	if s.Public, err = v.PublicText(); err != nil {
		return nil, err
	}
	head, err := readHead(v.log)
	if err != nil {
		return nil, err
	}
	s.Head = string(head)
	f, err := openIn(v.log, "entries", unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.Entries, s.Size = f, st.Size()
	return s, nil
}
