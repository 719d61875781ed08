package strictyaml

import (
	"strings"
	"testing"
)

// What stands in the file is read or refused, never left unread.
func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"# a remark\n":         "",
		"a: x\n":               "x",
		"---\na: x\n":          "x",
		"a: x\n---\n":          "x",
		"a: x\n...\n":          "x",
		"a: x\n--- # end\n":    "x",
		"a: x\n---\nb: y\n":    "second document",
		"---\n---\nb: y\n":     "second document",
		"a: x\n...\n---\nb: y": "second document",
		"a: x\na: y\n":         "already defined",
		"c: x\n":               "unknown field",
		"a: [\n":               "[",
		"a: x\n" + strings.Repeat("#\n", MaxBytes/2): "larger than",
	} {
		var v struct{ A, B string }
		err := Decode(strings.NewReader(in), &v)
		if err != nil {
			v.A = err.Error()
		}
		if right := want == "" || want == "x"; right != (err == nil) || !strings.Contains(v.A, want) {
			t.Errorf("%.40q: %q", in, v.A)
		}
	}
}
