package cgroup

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The files are opened by plain system calls: they are many, each is read or
// written once, and a file of package os would be offered to the poller first.

// write sets a file of the cgroup dir. It never creates: where the kernel has
// no such file, creating one fails with EACCES and not with ENOENT.
func write(dir, name, value string) error {
	fd, err := open(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	n, err := unix.Write(fd, []byte(value))
	for err == unix.EINTR {
		n, err = unix.Write(fd, []byte(value))
	}
	if err == nil && n < len(value) {
		err = io.ErrShortWrite
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("%q: %w", value, &os.PathError{Op: "write", Path: filepath.Join(dir, name), Err: err})
	}
	return nil
}

func open(dir, name string, flags int) (int, error) {
	path := filepath.Join(dir, name)
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// maxFile bounds what is read of a file, which the kernel keeps within a page.
const maxFile = 64 << 10

// read returns a file of the cgroup dir.
func read(dir, name string) ([]byte, error) {
	fd, err := open(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var b []byte
	for buf := make([]byte, 4096); len(b) < maxFile; {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return b, &os.PathError{Op: "read", Path: filepath.Join(dir, name), Err: err}
		}
		if n == 0 {
			break
		}
		b = append(b, buf[:n]...)
	}
	return b, nil
}

func words(dir, name string) ([]string, error) {
	b, err := read(dir, name)
	return strings.Fields(string(b)), err
}

func number(dir, name string) (int64, error) {
	b, err := read(dir, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
}

// keyed returns values of a flat keyed file ("KEY VALUE" a line), in the order of keys.
func keyed(dir, name string, keys ...string) ([]int64, error) {
	b, err := read(dir, name)
	if err != nil {
		return nil, err
	}
	values := make([]int64, len(keys))
	for i, key := range keys {
		v, err := lookup(b, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		values[i] = v
	}
	return values, nil
}

func lookup(b []byte, key string) (int64, error) {
	for line := range bytes.Lines(b) {
		if k, v, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok && string(k) == key {
			return strconv.ParseInt(string(v), 10, 64)
		}
	}
	return 0, fmt.Errorf("no key %q", key)
}
