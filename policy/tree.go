package policy

import (
	"encoding/json"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// NodeKind tells what a [Node] is.
type NodeKind int

// The kinds of nodes.
const (
	MappingNode NodeKind = iota + 1
	ListNode
	TextNode   // quoted or plain text
	NumberNode // Text is as written
	BoolNode   // Text is "true" or "false"
	NullNode   // the word null
)

// Node is a value of a YAML file of agentguard's that is no policy, such as a
// file of dispatch actions.
type Node struct {
	Kind    NodeKind
	Text    string // of a scalar
	Entries []Entry
	Items   []*Node
	Source  Source
	shown   string // for "expected X, got Y"
}

// Entry is one key of a mapping with its value.
type Entry struct {
	Name   string // as written, not quoted
	Source Source // of the name
	Value  *Node  // never nil
}

// Tree reads the values of such a file and collects what is wrong with it, each
// problem with its place.
type Tree struct {
	Root *Node // nil when the text is no document
	errs Errors
}

// ReadTree reads a document as strictly as a policy is read: bounded, one
// document, no anchors, aliases, merge keys or tags, no duplicate keys. name is
// the path for error messages, root a key that the file may begin with.
func ReadTree(name, root string, src []byte) *Tree {
	r := &reader{name: name, root: root}
	t := &Tree{}
	if body := r.document(src); body != nil {
		t.Root = r.node(body, nil, 0)
	}
	t.errs = r.errs
	return t
}

// Err is an [Errors] with every problem, or nil.
func (t *Tree) Err() error { return t.errs.sorted().err() }

// node turns a syntax tree into plain values.
func (r *reader) node(n ast.Node, at *token.Token, depth int) *Node {
	out := &Node{Source: r.source(startOr(n, at)), shown: nodeKind(n)}
	if depth > maxDepth {
		r.report(startOr(n, at), "", wrong("", "nested too deeply"))
		return out
	}
	if entries, ok := r.pairs(n, ""); ok {
		out.Kind = MappingNode
		for _, e := range entries {
			out.Entries = append(out.Entries, Entry{e.name, r.source(e.at), r.node(e.value, e.at, depth+1)})
		}
		return out
	}
	if seq, ok := n.(*ast.SequenceNode); ok {
		out.Kind = ListNode
		for _, item := range seq.Values {
			if item, ok := unwrap(item); ok {
				out.Items = append(out.Items, r.node(item, at, depth+1))
			}
		}
		return out
	}
	text, kind := scalarText(n)
	out.Text = text
	if kind == isBool {
		out.Text = strings.ToLower(text) // True and TRUE are YAML too
	}
	out.Kind = map[kinds]NodeKind{isString: TextNode, isInteger: NumberNode, isNumber: NumberNode, isBool: BoolNode, isNull: NullNode}[kind]
	if out.Kind == 0 {
		r.report(startOr(n, at), "", wrong("", "expected a value, got %s", nodeKind(n)))
	}
	return out
}

// Fail notes a problem at a place; the hint may be empty. Text from the file
// among args must be quoted ([Quote]).
func (t *Tree) Fail(at Source, hint, format string, args ...any) {
	if len(t.errs) < maxErrors {
		t.errs = append(t.errs, wrong(hint, format, args...).at(at, ""))
	}
}

// Quote makes text from outside safe to print: ASCII, escaped and bounded.
func Quote(s string) string { return quote(s) }

// Mapping returns the values of a mapping by name and notes every key that is
// not known. what is the mapping's dotted name, for messages.
func (t *Tree) Mapping(n *Node, what string, known ...string) map[string]*Node {
	out := map[string]*Node{}
	for _, e := range t.Names(n, what) {
		if contains(known, e.Name) {
			out[e.Name] = e.Value
			continue
		}
		hint := didYouMean(e.Name, known)
		if hint == "" {
			hint = "known here: " + strings.Join(known, ", ")
		}
		t.Fail(e.Source, hint, "%s: unknown key %s", what, quote(e.Name))
	}
	return out
}

// Names returns the entries of a mapping whose keys are names of the file's own.
func (t *Tree) Names(n *Node, what string) []Entry {
	if n == nil || n.Kind == 0 {
		return nil
	}
	if n.Kind != MappingNode {
		t.Fail(n.Source, "write NAME: VALUE pairs", "%s: expected a mapping, got %s", what, n.shown)
		return nil
	}
	return n.Entries
}

// List returns the items of a list; nil for no node.
func (t *Tree) List(n *Node, what string) []*Node {
	if n == nil || n.Kind == 0 {
		return nil
	}
	if n.Kind != ListNode {
		t.Fail(n.Source, "write [ENTRY, ENTRY]", "%s: expected a list, got %s", what, n.shown)
		return nil
	}
	return n.Items
}

// Text returns a text; "" for no node. An empty one is a problem.
func (t *Tree) Text(n *Node, what string) string {
	switch {
	case n == nil || n.Kind == 0:
		return ""
	case n.Kind != TextNode:
		t.Fail(n.Source, "quote it if it is meant as text", "%s: expected text, got %s", what, n.shown)
		return ""
	case n.Text == "":
		t.Fail(n.Source, "remove the key instead", "%s is empty", what)
	}
	return n.Text
}

// Word returns one of the words, or the first of them for no node.
func (t *Tree) Word(n *Node, what string, words ...string) string {
	if n == nil {
		return words[0]
	}
	s := t.Text(n, what)
	if s != "" && !contains(words, s) {
		hint := didYouMean(s, words)
		if hint == "" {
			hint = "known here: " + strings.Join(words, ", ")
		}
		t.Fail(n.Source, hint, "%s: unknown word %s", what, quote(s))
	}
	return s
}

// Size returns bytes, or def for no node; there is no unlimited.
func (t *Tree) Size(n *Node, what string, def int64) int64 {
	return t.quantity(n, what, def, func(s string) (int64, *problem) { return parseSize(s, 1) })
}

// Span returns nanoseconds, or def for no node; a plain number is seconds.
func (t *Tree) Span(n *Node, what string, def int64) int64 {
	return t.quantity(n, what, def, parseSpan)
}

// Count returns a number from 1 to most, or def for no node.
func (t *Tree) Count(n *Node, what string, def, most int64) int64 {
	return t.quantity(n, what, def, func(s string) (int64, *problem) { return parseCount(s, most) })
}

func (t *Tree) quantity(n *Node, what string, def int64, parse func(string) (int64, *problem)) int64 {
	switch {
	case n == nil || n.Kind == 0:
		return def
	case n.Kind != NumberNode && n.Kind != TextNode:
		t.Fail(n.Source, "", "%s: expected a number, got %s", what, n.shown)
		return def
	}
	v, p := parse(n.Text)
	if p == nil {
		return v
	}
	hint := p.hint
	if strings.Contains(hint, none) {
		hint = "this limit cannot be lifted"
	}
	t.Fail(n.Source, hint, "%s: %s", what, p.message)
	return def
}

// JSON returns the value as JSON; keys keep their order. A number that JSON
// does not have, such as 0x10 or .5, is a problem.
func (t *Tree) JSON(n *Node, what string) json.RawMessage {
	var b strings.Builder
	t.encode(&b, n, what)
	return json.RawMessage(b.String())
}

func (t *Tree) encode(b *strings.Builder, n *Node, what string) {
	switch n.Kind {
	case MappingNode:
		b.WriteByte('{')
		for i, e := range n.Entries {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(jsonText(e.Name))
			b.WriteByte(':')
			t.encode(b, e.Value, what)
		}
		b.WriteByte('}')
	case ListNode:
		b.WriteByte('[')
		for i, item := range n.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			t.encode(b, item, what)
		}
		b.WriteByte(']')
	case TextNode:
		b.Write(jsonText(n.Text))
	case BoolNode, NullNode:
		b.WriteString(n.Text)
	default:
		if !json.Valid([]byte(n.Text)) {
			t.Fail(n.Source, "write it in decimal digits", "%s: %s is not a number of JSON", what, quote(n.Text))
		}
		b.WriteString(n.Text)
	}
}

// jsonText never fails: the reader has checked that the file is UTF-8.
func jsonText(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`)
	}
	return b
}
