package terminal

import (
	"regexp"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		name     string
		level    Level
		in, want string
	}{
		{"text", Colours, "hello\tworld\r\n", "hello\tworld\r\n"},
		{"colour", Colours, "\x1b[1;31mred\x1b[0m \x1b[38:5:1mx\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38:5:1mx\x1b[m"},
		{"title", Colours, "a\x1b]0;evil\x07b", "ab"},
		{"clipboard, ST", Colours, "a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"},
		{"link keeps its text", Colours, "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\", "click"},
		{"device control", Colours, "a\x1bP+q544e\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d\x1bXz\x1b\\e", "abcde"},
		{"cursor and clear", Colours, "a\x1b[2J\x1b[H\x1b[10;10Hb\x1b[?1049hc\x1b[6nd\x1b[>cx\x1b[0 qy", "abcdxy"},
		{"private colours", Colours, "\x1b[?1mx\x1b[>4;2my", "xy"},
		{"charset, reset, keypad", Colours, "\x1b(0a\x1bcb\x1b=c\x1b#8d", "abcd"},
		{"controls", Colours, "a\x00\x01\x05\x07\x0e\x0f\x7fb", "ab"},
		{"C1 as UTF-8", Colours, "a\u009b31mb\u0090c\u009cd", "a31mbcd"},
		{"C1 raw", Colours, "a\x9b2Jb", "a?2Jb"},
		{"UTF-8", Colours, "héllo → 世界 🎉", "héllo → 世界 🎉"},
		{"broken UTF-8", Colours, "a\xc3(b\xff\xe4\xb8c", "a?(b??c"},
		{"escape in a sequence", Colours, "\x1b[31\x1b[32mx", "\x1b[32mx"},
		{"endless parameters", Colours, "\x1b[" + strings.Repeat("1;", 100) + "mx", "x"},
		{"unfinished string swallows", Colours, "a\x1b]0;never ends", "a"},
		{"aborted string", Colours, "a\x1b]0;x\x18b", "ab"},
		{"dumb: no colour either", Text, "\x1b[31mred\x1b[0m\a", "red"},

		{"alternate screen, cursor, clear", Screen, "\x1b[?1049h\x1b[2J\x1b[H\x1b[10;20Hx\x1b[K\x1b[?25l", "\x1b[?1049h\x1b[2J\x1b[H\x1b[10;20Hx\x1b[K\x1b[?25l"},
		{"scrolling, lines", Screen, "\x1b[1;24r\x1bM\x1bD\x1b[3L\x1b[2M\x1b[4@\x1b[5P\x1b[6X\x1b[2S\x1b[2T", "\x1b[1;24r\x1bM\x1bD\x1b[3L\x1b[2M\x1b[4@\x1b[5P\x1b[6X\x1b[2S\x1b[2T"},
		{"save, restore, keypad, sets", Screen, "\x1b7\x1b8\x1b=\x1b>\x1b(0qx\x1b(B\x1b)0\x0eq\x0f", "\x1b7\x1b8\x1b=\x1b>\x1b(0qx\x1b(B\x1b)0\x0eq\x0f"},
		{"mouse and paste", Screen, "\x1b[?1000;1006h\x1b[?2004h", "\x1b[?1000;1006h\x1b[?2004h"},
		{"cursor style, soft reset", Screen, "\x1b[2 q\x1b[!p", "\x1b[2 q\x1b[!p"},
		{"a mode among others", Screen, "\x1b[?1;1004;25h\x1b[?1004h", "\x1b[?1;25h"},
		{"bell", Screen, "a\ab", "a\ab"},
		{"UTF-8 on a screen", Screen, "\x1b[1;1Hhéllo → 世界 🎉", "\x1b[1;1Hhéllo → 世界 🎉"},

		{"clipboard", Screen, "a\x1b]52;c;ZXZpbA==\ab\x1b]52;c;?\x1b\\c", "abc"},
		{"title", Screen, "\x1b]0;t\a\x1b]2;t\x1b\\\x1bk t\x1b\\x", " tx"},
		{"title reports", Screen, "\x1b[21t\x1b[20t\x1b[22;0;0t\x1b[18t\x1b[8;1;1t\x1b[>2tx", "x"},
		{"colour, link, file and notification by OSC", Screen, "\x1b]11;?\a\x1b]4;1;rgb:0/0/0\a\x1b]8;;file:///x\ay\x1b]8;;\a\x1b]1337;File=:x\a\x1b]9;n\a\x1b]777;n\a", "y"},
		{"identity", Screen, "\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1bZ\x1b[>q\x05x", "x"},
		{"status and position", Screen, "\x1b[5n\x1b[6n\x1b[?6n\x1b[?15n\x1b[xx", "x"},
		{"modes and settings asked for", Screen, "\x1b[?2026$p\x1b[4$p\x1bP$qm\x1b\\\x1bP+q544e\x1b\\\x1b[?um\x1b[1;1;1;1;1;1*yx", "mx"},
		{"keyboard", Screen, "\x1b[2h\x1b[20h\x1b[12l\x1b[>1u\x1b[=1u\x1b[<u\x1b[>4;2m\x1b[?4mx", "x"},
		{"printer", Screen, "\x1b[5i\x1b[?5i\x1b[ix", "x"},
		{"what has scrolled out", Screen, "\x1b[3J\x1b[03J\x1b[2;3Jx", "x"},
		{"reset, alignment, other sets", Screen, "\x1bc\x1b#8\x1b%@\x1b%G\x1b(1\x1b*0\x1bN\x1bO\x1bnx", "x"},
		{"sixel, graphics, tmux", Screen, "\x1bPq#0\x1b\\\x1b_Ga=T;x\x1b\\\x1bPtmux;\x1b\x1b]52;c;eA==\a\x1b\\x", "x"},
		{"macro and memory", Screen, "\x1bP1;0;0!zx\x1b\\\x1b[1*z\x1bl\x1b|x", "x"},
		{"mouse tracking by T", Screen, "\x1b[1;1;1;1;1Tx", "x"},
		{"columns, focus, left margins", Screen, "\x1b[?3h\x1b[?40h\x1b[?1004h\x1b[?69h\x1b[1;2sx", "x"},
		{"long numbers", Screen, "\x1b[999999b\x1b[99999;1Hx", "\x1b[99999;1Hx"},
		{"C1", Screen, "\x9b6n\u009b6n\u009d52;c;x\a\x9d0;x\x9c", "?6n6n52;c;x\a?0;x?"},
		{"a string that an escape ends", Screen, "\x1b]0;x\x1b[1mb\x1b]0;x\x1b]52;;\ac", "\x1b[1mbc"},
		{"cut, then more", Screen, "\x1b[12\x1b[6n\x1b[1\x18mx", "mx"},
		{"raw", All, "\x1b]52;c;eA==\a\x1b[6n\x9b", "\x1b]52;c;eA==\a\x1b[6n\x9b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(NewFilter(c.level).Append(nil, []byte(c.in))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			split := NewFilter(c.level) // every byte by itself: state survives between reads
			var out []byte
			for i := range len(c.in) {
				out = split.Append(out, []byte{c.in[i]})
			}
			if string(out) != c.want {
				t.Errorf("byte by byte %q, want %q", out, c.want)
			}
		})
	}
}

// Two queries have an answer of our own, if the caller's terminal does not get them.
func TestAnswers(t *testing.T) {
	const id, well = "\x1b[?1;2c", "\x1b[0n"
	for _, c := range []struct {
		name     string
		level    Level
		in, want string
	}{
		{"identity", Screen, "a\x1b[cb\x1b[0c", id + id},
		{"status", Screen, "\x1b[5n", well},
		{"others first, as fish and crossterm ask", Screen, "\x1b[?u\x1bP+q696e646e\x1b\\\x1b]11;?\x1b\\\x1b[>0q\x1b[0c", id},
		{"what would tell of the caller's", Screen, "\x1b[>c\x1b[=c\x1b[6n\x1b[?6n\x1b[?15n\x1b[x\x1b[?2026$p\x1b[18t\x1bZ\x05\x1b[1c\x1b[c;", id},
		{"in a string", Screen, "\x1b]0;\x1b[c\x1bP\x1b\\", id}, // an escape ends a string
		{"a flood", Screen, strings.Repeat("\x1b[c", 1000), strings.Repeat(id, maxAnswers/len(id))},
		{"not a screen", Colours, "\x1b[c\x1b[5n", ""},
		{"the terminal answers itself", All, "\x1b[c\x1b[5n", ""},
	} {
		f := NewFilter(c.level)
		f.Append(nil, []byte(c.in))
		if got := string(f.Answers()); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if again := f.Answers(); len(again) > 0 {
			t.Errorf("%s: answered twice: %q", c.name, again)
		}
	}
}

// safe is all that may come out at level Screen.
var safe = regexp.MustCompile("^(?:" + strings.Join([]string{
	"\\x1b[78DEMH=>]", "\\x1b[()][0AB]", "\\x1b\\[[0-9;:]*m", "\\x1b\\[[0-9;]*[@-I`abdefgrJKLMPSTXZ]",
	"\\x1b\\[\\?[0-9;]+[hl]", "\\x1b\\[4[hl]", "\\x1b\\[[su]", "\\x1b\\[[0-9]* q", "\\x1b\\[!p",
	"[\n\r\t\b\a\x0e\x0f]", "[^\\x00-\\x1f\\x7f-\\x{9f}\\x{2028}\\x{2029}]",
}, "|") + ")*$")

var (
	colours   = regexp.MustCompile(`\x1b\[[0-9;:]*m`)
	forbidden = regexp.MustCompile(`\x1b\[(?:[0-9;]*3[0-9;]*J|\?[0-9;]*\b1004\b|[0-9]*;[0-9;]*T)`)
)

// Whatever goes in, nothing comes out but what is listed; a second filter finds
// nothing to take away; and what undoes the output leaves nothing to be undone.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		"a\x1b]0;x\x07", "\x1b[31m", "\x1b\x1b[", "\x9b\xc2\x9b", "\x1b[1;\x1b]x", "\x1b[?1;1049h\x1b[4h\x1b[2 q\x1b(0\x0e",
		"\x1b[1;5r\x1b=\x1b[3J", "\xe4\xb8", "\x1bPq\x1b[6n\x1b\\",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		screen := NewFilter(Screen)
		out := screen.Append(nil, in)
		if !safe.Match(out) || forbidden.Match(out) {
			t.Fatalf("%q holds what must not pass", out)
		}
		again := NewFilter(Screen)
		if got := again.Append(nil, out); string(got) != string(out) {
			t.Fatalf("%q, filtered again %q", out, got)
		}
		undo := again.Undo()
		if string(undo) != string(screen.Undo()) || len(undo) > 512 {
			t.Fatalf("%q to undo of %q, and of what was shown %q", screen.Undo(), in, undo)
		}
		again.Append(nil, undo)
		if left := again.Undo(); len(left) > 0 {
			t.Fatalf("after the undo of %q: %q", out, left)
		}
		plain := NewFilter(Colours).Append(nil, in)
		if rest := colours.ReplaceAll(plain, nil); strings.ContainsAny(string(rest), "\x1b\a\x0e\x0f") || !safe.Match(plain) {
			t.Fatalf("%q holds more than text and colours", plain)
		}
		if text := NewFilter(Text).Append(nil, in); strings.Contains(string(text), "\x1b") {
			t.Fatalf("%q holds more than text", text)
		}
	})
}

// What a program leaves switched on is switched off after it, and on again when it
// goes on after a stop.
func TestUndo(t *testing.T) {
	for _, c := range []struct{ name, in, undo, redo string }{
		{"nothing", "text\r\n\x1b[31mred\x1b[0m", "", ""},
		{"what was switched back", "\x1b[?1049h\x1b[?25l\x1b[2;5r\x1b[r\x1b[?25h\x1b[?1049l\x1b[?7l\x1b[?7h", "", ""},
		{
			"a full screen", "\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l\x1b[?1002;1006h\x1b[?2004h\x1b[1;31m",
			"\x1b[?1049l\x1b[?1l\x1b[?25h\x1b[?1002l\x1b[?1006l\x1b[?2004l\x1b>\x1b[m",
			"\x1b[?2004h\x1b[?1006h\x1b[?1002h\x1b[?25l\x1b[?1h\x1b[?1049h\x1b=",
		},
		{"the rest", "\x1b[4h\x1b[?7l\x1b(0\x1b)0\x0e\x1b[5 q\x1b[3;4r", "\x1b7\x1b[r\x1b8\x1b[?7h\x1b[4l\x0f\x1b(B\x1b)B\x1b[0 q", "\x1b[?7l"},
		{"what is a matter of taste", "\x1b[?12h\x1b[?1048h", "", ""},
	} {
		for _, level := range []Level{Screen, All} {
			f := NewFilter(level)
			f.Append(nil, []byte(c.in))
			if undo, redo := string(f.Undo()), string(f.Redo()); undo != c.undo || redo != c.redo {
				t.Errorf("%s, level %d: undo %q, redo %q", c.name, level, undo, redo)
			}
		}
	}
	f := NewFilter(All)
	f.Append(nil, []byte("\x1b]0;unfinished"))
	if got := string(f.Undo()); got != "\x1b\\" {
		t.Errorf("an unfinished string that was shown: %q", got)
	}
}

func BenchmarkFilter(b *testing.B) {
	text := []byte(strings.Repeat("\x1b[32mok\x1b[0m   github.com/agentguard/agentguard/trace (cached)\r\n", 1000))
	f := NewFilter(Screen)
	var dst []byte
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = f.Append(dst[:0], text)
	}
}
