package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	times := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.25: 2, 0.5: 3, 1: 5} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile(%v) = %d, want %d", q, got, want)
		}
	}
	if times[0] != 5 {
		t.Error("quantile sorted its argument")
	}
}

func TestMeasureInterleaves(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	script := func(word string) []string { return []string{"/bin/sh", "-c", "printf " + word + " >>" + log} }
	rows := []*row{{name: "a", argv: script("a")}, {name: "b", argv: script("b")}}
	if err := measure(rows, 2, 0); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(log)
	if err != nil || string(got) != "abbaab" {
		t.Errorf("ran in the order %q, %v; want one warm-up round, then rounds that begin with another row each", got, err)
	}
	if len(rows[0].times) != 2 || len(rows[1].times) != 2 {
		t.Errorf("%d and %d times, want 2 each", len(rows[0].times), len(rows[1].times))
	}
}

func TestOnceReportsFailure(t *testing.T) {
	if _, err := once(&row{argv: []string{"/bin/sh", "-c", "exit 3"}}, os.Stderr); err == nil || !strings.Contains(err.Error(), "0x300") {
		t.Errorf("exit status 3 gave %v", err)
	}
	if _, err := once(&row{argv: []string{"/nonexistent"}}, os.Stderr); err == nil {
		t.Error("a missing program gave no error")
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	rows := []*row{
		{name: "native", times: []time.Duration{time.Millisecond}},
		{name: "other", times: []time.Duration{3 * time.Millisecond}},
	}
	if err := table(&out, rows); err != nil {
		t.Fatal(err)
	}
	last := strings.Fields(strings.Split(out.String(), "\n")[2])
	if want := "other 3.00 3.00 3.00 3.00 1.00"; strings.Join(last, " ") != want {
		t.Errorf("last line %q, want %q", last, want)
	}
}

func TestReadTiming(t *testing.T) {
	got, err := readTiming("12:00:00.000 DBG timing b_at=50 b_us=7 all_us=90 a_at=3 a_us=40 c_at=x\n")
	if want := []step{{"a", 3 * time.Microsecond, 40 * time.Microsecond}, {"b", 50 * time.Microsecond, 7 * time.Microsecond}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "junk all_us=3", "12:00 ERR could not start"} {
		if _, err := readTiming(text); err == nil {
			t.Errorf("%q has steps", text)
		}
	}
}
