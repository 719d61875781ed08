package dispatch

import (
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

// A schema that asks itself about the same value is refused; one that describes the
// parts of a value by itself is not.
func TestEndlessSchemas(t *testing.T) {
	for _, c := range []struct {
		schema string
		ok     bool
	}{
		{`{$defs: {a: {$ref: "#/$defs/a"}}, properties: {x: {$ref: "#/$defs/a"}}}`, false},
		{`{$defs: {a: {anyOf: [{type: string}, {$ref: "#/$defs/b"}]}, b: {not: {$ref: "#/$defs/a"}}}, $ref: "#/$defs/a"}`, false},
		{`{$defs: {a: {if: {type: string}, then: {$ref: "#/$defs/a"}}}}`, false},
		{`{$defs: {a: {dependentSchemas: {x: {allOf: [{$ref: "#/$defs/a"}]}}}}}`, false},
		{`{$defs: {tree: {type: object, properties: {left: {$ref: "#/$defs/tree"}, right: {$ref: "#/$defs/tree"}}}}, $ref: "#/$defs/tree"}`, true},
		{`{$defs: {s: {type: string}}, anyOf: [{$ref: "#/$defs/s"}, {$ref: "#/$defs/s"}]}`, true},
	} {
		file, err := action.Parse("a.yaml", []byte("actions: {x: {input: "+c.schema+", request: {url: 'https://api.example.org/'}}}"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = newSchema(file.Find("x"))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "leads to itself") {
			t.Errorf("%s: %v", c.schema, err)
		}
	}
	if _, err := action.Parse("a.yaml", []byte(`actions: {x: {input: {$defs: {a: {items: {$ref: "#/$defs/a/items"}}}}, request: {url: 'https://api.example.org/'}}}`)); err == nil {
		t.Error("a reference into a definition is accepted")
	}
}
