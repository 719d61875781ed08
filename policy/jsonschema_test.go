package policy

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
)

func resolved(t testing.TB) *jsonschema.Resolved {
	t.Helper()
	s := &jsonschema.Schema{}
	if err := json.Unmarshal(JSONSchema(), s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// validates reports what the schema says of a file.
func validates(t testing.TB, r *jsonschema.Resolved, src string) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(src))
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(asJSON, &v); err != nil {
		return err
	}
	return r.Validate(v)
}

// TestSchemaAgrees holds the JSON Schema to the parser, key by key: what one
// accepts and refuses, so does the other.
func TestSchemaAgrees(t *testing.T) {
	r := resolved(t)
	a, b := samples(t)
	agree := func(body string, want bool) {
		t.Helper()
		src := "sandbox:\n" + body
		_, parsed := Parse("/p.yaml", []byte(src))
		valid := validates(t, r, src)
		if (parsed == nil) != want || (valid == nil) != want {
			t.Errorf("want %t: parser %v, schema %v:\n%s", want, parsed, valid, src)
		}
	}
	for _, k := range schema() {
		agree(a[k.name], true)
		agree(b[k.name], true)
		name := k.name[strings.LastIndexByte(k.name, '.')+1:]
		at := strings.LastIndex(a[k.name], name+":")
		head := a[k.name][:at]
		agree(head+name+"_: 1\n", false)          // no such key
		agree(head+name+": {a: {b: c}}\n", false) // no such shape
		if k.kinds&isNull == 0 {                  // a schema cannot tell no value from null
			agree(head+name+":\n", false)
		}
		agree(head+name+": [[x]]\n", false) // nested lists
		if f, ok := k.field.(scalar); ok && f.words != nil {
			for _, w := range f.words {
				agree(head+name+": \""+w+"\"\n", true)
			}
			agree(head+name+": "+f.words[0]+"x\n", false)
		}
		if _, ok := k.field.(limit); ok {
			agree(head+name+": none\n", true)
			agree(head+name+": 0\n", false)
			agree(head+name+": many\n", false)
			agree(head+name+": 1000000\n", true)
		}
	}
	agree("  secrets: none\n", true)
	agree("  filesystem: {toolchains: auto}\n", true)
	agree("  filesystem: {toolchains: none}\n", true)
	agree("  filesystem: {toolchains: [auto, /opt/x]}\n", true)
	agree("  filesystem: {toolchains: all}\n", false)
	agree("  filesystem: {caches: auto}\n", false)
	agree("  secrets: some\n", false)
}

// TestSchemaOfExamples checks the examples of the documentation.
func TestSchemaOfExamples(t *testing.T) {
	r := resolved(t)
	raw, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range regexp.MustCompile("(?s)```yaml\n(sandbox:.*?)```").FindAllStringSubmatch(string(raw), -1) {
		if err := validates(t, r, b[1]); err != nil {
			t.Errorf("%v\n%s", err, b[1])
		}
	}
}

func TestAbout(t *testing.T) {
	if len(about) != len(schema()) {
		t.Errorf("%d keys, %d descriptions", len(schema()), len(about))
	}
	for _, k := range schema() {
		if about[k.name] == "" {
			t.Errorf("%s is not described", k.name)
		}
	}
}

// FuzzSchema looks for files that the parser accepts and the schema refuses.
func FuzzSchema(f *testing.F) {
	for _, v := range sampleValues {
		f.Add("sandbox: {process: {max_memory_mb: " + v[0] + "}}")
	}
	f.Add("sandbox:\n  stdin: null\n  env: {set: {A: true, B: 1.5}}\n")
	r := resolved(f)
	f.Fuzz(func(t *testing.T, src string) {
		if _, err := Parse("/p.yaml", []byte(src)); err != nil {
			return
		}
		if err := validates(t, r, src); err != nil {
			t.Errorf("%v\n%s", err, src)
		}
	})
}
