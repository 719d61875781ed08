package dispatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/policy"
)

// schema is the schema of an action's input.
type schema struct {
	root     *jsonschema.Schema
	resolved *jsonschema.Resolved
	parts    map[*jsonschema.Schema]*jsonschema.Resolved // of root, compiled when first asked for
}

// newSchema compiles an action's schema. A keyword that the library does not
// know would be ignored; it is refused, since it was meant to refuse something.
func newSchema(a *action.Action) (*schema, error) {
	s := &schema{root: &jsonschema.Schema{}, parts: map[*jsonschema.Schema]*jsonschema.Resolved{}}
	err := json.Unmarshal(a.Input, s.root)
	if err == nil {
		err = unknown(s.root, "")
	}
	if err == nil {
		err = s.endless(s.root, map[*jsonschema.Schema]bool{})
	}
	if err == nil {
		s.resolved, err = s.root.CloneSchemas().Resolve(nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s.input: %s", a.InputSource, a.Name, line(err))
	}
	return s, nil
}

func unknown(s *jsonschema.Schema, at string) error {
	if len(s.Extra) > 0 {
		keys := slices.Sorted(maps.Keys(s.Extra))
		return fmt.Errorf("unknown keyword %s at %q", policy.Quote(keys[0]), at)
	}
	for _, t := range append(slices.Clone(s.Types), s.Type) {
		if !slices.Contains([]string{"", "null", "boolean", "integer", "number", "string", "array", "object"}, t) {
			return fmt.Errorf("unknown type %s at %q", policy.Quote(t), at)
		}
	}
	if s.Format != "" || s.ContentEncoding != "" || s.ContentMediaType != "" || s.ContentSchema != nil {
		return fmt.Errorf("format and content keywords check nothing: use pattern, at %q", at)
	}
	for path, sub := range children(s) {
		if err := unknown(sub, at+path); err != nil {
			return err
		}
	}
	return nil
}

// endless refuses a schema that asks itself about the same value again: it could
// not be checked in any time. Recursion into parts of a value ends with the value.
// known has false while the parts of a schema are looked at, and true afterwards.
func (s *schema) endless(sub *jsonschema.Schema, known map[*jsonschema.Schema]bool) error {
	if done, seen := known[sub]; done {
		return nil
	} else if seen {
		return errors.New("a $ref leads to itself without a step into the value")
	}
	known[sub] = false
	for path, child := range children(sub) {
		if inPlace[strings.Split(path, "/")[1]] {
			if err := s.endless(child, known); err != nil {
				return err
			}
		}
	}
	if target := s.root.Defs[strings.TrimPrefix(sub.Ref, "#/$defs/")]; sub.Ref != "" && target != nil {
		if err := s.endless(target, known); err != nil {
			return err
		}
	}
	known[sub] = true
	for path, child := range children(sub) {
		if !inPlace[strings.Split(path, "/")[1]] {
			if err := s.endless(child, known); err != nil {
				return err
			}
		}
	}
	return nil
}

// inPlace are the keywords whose schemas are asked about the same value (JSON
// Schema 2020-12, 10.2).
var inPlace = map[string]bool{"allOf": true, "anyOf": true, "oneOf": true, "not": true, "if": true, "then": true, "else": true, "dependentSchemas": true}

// children are all schemas in a schema, with their places.
func children(s *jsonschema.Schema) map[string]*jsonschema.Schema {
	out := map[string]*jsonschema.Schema{}
	for name, sub := range map[string]*jsonschema.Schema{
		"items": s.Items, "contains": s.Contains, "additionalProperties": s.AdditionalProperties, "propertyNames": s.PropertyNames,
		"unevaluatedItems": s.UnevaluatedItems, "unevaluatedProperties": s.UnevaluatedProperties, "not": s.Not, "if": s.If, "then": s.Then, "else": s.Else,
	} {
		if sub != nil {
			out["/"+name] = sub
		}
	}
	for name, list := range map[string][]*jsonschema.Schema{"prefixItems": s.PrefixItems, "allOf": s.AllOf, "anyOf": s.AnyOf, "oneOf": s.OneOf} {
		for i, sub := range list {
			out["/"+name+"/"+strconv.Itoa(i)] = sub
		}
	}
	for name, subs := range map[string]map[string]*jsonschema.Schema{"$defs": s.Defs, "properties": s.Properties, "patternProperties": s.PatternProperties, "dependentSchemas": s.DependentSchemas} {
		for key, sub := range subs {
			out["/"+name+"/"+escapePointer(key)] = sub
		}
	}
	return out
}

// check validates a value. The library's verdict counts; it stops at the first
// error and does not say where in the value that is, so each is then placed.
func (s *schema) check(v any) faults {
	err := s.resolved.Validate(v)
	if err == nil {
		return nil
	}
	var f faults
	s.place(&f, s.root, v, "", 0)
	if len(f) == 0 {
		f.add("", "%s", line(err))
	}
	return f
}

// place finds the errors of a value against one schema: those of the parts of
// the value first, each checked alone, then its own.
func (s *schema) place(f *faults, sub *jsonschema.Schema, v any, at string, depth int) {
	if depth > 2*maxDepth || len(*f) == maxErrors || s.validate(sub, v) == nil {
		return
	}
	before := len(*f)
	if name, ok := strings.CutPrefix(sub.Ref, "#/$defs/"); ok && s.root.Defs[name] != nil {
		s.place(f, s.root.Defs[name], v, at, depth+1)
	}
	switch v := v.(type) {
	case map[string]any:
		s.placeObject(f, sub, v, at, depth)
	case []any:
		for i, item := range v {
			if part := itemSchema(sub, i); part != nil {
				s.place(f, part, item, at+"/"+strconv.Itoa(i), depth+1)
			}
		}
	}
	if r, err := s.compile(own(sub)); err != nil {
		f.add(at, "does not match the schema")
	} else if err := r.Validate(v); err != nil {
		f.add(at, "%s", line(err))
	} else if len(*f) == before {
		f.add(at, "does not match the schema")
	}
}

func (s *schema) placeObject(f *faults, sub *jsonschema.Schema, v map[string]any, at string, depth int) {
	for _, key := range slices.Sorted(maps.Keys(v)) {
		below := at + "/" + escapePointer(key)
		if part := sub.Properties[key]; part != nil {
			s.place(f, part, v[key], below, depth+1)
		} else if a := sub.AdditionalProperties; a != nil && len(sub.PatternProperties) == 0 {
			if isFalse(a) {
				f.add(below, "the schema has no such property")
			} else {
				s.place(f, a, v[key], below, depth+1)
			}
		}
	}
}

func isFalse(s *jsonschema.Schema) bool {
	b, err := json.Marshal(s)
	return err == nil && string(b) == "false"
}

func itemSchema(s *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(s.PrefixItems) {
		return s.PrefixItems[i]
	}
	return s.Items
}

// own is a schema without what it says about the parts of a value.
func own(s *jsonschema.Schema) *jsonschema.Schema {
	c := *s
	c.Ref, c.Items, c.PrefixItems = "", nil, nil
	c.Properties = maps.Clone(s.Properties)
	for name := range c.Properties {
		c.Properties[name] = &jsonschema.Schema{}
	}
	if len(c.PatternProperties) == 0 {
		c.AdditionalProperties = nil
	}
	return &c
}

// validate checks a value against a part of the schema.
func (s *schema) validate(part *jsonschema.Schema, v any) error {
	r := s.parts[part]
	if r == nil {
		var err error
		if r, err = s.compile(part); err != nil {
			return err
		}
		s.parts[part] = r
	}
	return r.Validate(v)
}

// compile makes a part a schema of its own, with the whole's $defs.
func (s *schema) compile(part *jsonschema.Schema) (*jsonschema.Resolved, error) {
	c := part.CloneSchemas()
	if part != s.root {
		c.Defs = s.root.CloneSchemas().Defs
	}
	return c.Resolve(nil)
}

// line is an error of the library as one bounded line, without the places that
// it names, which are of the schema.
func line(err error) string {
	s := err.Error()
	for {
		rest, ok := strings.CutPrefix(s, "validating ")
		if !ok {
			break
		}
		_, after, found := strings.Cut(rest, ": ")
		if !found {
			break
		}
		s = after
	}
	return bounded(strings.TrimPrefix(s, "jsonschema: "))
}
