package policy

import (
	"math"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		text  string
		scale int64
		want  int64 // 0: refused
	}{
		{"1", 1, 1},
		{"50000000", 1, 50000000},
		{"512", 1 << 20, 512 << 20},
		{"1.5", 1 << 20, 3 << 19},
		{"64K", 1, 64 << 10},
		{"64k", 1, 64 << 10},
		{"64KB", 1, 64 << 10},
		{"64KiB", 1 << 20, 64 << 10},
		{"16M", 1, 16 << 20},
		{"2G", 1, 2 << 30},
		{"1GiB", 1, 1 << 30},
		{"1T", 1, 1 << 40},
		{"0.5G", 1, 1 << 29},
		{"100B", 1 << 20, 100},
		{"9223372036854775807", 1, math.MaxInt64},
		{"9223372036854775808", 1, 0},
		{"8388608T", 1, 0},
		{"", 1, 0},
		{"K", 1, 0},
		{"0", 1, 0},
		{"00", 1, 0},
		{"010", 1, 0},
		{"-1", 1, 0},
		{"+1", 1, 0},
		{"1e3", 1, 0},
		{"0x10", 1, 0},
		{"1_000", 1, 0},
		{"1.K", 1, 0},
		{".5K", 1, 0},
		{"1.2.3K", 1, 0},
		{"1.0001K", 1, 0},
		{"1 K", 1, 0},
		{"1Ki", 1, 0},
		{"1I", 1, 0},
		{"1KK", 1, 0},
		{"1iB", 1, 0},
		{"1P", 1, 0},
		{"1µ", 1, 0},
		{"NaN", 1, 0},
		{"9999999999999999999999999999999999999999999999999999999999999", 1, 0},
	} {
		got, p := parseSize(c.text, c.scale)
		if (p == nil) != (c.want != 0) || p == nil && got != c.want {
			t.Errorf("parseSize(%q, %d) = %d, %v; want %d", c.text, c.scale, got, p, c.want)
		}
	}
}

func TestParseSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0.5": 500 * time.Millisecond, "45s": 45 * time.Second, "5m": 5 * time.Minute,
		"1h30m": 90 * time.Minute, "100ms": 100 * time.Millisecond,
		"1h05m": 65 * time.Minute,
		"017":   0, "017m": 0, "00.5": 0, "": 0, "0": 0, "0s": 0, "-5s": 0, "+5s": 0, "5 m": 0, "1d": 0, "1ns": 0, "1e3": 0, "Inf": 0, ".": 0, "99999999999h": 0, "1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h1h": 0,
	} {
		got, p := parseSpan(text)
		if (p == nil) != (want != 0) || p == nil && got != int64(want) {
			t.Errorf("parseSpan(%q) = %d, %v; want %d", text, got, p, want)
		}
	}
}

func TestParseCount(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "4096": 4096, "0": 0, "": 0, "-1": 0, "+1": 0, "010": 0, "1.5": 0, "5000": 0, "99999999999999999999": 0,
	} {
		got, p := parseCount(text, 4096)
		if (p == nil) != (want != 0) || p == nil && got != want {
			t.Errorf("parseCount(%q) = %d, %v; want %d", text, got, p, want)
		}
	}
}

// What is printed reads back as the same number.
func TestFormat(t *testing.T) {
	for _, n := range []int64{1, 1023, 1024, 1536, 50000000, 1 << 20, 3 << 30, 1 << 50, math.MaxInt64} {
		if got, p := parseSize(formatSize(n), 1); p != nil || got != n {
			t.Errorf("%d prints as %s and reads as %d, %v", n, formatSize(n), got, p)
		}
	}
	for _, d := range []time.Duration{time.Millisecond, 1500 * time.Millisecond, time.Second, 20 * time.Minute, 10 * time.Hour, 90 * time.Minute, time.Hour + time.Second} {
		if got, p := parseSpan(formatSpan(int64(d))); p != nil || got != int64(d) {
			t.Errorf("%v prints as %s and reads as %d, %v", d, formatSpan(int64(d)), got, p)
		}
	}
	for d, want := range map[time.Duration]string{time.Hour: "1h", 30 * time.Minute: "30m", 10 * time.Second: "10s", 90 * time.Minute: "1h30m", 10 * time.Hour: "10h"} {
		if got := formatSpan(int64(d)); got != want {
			t.Errorf("formatSpan(%v) = %s, want %s", d, got, want)
		}
	}
}
