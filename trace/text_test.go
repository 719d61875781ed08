package trace

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentguard/agentguard/internal/testenv"
)

// hostile are texts that a command may choose as a name or an argument.
var hostile = []string{
	"", "a", "a b", "it's", `"q"`, `\`, "$(id)", "`id`", "~", "-rf", "#x", "a\nb", "\r", "\t", "\x00", "\x7f", "\x1b[2J\x1b]0;t\a",
	"\u0085", "\u009b31m", "\u202edcba", "\u2066x", "\u2028", "\u200b", "\ufeff", "\u00ad", "\u00a0", "\U000e0041", "\U0010ffff", "é", "日本", "😀", "\ufffd",
	"\xff", "\xc3", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80", "a\xffb", "\xffa", "\x01b", "\x01'", "'\n'", "\xc2\x9b", "\xe2\x80",
	`{"v":1,"seq":1}`, "\",\"verdict\":\"allow", "</script>", strings.Repeat("x", 5000), strings.Repeat("\xff", 5000),
}

// assertSafe fails for what must never reach a terminal.
func assertSafe(t *testing.T, what, s string) {
	t.Helper()
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				t.Errorf("%s: invalid UTF-8 in %q", what, s)
				return
			}
		}
		if !strconv.IsPrint(r) {
			t.Errorf("%s: %U raw in %q", what, r, s)
			return
		}
	}
}

func TestAppendJSON(t *testing.T) {
	for _, in := range hostile {
		b, valid := appendJSON(nil, in)
		assertSafe(t, "JSON of "+strconv.Quote(in), string(b))
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Errorf("%q: %s: %v", in, b, err)
		}
		if valid != utf8.ValidString(in) || valid && got != in {
			t.Errorf("%q: valid=%v, reads back as %q", in, valid, got)
		}
		if got, err := (&decoder{src: b}).str(); err != nil || valid && string(got) != in {
			t.Errorf("%q: our decoder reads %q, %v", in, got, err)
		}
	}
}

func TestQuote(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", "''"},
		{"make", "make"},
		{"/usr/bin/x-1_2.so", "/usr/bin/x-1_2.so"},
		{"a b", "'a b'"},
		{"it's", `'it'\''s'`},
		{"~root", "'~root'"},
		{"é", "'é'"},
		{"a\nb", `$'a\nb'`},
		{"\x1b[2J", `$'\x1b[2J'`},
		{"\u202ex", `$'\xe2\x80\xaex'`},
		{"\xff", `$'\xff'`},
		{"\xffa", `$'\377a'`},
		{"\x01'\\", `$'\x01\'\\'`},
		{"é\n", `$'é\n'`},
	}
	for _, tt := range tests {
		if got := Quote(tt.in); got != tt.want {
			t.Errorf("Quote(%q) = %s, want %s", tt.in, got, tt.want)
		}
	}
	for _, in := range hostile {
		assertSafe(t, "Quote of "+strconv.Quote(in), Quote(in))
	}
}

// TestQuoteInShell lets a real shell read back what Quote wrote.
func TestQuoteInShell(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		testenv.Missing(t, "bash", err.Error())
	}
	var script, want bytes.Buffer
	for _, in := range hostile {
		if strings.Contains(in, "\x00") {
			continue // no shell word holds a NUL
		}
		script.WriteString("printf '%s\\0' " + Quote(in) + "\n")
		want.WriteString(in + "\x00")
	}
	cmd := exec.Command(bash)
	cmd.Stdin = &script
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got  %q\nwant %q", got, want.Bytes())
	}
}

func TestQuoteArgs(t *testing.T) {
	tests := []struct {
		args  []string
		limit int
		want  string
	}{
		{nil, 0, ""},
		{[]string{"sh", "-c", "a b"}, 0, "sh -c 'a b'"},
		{[]string{"sh", "-c", "a b"}, 12, "sh -c 'a b'"},
		{[]string{"sh", "-c", "a b", "more"}, 12, "sh -c 'a b' ... (1 more)"},
		{[]string{strings.Repeat("x", 100), "y"}, 30, "xxxxxxx ... (1 more)"},
		{[]string{strings.Repeat("\x01", 100)}, 30, `$'\x01\x01\x01\x01\x01\x01\x01' ...`},
	}
	for _, tt := range tests {
		if got := QuoteArgs(tt.args, tt.limit); got != tt.want {
			t.Errorf("QuoteArgs(%q, %d) = %s, want %s", tt.args, tt.limit, got, tt.want)
		}
	}
}

func TestEscapeJSON(t *testing.T) {
	for _, in := range hostile {
		plain, err := json.Marshal(map[string]string{"x": in})
		if err != nil {
			t.Fatal(err)
		}
		b := EscapeJSON(plain)
		assertSafe(t, "EscapeJSON", string(b))
		var got, want map[string]string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Errorf("%q: %v", in, err)
		}
		json.Unmarshal(plain, &want)
		if got["x"] != want["x"] {
			t.Errorf("%q became %q", want["x"], got["x"])
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 12_900_000: "12.3 MiB", 1<<64 - 1: "16.0 EiB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for n := int32(-3); n < 700; n++ {
		if n == 0 {
			continue
		}
		if got, ok := numberOf(errnoNames[:], ErrnoName(n), "E"); !ok || got != n {
			t.Errorf("errno %d: %s reads back as %d", n, ErrnoName(n), got)
		}
		if got, ok := numberOf(signalNames[:], SignalName(n), "SIG"); !ok || got != n {
			t.Errorf("signal %d: %s reads back as %d", n, SignalName(n), got)
		}
	}
	for _, bad := range []string{"", "E", "E013", "E13", "EFOO", "E99999999999", "SIG9"} {
		if n, ok := numberOf(errnoNames[:], bad, "E"); ok {
			t.Errorf("%q is read as errno %d", bad, n)
		}
	}
}
