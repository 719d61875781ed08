package policy

import (
	"strings"
	"testing"
)

func TestTree(t *testing.T) {
	tree := ReadTree("t.yaml", "things", []byte("things:\n  a: {n: 3, s: \"x\", l: [1, TRUE, null, 1.5], size: 4K, span: 2s}\n"))
	top := tree.Mapping(tree.Root, "the file", "things")
	a := tree.Mapping(top["things"], "things", "a")["a"]
	m := tree.Mapping(a, "a", "n", "s", "l", "size", "span", "absent")
	if n, s := tree.Count(m["n"], "n", 1, 10), tree.Text(m["s"], "s"); n != 3 || s != "x" || len(tree.List(m["l"], "l")) != 4 {
		t.Errorf("%d %q", n, s)
	}
	if tree.Size(m["size"], "size", 1) != 4096 || tree.Span(m["span"], "span", 1) != 2e9 || tree.Count(m["absent"], "absent", 7, 10) != 7 {
		t.Error("a quantity is not what is written")
	}
	if got := string(tree.JSON(a, "a")); got != `{"n":3,"s":"x","l":[1,true,null,1.5],"size":"4K","span":"2s"}` {
		t.Error(got)
	}
	if err := tree.Err(); err != nil {
		t.Error(err)
	}
}

func TestTreeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"things: {a: 1, a: 2}":        "t.yaml:1:16: duplicate key",
		"things: &x 1":                "anchors (&) are not allowed",
		"things: 1\n---\nthings: 2":   "one document",
		"things: {a:":                 "t.yaml:1:",
		"thinks: 1":                   `t.yaml:1:1: the file: unknown key "thinks" (did you mean "things"?)`,
		"things: [1]":                 "t.yaml:1:9: things: expected a mapping, got a list",
		"things: {n: 11}":             `"11" is too large`,
		"things: {n: none}":           "is not a number",
		"things: {n: 0x10}":           "is not a number",
		"things: {s: 1}":              "quote it if it is meant as text",
		"things: {s: \"\"}":           "s is empty",
		"things: {w: reed}":           `unknown word "reed" (did you mean "red"?)`,
		"things: {j: 0x10}":           "is not a number of JSON",
		"things: {j: .inf}":           "t.yaml:1:13",
		"things: {n:}":                "t.yaml:1:",
		strings.Repeat("[", 40):       "nested too deeply",
		"things: {w: red, l: {a: 1}}": "l: expected a list, got a mapping",
	} {
		tree := ReadTree("t.yaml", "things", []byte(text))
		if tree.Root != nil {
			m := tree.Mapping(tree.Mapping(tree.Root, "the file", "things")["things"], "things", "n", "s", "w", "j", "l", "a")
			tree.Count(m["n"], "n", 1, 10)
			tree.Text(m["s"], "s")
			tree.Word(m["w"], "w", "red", "green")
			tree.List(m["l"], "l")
			if m["j"] != nil {
				tree.JSON(m["j"], "j")
			}
		}
		if err := tree.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
