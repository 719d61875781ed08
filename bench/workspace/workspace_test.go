package main

import (
	"io/fs"
	"path/filepath"
	"testing"
	"time"
)

func TestGrow(t *testing.T) {
	dir := t.TempDir()
	if err := grow(dir, 250); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	})
	if n != 250 || err != nil {
		t.Errorf("%d files, %v", n, err)
	}
	for _, kind := range []string{"read", "stat", "write"} {
		if err := doWork(kind, dir, 250); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestMeasureInterleaves(t *testing.T) {
	var order string
	one := func(name string) *row {
		return &row{name: name, once: func() (time.Duration, error) { order += name; return time.Millisecond, nil }}
	}
	if err := measure("x", 2, []*row{one("a"), one("b")}); err != nil || order != "abbaab" {
		t.Errorf("%q, %v", order, err)
	}
}
