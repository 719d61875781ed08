package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Size returns the bytes of a file of the run.
func (d *RunDir) Size(name string) (int64, error) {
	f, err := d.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Append opens a file of the run to add to it.
func (d *RunDir) Append(name string) (*os.File, error) {
	if err := fileName(name); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(d.dir.Fd()), name, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: open %s of %s: %w", name, d.id, err)
	}
	return os.NewFile(uintptr(fd), d.Path()+"/"+name), nil
}

// Names lists a directory of the run, without hidden files; fs.ErrNotExist when
// the run has none of that name.
func (d *RunDir) Names(name string) ([]string, error) {
	sub, err := d.sub(name)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	all, err := sub.dir.Readdirnames(-1)
	var names []string
	for _, n := range all {
		if !strings.HasPrefix(n, ".") {
			names = append(names, n)
		}
	}
	return names, err
}

// sub opens a directory of the run as if it were one itself.
func (d *RunDir) sub(name string) (*RunDir, error) {
	dir, err := d.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &RunDir{id: d.id, owner: d.owner, dir: dir}, nil
}

// FS shows the run's regular files, and those of directories in it, to readers
// that work on any system. Links are not followed.
func (d *RunDir) FS() fs.FS { return files{d} }

type files struct{ d *RunDir }

// Open implements fs.FS.
func (f files) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	dir, base := path.Split(name)
	if dir == "" {
		return f.d.Open(base)
	}
	sub, err := f.d.sub(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return nil, err
	}
	file, err := sub.Open(base)
	return file, errors.Join(err, sub.Close())
}
