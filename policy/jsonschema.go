package policy

import (
	"bytes"
	"encoding/json"
	"strings"
)

// JSONSchema returns a JSON Schema (draft 2020-12) of policy files, made from
// the table that the parser reads them by, for editors and other programs. It
// accepts every file that Parse accepts. Parse refuses more: what a schema
// cannot say, such as a path that leads nowhere, is checked there only.
func JSONSchema() []byte {
	body := object()
	for _, k := range schema() {
		at := body
		parts := strings.Split(k.name, ".")
		for _, name := range parts[:len(parts)-1] {
			inner, ok := at.properties[name]
			if !ok {
				inner = object()
				at.add(name, inner)
			}
			at = inner
		}
		at.add(parts[len(parts)-1], k.jsonSchema())
	}
	root := object()
	root.Schema, root.Title, root.Required = "https://json-schema.org/draft/2020-12/schema", "agentguard policy", []string{"sandbox"}
	root.add("sandbox", body)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(root) // strings and numbers of ours: it cannot fail
	return b.Bytes()
}

// schemaNode is one JSON Schema. Properties keep their order.
type schemaNode struct {
	Schema      string        `json:"$schema,omitempty"`
	Title       string        `json:"title,omitempty"`
	Description string        `json:"description,omitempty"`
	Type        any           `json:"type,omitempty"` // a name or several
	Enum        []any         `json:"enum,omitempty"`
	Pattern     string        `json:"pattern,omitempty"`
	Above       *int          `json:"exclusiveMinimum,omitempty"`
	MinLength   int           `json:"minLength,omitempty"`
	Items       *schemaNode   `json:"items,omitempty"`
	OneOf       []*schemaNode `json:"oneOf,omitempty"`
	Required    []string      `json:"required,omitempty"`
	Properties  ordered       `json:"properties,omitempty"`
	Additional  any           `json:"additionalProperties,omitempty"` // false, or a schema

	properties map[string]*schemaNode
}

// ordered is an object whose members keep their order.
type ordered []member

type member struct {
	name string
	node *schemaNode
}

// MarshalJSON writes the members in their order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		node, err := json.Marshal(m.node)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(node)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// object is a mapping with the keys that are added to it and no others.
func object() *schemaNode {
	return &schemaNode{Type: "object", Additional: false, properties: map[string]*schemaNode{}}
}

func (n *schemaNode) add(name string, inner *schemaNode) {
	n.properties[name] = inner
	n.Properties = append(n.Properties, member{name, inner})
}

// jsonSchema describes the values of one key.
func (k key) jsonSchema() *schemaNode {
	value := k.valueSchema()
	n := value
	switch k.form {
	case many:
		n = &schemaNode{Type: "array", Items: value}
	case named:
		n = &schemaNode{Type: "object", Additional: value}
	case worded:
		words := &schemaNode{}
		for _, w := range k.words() {
			words.Enum = append(words.Enum, w)
		}
		n = &schemaNode{OneOf: []*schemaNode{words, {Type: "array", Items: value}}}
	}
	n.Description = about[k.name]
	if k.flag != "" {
		n.Description += " (--" + k.flag + ")"
	}
	return n
}

func (k key) valueSchema() *schemaNode {
	n := &schemaNode{Type: k.kinds.names()}
	switch f := k.field.(type) {
	case scalar:
		for _, w := range f.words {
			n.Enum = append(n.Enum, w)
			if w == "null" && k.kinds&isNull != 0 {
				n.Enum = append(n.Enum, nil)
			}
		}
	case limit:
		n.Pattern = f.pattern
		n.Above = new(int)
	case list[Text], list[Mount], list[Endpoint]:
		n.MinLength = 1
	}
	return n
}

// names spells the YAML types as JSON Schema does.
func (k kinds) names() any {
	var out []string
	for _, t := range []struct {
		kind kinds
		name string
	}{{isString, "string"}, {isInteger, "integer"}, {isNumber, "number"}, {isBool, "boolean"}, {isNull, "null"}} {
		if k&t.kind != 0 {
			out = append(out, t.name)
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	return out
}
