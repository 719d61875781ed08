package main

import (
	"errors"
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
	start := []*row{
		{wall: []time.Duration{10 * time.Millisecond}, cpu: []time.Duration{10 * time.Millisecond}},
		{wall: []time.Duration{15 * time.Millisecond}, cpu: []time.Duration{15 * time.Millisecond}},
	}
	if err := table(&out, rows, start); err != nil {
		t.Fatal(err)
	}
	if last := strings.Fields(strings.Split(out.String(), "\n")[2]); strings.Join(last, " ") != "other 30 1.50 1.50 25 2.50 -" {
		t.Errorf("last line %q", last)
	}
}

func TestCallTable(t *testing.T) {
	callers := []*caller{{name: "a"}, {name: "b"}}
	for i, c := range callers {
		round := make([]time.Duration, len(calls))
		for k := range round {
			round[k] = time.Duration(100 * (i + 1))
		}
		c.times = [][]time.Duration{round}
	}
	var out strings.Builder
	if err := callTable(&out, callers); err != nil {
		t.Fatal(err)
	}
	if line := strings.Fields(strings.Split(out.String(), "\n")[1]); strings.Join(line, " ") != "getppid 100 1.00 200 2.00" {
		t.Errorf("first line %q", line)
	}
}

// The process that is measured prints a time for each call.
func TestRepeat(t *testing.T) {
	dir := t.TempDir()
	if _, err := stage(dir); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	var out strings.Builder
	if err := repeat(&out); err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(out.String())); n != len(calls) {
		t.Errorf("%d times for %d calls: %q", n, len(calls), out.String())
	}
}

// Runs are made by links; what was made before stays.
func TestMultiply(t *testing.T) {
	run := filepath.Join(t.TempDir(), "20261129-163624-7f3k2q")
	if err := errors.Join(os.MkdirAll(filepath.Join(run, "code"), 0o755), os.WriteFile(filepath.Join(run, "trace.jsonl"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{3, 5} {
		if err := multiply(run, n); err != nil {
			t.Fatal(err)
		}
		if got, err := filepath.Glob(filepath.Dir(run) + "/*/trace.jsonl"); err != nil || len(got) != n {
			t.Errorf("%d runs, want %d; %v", len(got), n, err)
		}
	}
}

// Rounds are interleaved, the first row warms up, and a command runs in its directory.
func TestMeasure(t *testing.T) {
	work := t.TempDir()
	shell := []string{"/bin/sh", "-ec", `echo "$0" >>log; pwd >dir`}
	rows := []*row{{name: "a", work: work, argv: shell}, {name: "b", work: work, argv: append([]string{"/usr/bin/env"}, shell...)}}
	if err := measure(rows, 4, 0); err != nil { // no time at all: as few rounds as there may be
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(work, "log"))
	dir, err2 := os.ReadFile(filepath.Join(work, "dir"))
	if err != nil || err2 != nil || strings.Count(string(log), "\n") != 1+2*minRounds || string(dir) != work+"\n" {
		t.Errorf("%q in %q, %v %v", log, dir, err, err2)
	}
	if len(rows[0].wall) != minRounds || len(rows[1].cpu) != minRounds {
		t.Errorf("%d and %d rounds", len(rows[0].wall), len(rows[1].cpu))
	}
	bad := []*row{{argv: []string{"/bin/sh", "-c", "exit 3"}}}
	if err := measure(bad, 1, time.Hour); err == nil || !strings.Contains(err.Error(), "0x300") {
		t.Errorf("exit status 3 gave %v", err)
	}
}

// A load that writes leaves its directory as it was; else rounds would differ.
func TestLoadsCleanUp(t *testing.T) {
	for _, l := range loads[:4] {
		if name := l.missing(); name != "" {
			t.Logf("%s: no %s here", l.name, name)
			continue
		}
		work := t.TempDir()
		if _, _, err := (&row{work: work, argv: []string{"/bin/sh", "-ec", l.script}}).once(); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		left, err := filepath.Glob(filepath.Join(work, "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("%s leaves %q, %v", l.name, left, err)
		}
	}
}
