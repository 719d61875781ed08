package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

// hostile are texts that make naive parsers recurse, hang or run out of memory:
// some as large as a policy may be, all large enough to fill the parser.
func hostile() map[string]string {
	files := map[string]string{}
	add := func(s string, size int) {
		text := strings.Repeat(s, size/len(s))
		files[fmt.Sprintf("%d of %q", size, s)] = text
		files[fmt.Sprintf("%d of %q in a mapping", size, s)] = ("sandbox: " + text)[:size]
	}
	for _, s := range []string{
		"[", "{", "- ", "? ", "a: ", "{a: ", "[a,", "a: b\n", "- x\n", "&a ", "*a ", "!a ", "!a\n", "&a\n", "'", "\"", "|\n", ">-\n ",
		",", ":", "\n", "\t", " ", "%a\n", "#\n", "---\n", "...\n", "é", "\r\n", "a: |\n  x\n", "x", "x\n", "? x\n: ", "-\n", "<<: ", "\"\\u",
		"]", "}", "[]", "{}", "a: !b &c ", "? - ", "sandbox: {", "- - ", "~\n",
	} {
		add(s, 40_000)
	}
	for _, s := range []string{"{", "- ", "a: b\n", "'", " ", "é", "x\n"} {
		add(s, MaxBytes)
	}
	files["many keys"] = "sandbox:\n" + strings.Repeat("  k: 1\n", 10_000)
	files["long key"] = strings.Repeat("k", MaxBytes-10) + ": 1\n"
	var stairs, distinct strings.Builder
	for i := 0; stairs.Len() < MaxBytes-4096; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	for i := range 15_000 {
		fmt.Fprintf(&distinct, "A%x,", i)
	}
	files["stairs"] = stairs.String()
	files["distinct entries"] = "sandbox: {env: {allowlist: [" + distinct.String() + "]}}"
	return files
}

// As much of anything as a policy may hold is judged in bounded time, without
// a panic. The bound is far above what it takes; it is there to end a hang.
func TestHostileInput(t *testing.T) {
	for name, src := range hostile() {
		begin := testenv.CPUTime()
		p, err := load("h.yaml", []byte(src))
		if took := testenv.CPUTime() - begin; took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		} else if took > 300*time.Millisecond {
			t.Logf("%s: took %v", name, took)
		}
		if err == nil && p == nil {
			t.Errorf("%s: neither policy nor error", name)
		}
		var all Errors
		if err != nil && (!errors.As(err, &all) || len(all) > maxErrors+1) {
			t.Errorf("%s: %T with %d problems", name, err, len(all))
		}
	}
}

func TestTooLarge(t *testing.T) {
	_, err := Parse("big.yaml", make([]byte, 10<<20))
	if err == nil || err.Error() != "big.yaml:1:1: the file is larger than 1048576 bytes" {
		t.Error(err)
	}
}

// FuzzParse: no input makes the parser panic; what it accepts prints as a
// policy that reads back as the same; what it refuses has a place and is
// printable.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"errors", "valid"} {
		paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			src, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	for _, k := range schema() {
		f.Add([]byte("sandbox:\n" + body(k, sampleValues[k.name][1])))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if _, err := parseCeiling("/c.yaml", src); err != nil && err.Error() == "" {
			t.Error("an empty message")
		}
		p, err := load("f.yaml", src)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			for _, e := range all {
				if e.Source.Line < 1 || e.Source.Col < 1 || printable(e.Error()) != e.Error() {
					t.Errorf("%q has no place or is not printable", e.Error())
				}
			}
			return
		}
		if diff := cmp.Diff(meaning(p), meaning(reread(t, p))); diff != "" {
			t.Errorf("reads back as another policy (-first +second):\n%s", diff)
		}
		p.Gaps()
	})
}

// meaning is what a policy says, without the places where it is said.
func meaning(p *Policy) []string {
	var out []string
	for _, c := range p.Clauses() {
		out = append(out, c.Key+" = "+c.Value)
	}
	return out
}

// reread writes a policy's clauses as a file that replaces everything and
// merges it again.
func reread(t *testing.T, p *Policy) *Policy {
	t.Helper()
	var b strings.Builder
	b.WriteString("{sandbox: ")
	writeSection(&b, p, "")
	b.WriteString("}")
	f, err := Parse("/again.yaml", []byte(b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	base := &File{keys: map[string]Source{}}
	again, err := Merge(base, f)
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return again
}

// writeSection writes the keys under prefix in flow style.
func writeSection(b *strings.Builder, p *Policy, prefix string) {
	keys := schema()
	b.WriteString("{")
	for _, name := range children(keys, prefix) {
		full := strings.TrimPrefix(prefix+"."+name, ".")
		k, leaf := lookup(keys, full)
		if leaf && k.form == one && strings.HasPrefix(k.field.show(p)[0].Value, "(") {
			continue
		}
		fmt.Fprintf(b, "%q: ", name)
		if leaf {
			writeLeaf(b, p, k)
		} else {
			writeSection(b, p, full)
		}
		b.WriteString(", ")
	}
	b.WriteString("}")
}

func writeLeaf(b *strings.Builder, p *Policy, k key) {
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	clauses := k.field.show(p)
	switch {
	case k.name == "env.set":
		b.WriteString("{")
		for _, e := range p.EnvSet {
			fmt.Fprintf(b, "%s: %s, ", e.Name, yamlQuote(e.Value))
		}
		b.WriteString("}")
	case clauses[0].Value == "[]" && k.form == named:
		b.WriteString("{}")
	case k.form == many && clauses[0].Value == "[]", k.name == "trace.syscalls", k.form == worded && clauses[0].Value == none:
		b.WriteString(clauses[0].Value)
	case k.form == one:
		b.WriteString(quoted(clauses[0].Value))
	case k.form == named:
		b.WriteString("{")
		for _, c := range clauses {
			name, value, _ := strings.Cut(c.Value, "=")
			fmt.Fprintf(b, "%s: %s, ", quoted(name), quoted(value))
		}
		b.WriteString("}")
	default:
		b.WriteString("[")
		for _, c := range clauses {
			b.WriteString(quoted(c.Value) + ", ")
		}
		b.WriteString("]")
	}
}

// yamlQuote writes any text as a double-quoted YAML scalar.
func yamlQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r < 0x20 || r == '"' || r == '\\' || r > 0x7e {
			fmt.Fprintf(&b, `\U%08x`, r)
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('"')
	return b.String()
}
