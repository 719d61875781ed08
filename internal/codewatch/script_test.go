package codewatch

import (
	"strings"
	"testing"
)

func TestInterpreted(t *testing.T) {
	for _, c := range []struct {
		exe, argv    string // arguments between blanks; _ is a blank
		script, text string // what is found; "" nothing; "<" for the script: the standard input
	}{
		{"/usr/bin/dash", "sh", "<", ""},
		{"/usr/bin/dash", "sh s.sh a b", "s.sh", ""},
		{"/usr/bin/dash", "sh -eu s.sh -c", "s.sh", ""},
		{"/usr/bin/dash", "sh -c echo_hi name", "", "echo_hi"},
		{"/usr/bin/dash", "sh -ec echo_hi", "", "echo_hi"},
		{"/usr/bin/bash", "bash -c -e echo_hi", "", "echo_hi"},
		{"/usr/bin/bash", "bash -eo pipefail s.sh", "s.sh", ""},
		{"/usr/bin/bash", "bash -eo pipefail -c text", "", "text"},
		{"/usr/bin/bash", "bash --norc -- -s.sh", "-s.sh", ""},
		{"/usr/bin/bash", "bash --rcfile rc s.sh", "s.sh", ""},
		{"/usr/bin/bash", "bash -s", "<", ""},
		{"/usr/bin/bash", "bash - x", "<", ""},
		{"/usr/bin/bash", "bash +x s.sh", "s.sh", ""},
		{"/usr/bin/python3.11", "python3 x.py", "x.py", ""},
		{"/usr/bin/python3.11", "python3 -u -X dev x.py", "x.py", ""},
		{"/usr/bin/python3.11", "python3 -Wignore x.py", "x.py", ""},
		{"/usr/bin/python3.11", "python3 -m http.server", "", ""},
		{"/usr/bin/python3.11", "python3 -mhttp.server", "", ""},
		{"/usr/bin/python3.11", "python3 -c print(1) x", "", "print(1)"},
		{"/usr/bin/python3.11", "python3 -Ecprint(1)", "", "print(1)"},
		{"/usr/local/bin/node", "node --require ./a x.js", "x.js", ""},
		{"/usr/local/bin/node", "node -e 1+1", "", "1+1"},
		{"/usr/local/bin/node", "node --eval=1+1", "", "1+1"},
		{"/usr/local/bin/node", "node --max-old-space-size=9 x.js", "x.js", ""},
		{"/usr/bin/perl5.36.0", "perl -w -Ilib -e print", "", "print"},
		{"/usr/bin/perl", "perl -I lib x.pl", "x.pl", ""},
		{"/usr/bin/cat", "cat x.py", "", ""},
		{"/w/sh-like", "sh x.sh", "", ""},
		{"/usr/bin/python3", "python3 -u -", "<", ""},
		{"/usr/bin/dash", "sh -c", "", ""},
		{"/usr/bin/dash", "", "<", ""},
	} {
		var argv [][]byte
		for _, a := range strings.Fields(c.argv) {
			argv = append(argv, []byte(strings.ReplaceAll(a, "_", " ")))
		}
		g, _ := Interpreted(c.exe, argv)
		script, text := "", ""
		if g.Script > 0 {
			script = string(argv[g.Script])
		}
		if g.Input {
			script = "<"
		}
		if g.Text > 0 {
			text = string(argv[g.Text][g.Skip:])
		}
		if want := strings.ReplaceAll(c.text, "_", " "); script != c.script || text != want {
			t.Errorf("%s: %q: script %q, text %q; want %q, %q", c.exe, c.argv, script, text, c.script, want)
		}
	}
}

// Arguments of any kind are read without an index out of range.
func FuzzInterpreted(f *testing.F) {
	f.Add("/bin/sh", "sh\x00-c\x00x")
	f.Add("/usr/bin/python3", "python\x00-X\x00-\x00--")
	f.Fuzz(func(t *testing.T, exe, args string) {
		var argv [][]byte
		for _, a := range strings.Split(args, "\x00") {
			argv = append(argv, []byte(a))
		}
		g, _ := Interpreted(exe, argv)
		if g.Script >= len(argv) || g.Text >= len(argv) || g.Text > 0 && g.Skip > len(argv[g.Text]) {
			t.Errorf("%q: %+v", argv, g)
		}
	})
}
