package supervisor

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// What dispatch keeps in the state directory, below "dispatch":
//
//	approved     files of actions that were approved: a JSON line each, the last of a path counts
//	key          32 bytes; digests of credentials' names are keyed by it
//	rate-ACTION  when its requests of the last minute were made: nanoseconds since 1970, 8 bytes each

// dispatchDir opens the directory, which it makes.
func dispatchDir(s *runs.State) (*os.File, error) {
	const name = "dispatch"
	if err := unix.Mkdirat(int(s.Dir().Fd()), name, 0o700); err != nil && err != unix.EEXIST {
		return nil, &os.PathError{Op: "mkdir", Path: s.Path() + "/" + name, Err: err}
	}
	return openBelow(s.Dir(), name, unix.O_RDONLY|unix.O_DIRECTORY)
}

func openBelow(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	path := dir.Name() + "/" + name
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// locked opens a file of the directory for reading and writing, for this
// process alone until it is closed (flock(2)).
func locked(s *runs.State, name string, use func(f *os.File) error) error {
	dir, err := dispatchDir(s)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := openBelow(dir, name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err == nil {
		err = use(f)
	}
	return errors.Join(err, f.Close())
}

// secretKey reads the key, which it makes when there is none.
func secretKey(dir *os.File) ([]byte, error) {
	for {
		f, err := openBelow(dir, "key", unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			if err = makeKey(dir); err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		key, err := io.ReadAll(io.LimitReader(f, 64))
		if err = errors.Join(err, f.Close()); err == nil && len(key) != 32 {
			err = fmt.Errorf("%s/key has %d bytes, not 32", dir.Name(), len(key))
		}
		return key, err
	}
}

// makeKey makes the file complete: it gets its name when it has its bytes.
func makeKey(dir *os.File) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("open O_TMPFILE", err)
	}
	f := os.NewFile(uintptr(fd), "key")
	if _, err = f.Write(key); err == nil {
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), int(dir.Fd()), "key", unix.AT_SYMLINK_FOLLOW)
	}
	return errors.Join(err, f.Close())
}

// takeRate takes n requests from what an action may make in a minute.
func takeRate(s *runs.State, name string, n, most int64) error {
	return locked(s, "rate-"+name, func(f *os.File) error {
		b, err := io.ReadAll(io.LimitReader(f, 8*(most+1)))
		if err != nil {
			return err
		}
		now, kept := time.Now(), make([]byte, 0, len(b)+int(8*n))
		var oldest time.Duration // until it is a minute old
		for ; len(b) >= 8; b = b[8:] {
			left := time.Minute - now.Sub(time.Unix(0, int64(binary.LittleEndian.Uint64(b))))
			if left <= 0 || left > time.Minute { // past, or of a clock that was set back
				continue
			}
			if len(kept) == 0 {
				oldest = left
			}
			kept = append(kept, b[:8]...)
		}
		if used := int64(len(kept) / 8); used+n > most {
			return fmt.Errorf("%d requests in the last minute, and limits.per_minute is %d; the oldest is a minute old in %v", used, most, oldest.Round(time.Second))
		}
		for range n {
			kept = binary.LittleEndian.AppendUint64(kept, uint64(now.UnixNano()))
		}
		if _, err := f.WriteAt(kept, 0); err != nil { // before it is cut: who is killed here, or finds the disk full, has not forgotten
			return err
		}
		return f.Truncate(int64(len(kept)))
	})
}

// Approval is a file of actions that somebody has looked at.
type Approval struct {
	Path   string    `json:"path"` // absolute
	SHA256 string    `json:"sha256"`
	Time   time.Time `json:"time"`
}

// approve notes that a file is approved with this digest.
func approve(s *runs.State, a Approval) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return locked(s, "approved", func(f *os.File) error {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		last := []byte{'\n'}
		if _, err := f.ReadAt(last, max(end-1, 0)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last[0] != '\n' { // of a writer that was killed, or had no room: this one begins a line of its own
			line = append([]byte{'\n'}, line...)
		}
		_, err = f.Write(append(line, '\n'))
		return err
	})
}

// approved returns the last approval of a path.
func approved(s *runs.State, path string) (a Approval, ok bool, err error) {
	err = locked(s, "approved", func(f *os.File) error {
		b, err := io.ReadAll(io.LimitReader(f, 4<<20))
		for line := range bytes.Lines(b) {
			var got Approval
			if json.Unmarshal(line, &got) == nil && got.Path == path {
				a, ok = got, true
			}
		}
		return err
	})
	return a, ok, err
}
