package supervisor

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSanitizer(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", "hello\tworld\r\n", "hello\tworld\r\n"},
		{"colour", "\x1b[1;31mred\x1b[0m \x1b[38:5:1mx\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38:5:1mx\x1b[m"},
		{"title", "a\x1b]0;evil\x07b", "ab"},
		{"clipboard, ST", "a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"},
		{"link keeps its text", "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\", "click"},
		{"device control", "a\x1bP+q544e\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d\x1bXz\x1b\\e", "abcde"},
		{"cursor and clear", "a\x1b[2J\x1b[H\x1b[10;10Hb\x1b[?1049hc\x1b[6nd\x1b[>cx\x1b[0 qy", "abcdxy"},
		{"private colours", "\x1b[?1mx\x1b[>4;2my", "xy"},
		{"charset, reset, keypad", "\x1b(0a\x1bcb\x1b=c\x1b#8d", "abcd"},
		{"controls", "a\x00\x01\x05\x07\x0e\x0f\x7fb", "ab"},
		{"C1 as UTF-8", "a\u009b31mb\u0090c\u009cd", "a31mbcd"},
		{"C1 raw", "a\x9b2Jb", "a?2Jb"},
		{"UTF-8", "héllo → 世界 🎉", "héllo → 世界 🎉"},
		{"broken UTF-8", "a\xc3(b\xff\xe4\xb8c", "a?(b??c"},
		{"escape in a sequence", "\x1b[31\x1b[32mx", "\x1b[32mx"},
		{"endless parameters", "\x1b[" + strings.Repeat("1;", 100) + "mx", "x"},
		{"unfinished string swallows", "a\x1b]0;never ends", "a"},
		{"aborted string", "a\x1b]0;x\x18b", "ab"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var whole sanitizer
			if got := string(whole.filter(nil, []byte(c.in))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			var split sanitizer // every byte by itself: state survives between reads
			var out []byte
			for i := range len(c.in) {
				out = split.filter(out, []byte{c.in[i]})
			}
			if string(out) != c.want {
				t.Errorf("byte by byte %q, want %q", out, c.want)
			}
		})
	}
}

// Whatever goes in, nothing comes out but text, line control and SGR.
func FuzzSanitizer(f *testing.F) {
	for _, s := range []string{"a\x1b]0;x\x07", "\x1b[31m", "\x1b\x1b[", "\x9b\xc2\x9b", "\x1b[1;\x1b]x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var s sanitizer
		out := s.filter(nil, in)
		if !utf8.Valid(out) {
			t.Fatalf("%q is not UTF-8", out)
		}
		rest := string(out)
		for {
			i := strings.IndexByte(rest, 0x1b)
			if i < 0 {
				break
			}
			rest = rest[i+1:]
			end := strings.IndexFunc(rest, func(r rune) bool { return !strings.ContainsRune("[0123456789;:", r) })
			if !strings.HasPrefix(rest, "[") || end < 0 || rest[end] != 'm' || strings.Count(rest[:end], "[") != 1 {
				t.Fatalf("%q holds a sequence that is no colour", out)
			}
		}
		for _, r := range string(out) {
			if r < 0x20 && !strings.ContainsRune("\n\r\t\b\x1b", r) || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q holds %U", out, r)
			}
		}
	})
}
