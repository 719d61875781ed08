package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		"message":                           {Message: "message"},
		"message (hint)":                    {Message: "message", Hint: "hint"},
		"f.yaml:3:4: message (hint)":        {Source: Source{File: "f.yaml", Line: 3, Col: 4}, Message: "message", Hint: "hint"},
		"flag --ro: message":                {Source: Source{Flag: "--ro"}, Message: "message"},
		`"a\u001b[31m\n.yaml":1:1: message`: {Source: Source{File: "a\x1b[31m\n.yaml", Line: 1, Col: 1}, Message: "message"},
	} {
		want = strings.ReplaceAll(want, `\u001b`, `\x1b`)
		if got := e.Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := (Source{}).String(); got != "default" {
		t.Error(got)
	}
}

// Errors reach errors.As and errors.Is through any wrapping.
func TestErrorsUnwrap(t *testing.T) {
	first := &Error{Message: "a"}
	var err error = Errors{first, {Message: "b"}}
	if !errors.Is(err, first) || err.Error() != "a\nb" {
		t.Error(err)
	}
	if (Errors{}).err() != nil || Errors(nil).err() != nil {
		t.Error("no problem is an error")
	}
	if wrong("hint", "text %d", 5).Error() != "text 5" {
		t.Error("a problem does not print")
	}
}

func TestQuoteIsBoundedAndPrintable(t *testing.T) {
	for _, s := range []string{strings.Repeat("é", 500), strings.Repeat("\x00", 500), "\xff\xfe", "\u202e", "a\nb"} {
		got := quote(s)
		if printable(got) != got || len(got) > 4*maxQuoted+10 {
			t.Errorf("%q is quoted as %s", s, got)
		}
	}
}

func TestSuggestions(t *testing.T) {
	words := []string{"read_only_mounts", "writable_mounts", "ro", "rw", "env", "process"}
	for got, want := range map[string]string{
		"read_only_mount": "read_only_mounts", "readonly_mounts": "read_only_mounts", "WRITABLE_MOUNTS": "writable_mounts", "proces": "process",
		"evn": "", "banana": "", "": "", strings.Repeat("x", 100): "",
	} {
		if near := nearest(got, words); near != want {
			t.Errorf("nearest(%q) = %q, want %q", got, near, want)
		}
	}
}

// A list of thousands is not repeated in one message.
func TestHintsAreBounded(t *testing.T) {
	many := strings.Split(strings.Repeat("x,", 100), ",")
	if got := bounded(many); !strings.HasSuffix(got, `"x", ...`) || len(got) > 100 {
		t.Error(got)
	}
}
