package policy

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// maxErrors bounds what a hostile file can make us print.
const maxErrors = 1000

// reader walks the syntax tree of one file along the schema and collects
// changes and problems.
type reader struct {
	name string // of the file
	root string // the one key at the top: "sandbox" or "ceiling"
	base string // directory of its relative paths
	keys []key
	file *File
	errs Errors
}

// fail reports a problem at a line and a column.
func (r *reader) fail(line, col int, p *problem) {
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, p.at(Source{File: r.name, Line: max(line, 1), Col: max(col, 1)}, ""))
	}
}

// report reports a problem of clause at a token.
func (r *reader) report(t *token.Token, clause string, p *problem) {
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, p.at(r.source(t), clause))
	}
}

// source is the place of a token.
func (r *reader) source(t *token.Token) Source {
	if t == nil || t.Position == nil {
		return Source{File: r.name, Line: 1, Col: 1}
	}
	return Source{File: r.name, Line: max(t.Position.Line, 1), Col: max(t.Position.Column, 1)}
}

// start is the first token of a node: of a mapping the first key, where the
// syntax tree has the colon.
func start(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return start(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return start(n.Key)
	}
	return n.GetToken()
}

// pair is one key of a mapping with its value.
type pair struct {
	name  string
	at    *token.Token
	value ast.Node
}

// pairs returns the entries of a mapping, without those whose key is not a
// word or is there twice, which it reports.
func (r *reader) pairs(n ast.Node, clause string) ([]pair, bool) {
	m, ok := n.(ast.MapNode)
	if !ok {
		return nil, false
	}
	var out []pair
	seen := map[string]Source{}
	for it := m.MapRange(); it.Next(); {
		k := it.KeyValue().Key
		value, ok := unwrap(it.KeyValue().Value)
		if !ok || k.IsMergeKey() {
			continue
		}
		name, ok := keyName(k)
		at := start(k)
		if !ok {
			r.report(at, clause, wrong("", "a key must be a word"))
			continue
		}
		if first, dup := seen[name]; dup {
			r.report(at, clause, wrong("first at "+first.String(), "duplicate key %s", quote(name)))
			continue
		}
		seen[name] = r.source(at)
		out = append(out, pair{name, at, value})
	}
	return out, true
}

// keyName is the text of a key that is a plain or quoted word.
func keyName(k ast.MapKeyNode) (string, bool) {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value, true
	}
	return "", false
}

// top reads the outermost mapping, which has the one key r.root.
func (r *reader) top(body ast.Node) {
	entries, ok := r.pairs(body, "")
	if !ok {
		r.report(start(body), "", wrong("start with "+r.root+":", "expected a mapping, got %s", nodeKind(body)))
		return
	}
	found := false
	for _, e := range entries {
		if e.name == r.root {
			found = true
			r.section(e.value, e.at, "", r.root)
			continue
		}
		hint := didYouMean(e.name, []string{r.root})
		switch {
		case e.name == "sandbox" || e.name == "ceiling":
			hint = "this file must start with " + r.root + ":"
		case contains(children(r.keys, ""), e.name):
			hint = "it belongs under " + r.root + ":"
		}
		r.report(e.at, "", wrong(hint, "unknown key %s", quote(e.name)))
	}
	if !found && len(r.errs) == 0 {
		r.report(start(body), "", wrong("start with "+r.root+":", "the key %s is missing", r.root))
	}
}

// section reads the mapping of the keys under prefix.
func (r *reader) section(n ast.Node, at *token.Token, prefix, shown string) {
	entries, ok := r.pairs(n, prefix)
	if !ok {
		r.report(startOr(n, at), prefix, wrong("its keys: "+strings.Join(children(r.keys, prefix), ", "), "%s: expected a mapping, got %s", shown, nodeKind(n)))
		return
	}
	for _, e := range entries {
		name := e.name
		if prefix != "" {
			name = prefix + "." + e.name
		}
		if k, ok := lookup(r.keys, name); ok && !strings.Contains(e.name, ".") {
			r.leaf(k, e)
		} else if !strings.Contains(e.name, ".") && len(children(r.keys, name)) > 0 {
			r.file.keys[name] = r.source(e.at)
			r.section(e.value, e.at, name, name)
		} else {
			r.report(e.at, name, wrong(r.suggest(prefix, e.name), "unknown key %s", quote(e.name)))
		}
	}
}

// suggest says what an unknown key under prefix was meant to be: one of the
// section, slightly misspelt, or one of another section.
func (r *reader) suggest(prefix, name string) string {
	siblings := children(r.keys, prefix)
	if hint := didYouMean(name, siblings); hint != "" {
		return hint
	}
	for _, k := range r.keys {
		if parent, ok := strings.CutSuffix(k.name, "."+name); ok {
			return "it belongs under " + parent
		}
	}
	if contains(children(r.keys, ""), name) {
		return "it belongs directly under " + r.root
	}
	return "known here: " + strings.Join(siblings, ", ")
}

// leaf reads the value of a key.
func (r *reader) leaf(k key, e pair) {
	r.file.keys[k.name] = r.source(e.at)
	switch k.form {
	case many:
		r.list(k, e)
	case named:
		r.mapping(k, e)
	case worded:
		if s, ok := e.value.(*ast.StringNode); ok && contains(k.words(), s.Value) {
			r.scalar(k, "", e.value, e.at)
			return
		}
		r.list(k, e)
	default:
		r.scalar(k, "", e.value, e.at)
	}
}

// list reads each entry of a sequence.
func (r *reader) list(k key, e pair) {
	seq, ok := e.value.(*ast.SequenceNode)
	if !ok {
		hint := "write [ENTRY, ENTRY], or [] for none"
		if text, kind := scalarText(e.value); kind == isString {
			hint = "write [" + quote(text) + "]"
			if meant := didYouMean(text, k.words()); meant != "" {
				hint = meant
			} else if !strings.Contains(text, "/") && len(k.words()) > 0 {
				hint = "write " + strings.Join(k.words(), ", ") + ", or [ENTRY, ENTRY]"
			}
		}
		r.report(startOr(e.value, e.at), k.name, wrong(hint, "%s: expected a list, got %s", k.name, nodeKind(e.value)))
		return
	}
	for _, item := range seq.Values {
		if item, ok := unwrap(item); ok {
			r.scalar(k, "", item, e.at)
		}
	}
}

// mapping reads each entry of a mapping of names to values.
func (r *reader) mapping(k key, e pair) {
	entries, ok := r.pairs(e.value, k.name)
	if !ok {
		r.report(startOr(e.value, e.at), k.name, wrong("write NAME: VALUE pairs, or {} for none", "%s: expected a mapping, got %s", k.name, nodeKind(e.value)))
		return
	}
	for _, entry := range entries {
		r.scalar(k, entry.name, entry.value, entry.at)
	}
}

// scalar reads one value; at is the place of its key.
func (r *reader) scalar(k key, name string, n ast.Node, at *token.Token) {
	text, kind := scalarText(n)
	where := startOr(n, at)
	if kind&k.kinds == 0 {
		r.report(where, k.name, wrong(typeHint(k, kind), "%s: expected %s, got %s", k.name, expected(k), nodeKind(n)))
		return
	}
	src := r.source(where)
	if name != "" {
		src = r.source(at)
	}
	v := value{text: text, key: name, src: src, base: r.base}
	apply, p := k.field.read(v)
	if p != nil {
		r.report(where, k.name, &problem{k.name + ": " + p.message, p.hint})
		return
	}
	r.file.add(k.name, v, apply)
}
