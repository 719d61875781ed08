package main

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

// A name in a sentence of ours neither steers the terminal nor begins a line.
func TestPlain(t *testing.T) {
	for s, want := range map[string]string{
		"a word, ünd $'\\x1b'":         "a word, ünd $'\\x1b'",
		"a\x1b[31mb\xffc\u202ed\u009b": `a\x1b[31mb\xffc\xe2\x80\xaed\xc2\x9b`,
		"a\nb\tc\ufffd":                "a\\x0ab\\x09c\ufffd",
	} {
		if got := plain(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	err := fmt.Errorf("cannot: %w", &fs.PathError{Op: "open", Path: "/w/a\nagentguard: 3 changes committed", Err: fs.ErrNotExist})
	if got, want := errorWords(errors.Join(err, errors.New("second"))), "cannot: open $'/w/a\\nagentguard: 3 changes committed': file does not exist\nsecond"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
