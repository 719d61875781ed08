package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	if got := median([]time.Duration{9, 1, 5, 3}); got != 3 {
		t.Errorf("median is %d", got)
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	rows := []*row{
		{name: "native", wall: []time.Duration{20 * time.Millisecond}, cpu: []time.Duration{10 * time.Millisecond}},
		{name: "other", wall: []time.Duration{30 * time.Millisecond}, cpu: []time.Duration{25 * time.Millisecond}},
	}
	if err := table(&out, rows); err != nil {
		t.Fatal(err)
	}
	if last := strings.Fields(strings.Split(out.String(), "\n")[2]); strings.Join(last, " ") != "other 30 1.50 25 2.50" {
		t.Errorf("last line %q", last)
	}
}

// Rounds are interleaved, the first warms up, and a script runs in its directory.
func TestMeasure(t *testing.T) {
	work := t.TempDir()
	l := load{script: `echo "$0" >>log; pwd >dir`}
	rows := []*row{{name: "a", work: work}, {name: "b", work: work, prefix: []string{"/usr/bin/env"}}}
	if err := l.measure(rows, 2); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(work, "log"))
	dir, err2 := os.ReadFile(filepath.Join(work, "dir"))
	if err != nil || err2 != nil || strings.Count(string(log), "\n") != 6 || string(dir) != work+"\n" {
		t.Errorf("%q in %q, %v %v", log, dir, err, err2)
	}
	if len(rows[0].wall) != 2 || len(rows[1].cpu) != 2 {
		t.Errorf("%d and %d rounds", len(rows[0].wall), len(rows[1].cpu))
	}
	if err := (&load{script: "exit 3"}).measure(rows, 1); err == nil || !strings.Contains(err.Error(), "0x300") {
		t.Errorf("exit status 3 gave %v", err)
	}
}

// A load that writes leaves its directory as it was; else rounds would differ.
func TestLoadsCleanUp(t *testing.T) {
	for _, l := range loads[:2] {
		if name := l.missing(); name != "" {
			t.Logf("%s: no %s here", l.name, name)
			continue
		}
		work := t.TempDir()
		if _, _, err := (&row{work: work}).once(l.script); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		left, err := filepath.Glob(filepath.Join(work, "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("%s leaves %q, %v", l.name, left, err)
		}
	}
}
