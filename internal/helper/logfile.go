package helper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The log's file is put aside as PATH.1 when it is full, PATH.1 as PATH.2, and so on; the
// oldest goes. Whoever finds it full does that. Others may move it as well, such as
// logrotate(8): nobody has to be told.

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// append writes a line to the file that is at the path. Its lock, which writers share, sees
// to it that the file is not put aside, counted or removed meanwhile.
func (l *Log) append(line []byte) error {
	var full error // the file grows: better than not to say
	for {
		if err := unix.Flock(int(l.file.Fd()), unix.LOCK_SH); err != nil {
			return os.NewSyscallError("flock", err)
		}
		there := l.current()
		if there && (full != nil || !l.full(len(line))) {
			_, err := l.file.Write(line)
			return errors.Join(err, full, unix.Flock(int(l.file.Fd()), unix.LOCK_UN))
		}
		if there {
			full = l.putAside(len(line))
			continue
		}
		if err := l.reopen(); err != nil {
			return err
		}
	}
}

// current reports whether the file is the one at the path.
func (l *Log) current() bool {
	ours, err := l.file.Stat()
	there, terr := os.Lstat(l.path)
	return err == nil && terr == nil && os.SameFile(ours, there)
}

func (l *Log) full(n int) bool {
	st, err := l.file.Stat()
	return err == nil && st.Size() > 0 && st.Size()+int64(n) > l.size
}

// reopen follows the path; a lock ends with the file.
func (l *Log) reopen() error {
	f, err := openLog(l.path)
	if err != nil {
		return err
	}
	err = l.file.Close()
	l.file = f
	return err
}

// putAside makes room for n bytes, unless another process is faster. Its lock waits for
// those who write.
func (l *Log) putAside(n int) error {
	if err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	if !l.current() || !l.full(n) {
		return nil
	}
	fresh, err := l.rotate()
	if err != nil {
		return fmt.Errorf("putting %s aside: %w", l.path, err)
	}
	err = l.file.Close()
	l.file = fresh
	return err
}

// rotate moves the files, and begins a new one that says what is gone.
func (l *Log) rotate() (*os.File, error) {
	aside := func(n int) string { return l.path + "." + strconv.Itoa(n) }
	dropped, _, err := begins(l.file)
	if err != nil {
		return nil, err
	}
	lost, err := countLines(aside(l.keep))
	if err != nil {
		return nil, err
	}
	first, err := Entry{Outcome: "rotated", Dropped: dropped + lost}.line()
	if err != nil {
		return nil, err
	}
	// It is complete before it has the name: no line comes before its first.
	fresh, err := os.OpenFile(l.path+".new", os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = fresh.Write(first); err == nil {
		err = l.shift(aside)
	}
	if err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	return fresh, nil
}

// shift gives each file its next name. Who writes meanwhile finds the old or the new one.
func (l *Log) shift(aside func(int) string) error {
	for n := l.keep; n > 1; n-- {
		if err := os.Rename(aside(n-1), aside(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.Remove(aside(1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.Link(l.path, aside(1)), os.Rename(l.path+".new", l.path))
}

// begins reads whether a file begins with a line of rotate's, and what it tells of those
// before.
func begins(f *os.File) (dropped int64, rotated bool, err error) {
	b := make([]byte, 1024)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return 0, false, err
	}
	line, _, _ := bytes.Cut(b[:n], []byte("\n"))
	var e Entry
	if json.Unmarshal(line, &e) != nil || e.Outcome != "rotated" {
		return 0, false, nil
	}
	return e.Dropped, true, nil
}

// countLines counts those of a file, but for rotate's; of one that is not there, none.
func countLines(path string) (n int64, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	_, rotated, err := begins(f)
	if rotated {
		n--
	}
	buf := make([]byte, 1<<16)
	for err == nil {
		var size int
		size, err = f.Read(buf)
		n += int64(bytes.Count(buf[:size], []byte("\n")))
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}
