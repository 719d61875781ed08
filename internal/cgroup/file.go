package cgroup

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// write sets a file of the cgroup dir. It never creates: where the kernel has
// no such file, creating one fails with EACCES and not with ENOENT.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	return nil
}

// read returns a file of the cgroup dir, which the kernel keeps within a page.
func read(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
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
